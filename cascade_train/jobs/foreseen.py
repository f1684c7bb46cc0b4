"""The plan of a graph's work: what each node would do, without doing it and without torch.

The nodes Training Run, Train Steps, Train and Validate, Validate, Dataset From Images and Cache Latents call
it for ``--dry-run``. Each function gives what the node would, what would be done as a line for a person, and
whether it is done already. Pictures are numpy arrays here, in the form of an IMAGE.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cascade_train.data import sources
from cascade_train.data.spec import Dataset
from cascade_train.host.base import Host
from cascade_train.jobs.datasets import lines_of
from cascade_train.jobs.drawn import counted, drawing_of, in_floats
from cascade_train.jobs.prepare import with_caches
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling.spec import Prompts, check_blocks
from cascade_train.training import checkpoints
from cascade_train.training.precheck import examine
from cascade_train.training.spec import Block, Position, RunSpec


def planned_start(spec: RunSpec, host: Host) -> tuple[Position, str]:
    """The run at step 0 as `run.start` gives it, no folder made; and whether there is one already.

    Raises:
        CascadeError: what `precheck.examine` finds.
    """
    examine(spec)
    folder = host.folders.runs / spec.digest
    return Position(spec, (), str(folder)), f"run {spec.digest}, " + ("begun" if folder.is_dir() else "new")


def planned_block(position: Position, steps: int, learning_rate: float | None) -> tuple[Position, str, bool]:
    """The position after ``steps`` more, what would be done to get there, and whether it is there already."""
    goal = position.after(Block(steps, learning_rate))
    if goal.step == 0 or checkpoints.exists(goal):
        return goal, f"step {goal.step} is on disk", True
    on_disk = next(iter(checkpoints.on_the_way(goal)), None)
    start = max(on_disk.step if on_disk else 0, position.step)
    return goal, f"trains {goal.step - start} steps, {start} to {goal.step}", False


def planned_pictures(
    prompts: Prompts,
    host: Host,
    *,
    run: Position | None = None,
    models: ModelsSpec | None = None,
    strength: float = 1.0,
) -> tuple[np.ndarray | None, str, bool]:
    """The pictures that `validate` gives, where they are on disk.

    Raises:
        CascadeError: neither a run nor models, or both; a size that the models cannot draw.
    """
    drawing = drawing_of(prompts, host, run=run, models=models, strength=strength)
    pixels, told = drawing.read(copy=False), counted(prompts)
    if pixels is None:
        return None, f"draws {told}", False
    return in_floats(pixels), f"{told} on disk", True


def planned_validation(
    position: Position,
    prompts: Prompts,
    total: int,
    every: int,
    learning_rate: float | None,
    host: Host,
) -> tuple[Position, str, bool]:
    """The same for ``total`` steps with ``prompts`` drawn before them and every ``every``.

    Raises:
        CascadeError: lengths below 1; a size that the models cannot draw.
    """
    check_blocks(total, every)
    goal, text, there = planned_block(position, total, learning_rate)
    ends = [*range(every, total, every), total]
    seen = [position, *(position.after(Block(end, learning_rate)) for end in ends)]
    missing = sum(not drawing_of(prompts, host, run=each).there() for each in seen)
    told = f"draws {missing} of {len(seen)} grids" if missing else f"{len(seen)} grids on disk"
    return goal, f"{text}; {told}", there and not missing


def planned_dataset(
    batches: Sequence[np.ndarray], captions: Sequence[str], host: Host
) -> tuple[Dataset | None, str, bool | None]:
    """The dataset that `datasets.from_images` gives of ``batches``, where its pictures are kept already."""
    pictures = [picture for batch in batches for picture in batch]
    dataset = sources.kept_pictures(pictures, lines_of(captions), host=host)
    return (
        dataset,
        "" if dataset is not None else f"keeps {len(pictures)} pictures",
        None if dataset else False,
    )


def planned_caches(
    dataset: Dataset, models: ModelsSpec, *, latents: bool, texts: bool, crops: int, ahead: bool, host: Host
) -> tuple[Dataset, str, bool]:
    """``dataset`` with its caches as `prepare.with_caches` gives it, nothing worked out."""
    cached = with_caches(dataset, models, latents=latents, texts=texts, crops=crops, ahead=False, host=host)
    return cached, "works out what is not cached yet" if ahead else "caches while training", not ahead
