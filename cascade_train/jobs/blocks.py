"""What the training nodes do: train a block, draw validation pictures, write the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.files import write_with
from cascade_train.host.base import Host
from cascade_train.host.progress import progress_of
from cascade_train.jobs.validation import draw_prompts, validation_grid
from cascade_train.jobs.watch import Watch
from cascade_train.migrations import current
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.weights import PREDICTION
from cascade_train.sampling.grid import to_tensor
from cascade_train.sampling.plot import loss_plot
from cascade_train.sampling.spec import Prompts
from cascade_train.training import run as runs
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    from PIL import Image


def train_block(
    position: Position, steps: int, learning_rate: float | None, host: Host, preview_every: int = 0
) -> tuple[Position, Tensor, float]:
    """Train ``steps`` more; the later position, the loss plot (1, H, W, 3) and the last loss.

    Every ``preview_every`` steps (0: never) the host is shown a small picture.
    """
    later, metrics = runs.train(
        position,
        steps,
        host=host,
        learning_rate=learning_rate,
        preview=Watch(host),
        preview_every=preview_every,
    )
    return later, to_tensor(loss_plot(metrics.rows)), metrics.last_loss


def train_and_validate(
    position: Position,
    prompts: Prompts,
    total: int,
    every: int,
    learning_rate: float | None,
    host: Host,
    preview_every: int = 0,
) -> tuple[Position, Tensor]:
    """Train ``total`` steps in blocks of ``every`` and draw ``prompts`` before, between and after them.

    Returns:
        the last position, and the grids (N, H, W, 3), one before training and one after each block.
    """
    if every < 1 or total < 1:
        raise CascadeError(f"{total} steps in blocks of {every}", fix="Use 1 or more for both")
    grids = [validate(prompts, host, run=position)[0]]
    watch = Watch(host)
    done = 0
    while done < total:
        steps = min(every, total - done)
        position, _ = runs.train(
            position,
            steps,
            host=host,
            learning_rate=learning_rate,
            preview=watch,
            preview_every=preview_every,
        )
        done += steps
        grids.append(validate(prompts, host, run=position)[0])
    return position, torch.cat(grids)


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
        models = run.spec.models if run.step == 0 else apply_trained(run.spec.models, run, strength)
        title = title or f"step {run.step}"
    assert models is not None
    pictures = draw_prompts(models, prompts, device=host.device, progress=progress_of(host), host=host)
    grid = validation_grid(prompts, pictures, title)
    if run is not None and host.rank == 0:
        _keep(run, prompts, strength, grid)
    return to_tensor(grid), pictures


def export(position: Position, format: str, filename: str, precision: str, host: Host) -> str:
    """Write the run's result at ``position`` in ``format``; the path of what was written first.

    Raises:
        CascadeError: nothing has been trained, or the name leaves the output folder.
    """
    from cascade_train.formats.export import export_path, export_trained

    path = export_path(host.folders, filename, Path(position.folder), default_name(position))
    state = runs.trained(position)
    if host.rank != 0:
        return str(path)
    if position.spec.objective != "epsilon":
        host.warn(
            f"the run predicts {position.spec.objective}; other programs read Stable Cascade as predicting "
            "epsilon and draw noise with this file, unless they are told"
        )
    return str(
        export_trained(
            state.kind,
            state.tensors,
            state.settings,
            path,
            format=format,
            precision=precision,
            models=position.spec.models,
            metadata=_provenance(position),
        )[0]
    )


def core_lora(position: Position, precision: str) -> dict[str, Tensor] | None:
    """The run's LoRA at ``position`` as ComfyUI's nodes hand it on; None where it trains something else."""
    from cascade_train.formats.export import core_lora as made
    from cascade_train.models.trained import read_settings

    if read_settings(runs.checkpoint_of(position))[0] != "lora":
        return None  # all weights are gigabytes: nothing to read only to see what they are
    state = runs.trained(position)
    return made(state.tensors, state.settings, precision=precision, models=position.spec.models)


def default_name(position: Position) -> str:
    """A file name (without ending) for what ``position`` holds: its label, its step, its own short name."""
    label = "".join(c if c.isalnum() or c in "-_" else "-" for c in position.spec.label).strip("-") or "run"
    return f"{label}-{position.step:06d}-{position.name[:8]}"


def _provenance(position: Position) -> dict[str, str]:
    return {
        **({} if position.spec.objective == "epsilon" else {PREDICTION: position.spec.objective}),
        "cascade_train.format": str(current("export")),
        "cascade_train.run": position.spec.digest,
        "cascade_train.position": position.name,
        "cascade_train.step": str(position.step),
        "cascade_train.models": position.spec.models.digest,
    }


def _keep(run: Position, prompts: Prompts, strength: float, grid: Image.Image) -> None:
    from cascade_train.digest import digest

    name = f"{run.step:08d}-{run.name[:12]}-{digest((prompts, strength), 8)}.png"
    path = Path(run.folder) / "samples" / name
    if not path.exists():
        write_with(path, lambda beside: grid.save(beside, format="PNG"))
