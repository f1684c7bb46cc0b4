"""Drawing validation prompts with a run or with models: the nodes Validate and Train and Validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cascade_train.digest import digest
from cascade_train.drawing.paper import to_tensor
from cascade_train.errors import CascadeError
from cascade_train.files import check_own, write_with
from cascade_train.host.base import Host
from cascade_train.host.progress import progress_of
from cascade_train.models.spec import ModelsSpec
from cascade_train.ranks.talk import shared_out
from cascade_train.sampling.spec import Prompts
from cascade_train.sampling.validation import draw_some, validation_grid
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    from PIL import Image


def validate(
    prompts: Prompts,
    host: Host,
    *,
    run: Position | None = None,
    models: ModelsSpec | None = None,
    strength: float = 1.0,
    title: str = "",
) -> tuple[Tensor, Tensor]:
    """Draw ``prompts``: the labelled grid (1, H, W, 3) and the pictures (N, H, W, 3).

    With a run the grid is also kept in the run's folder, under ``samples``.

    Raises:
        CascadeError: neither a run nor models, or both.
    """
    if (run is None) == (models is None):
        raise CascadeError(
            "Validate needs a run or models" + (", not both" if run is not None else ""),
            fix="Wire exactly one of them",
        )
    if run is not None:
        models = run.spec.models if run.step == 0 else apply_trained(run.spec.models, run, strength, host)
        title = title or f"step {run.step}"
    assert models is not None
    pictures = draw_prompts(models, prompts, host)
    grid = validation_grid(prompts, pictures, title)
    if run is not None and host.rank == 0:
        _keep(run, prompts, strength, grid)
    return to_tensor(grid), pictures


def draw_prompts(models: ModelsSpec, prompts: Prompts, host: Host) -> Tensor:
    """All pictures of ``prompts``, (texts × pictures, H, W, 3) in [0, 1], prompt by prompt.

    Where ``host`` is one of several processes each draws its share, and all get all pictures.
    """

    def drawn(first: int, last: int) -> Tensor:
        return draw_some(models, prompts, first, last, device=host.device, progress=progress_of(host))

    return torch.cat(shared_out(drawn, len(prompts.texts) * prompts.pictures, host))


def _keep(run: Position, prompts: Prompts, strength: float, grid: Image.Image) -> None:
    name = f"{run.step:08d}-{run.name[:12]}-{digest((prompts, strength), 8)}.png"
    path = Path(run.folder) / "samples" / name
    if not path.exists():
        check_own(Path(run.folder))
        write_with(path, lambda beside: grid.save(beside, format="PNG"))
