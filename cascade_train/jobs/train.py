"""Training a block, alone or with pictures between: the nodes Train Steps and Train and Validate."""

from __future__ import annotations

import torch
from torch import Tensor

from cascade_train.drawing.paper import to_tensor
from cascade_train.drawing.plot import loss_plot
from cascade_train.host.base import Host
from cascade_train.jobs.previews import RunPreview, keep_last
from cascade_train.jobs.validate import validate
from cascade_train.sampling.spec import Prompts, check_blocks
from cascade_train.training import run as runs
from cascade_train.training.spec import Position


def train_block(
    position: Position, steps: int, learning_rate: float | None, host: Host, preview_every: int = 0
) -> tuple[Position, Tensor, float]:
    """Train ``steps`` more; the later position, the loss plot (1, H, W, 3) and the last loss.

    Every ``preview_every`` steps (0: never) the host is shown a small picture.

    Raises:
        CascadeError: as `training.run.train` does.
    """
    preview = RunPreview(host)
    later, metrics = runs.train(
        position,
        steps,
        host=host,
        learning_rate=learning_rate,
        preview=preview,
        preview_every=preview_every,
    )
    keep_last(preview, later, host)
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

    Raises:
        CascadeError: lengths below 1, or as `training.run.train` and drawing do.
    """
    check_blocks(total, every)
    grids = [validate(prompts, host, run=position)[0]]
    preview = RunPreview(host) if host.previews else None
    done = 0
    while done < total:
        steps = min(every, total - done)
        position, _ = runs.train(
            position,
            steps,
            host=host,
            learning_rate=learning_rate,
            preview=preview,
            preview_every=preview_every,
        )
        done += steps
        grids.append(validate(prompts, host, run=position)[0])
    return position, torch.cat(grids)
