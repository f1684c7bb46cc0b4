"""Drawing validation prompts with a run or with models: the nodes Validate and Train and Validate."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cascade_train.drawing.paper import to_bytes, to_tensor
from cascade_train.files import check_own
from cascade_train.host.base import Host
from cascade_train.host.progress import progress_of
from cascade_train.jobs.drawn import drawing_of, in_floats, keep_picture, stem
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.ranks.talk import agreed, shared_out
from cascade_train.sampling import stages
from cascade_train.sampling.conditioning import say_too_long
from cascade_train.sampling.sizes import picture_size
from cascade_train.sampling.spec import Prompts
from cascade_train.sampling.validation import draw_some, validation_grid
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    pass


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

    What was drawn before is read (`jobs.drawn`). With a run the grid is also kept in the run's folder, under
    ``samples``.

    Raises:
        CascadeError: neither a run nor models, or both; a size that the models cannot draw.
    """
    if run is not None:
        check_own(Path(run.folder))
        title = title or f"step {run.step}"
    drawing = drawing_of(prompts, host, run=run, models=models, strength=strength)
    pixels = agreed(drawing.read() if host.rank == 0 else None, host)
    if pixels is None:
        if run is not None:
            models = run.spec.models if run.step == 0 else apply_trained(run.spec.models, run, strength, host)
        assert models is not None
        say_too_long(models, (*prompts.texts, prompts.negative), host)
        pixels = to_bytes(draw_prompts(models, prompts, host))  # what is kept and handed on
        if host.rank == 0:
            drawing.keep(pixels, host)
    pictures = torch.from_numpy(in_floats(pixels))
    grid = validation_grid(prompts, pictures, title)
    if run is not None and host.rank == 0:
        place = Path(run.folder) / "samples" / f"{stem(run, drawing.name)}.png"
        if not place.exists():
            keep_picture(place, grid, host, "the grid")
    return to_tensor(grid), pictures


def draw_prompts(models: ModelsSpec, prompts: Prompts, host: Host) -> Tensor:
    """All pictures of ``prompts``, (texts × pictures, H, W, 3) in [0, 1], prompt by prompt.

    Where ``host`` is one of several processes each draws its share, and all get all pictures.
    """

    size = picture_size(library.geometry(models), prompts.width, prompts.height)
    work = max(stages.C_BYTES * prod(size.stage_c), stages.A_BYTES * prod(size.stage_b))
    library.ask_for_room(models, ("text", "stage_c", "stage_b", "stage_a"), host, work)

    def drawn(first: int, last: int) -> Tensor:
        return draw_some(models, prompts, first, last, device=host.device, progress=progress_of(host))

    return torch.cat(shared_out(drawn, len(prompts.texts) * prompts.pictures, host))
