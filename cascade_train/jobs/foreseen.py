"""The plan of a graph's work: what each node would do, without doing it and without torch.

The nodes Training Run, Train Steps, Train and Validate and Cache Latents call it for ``--dry-run``. Each
function gives what the node would, what would be done as a line for a person, and whether it is done
already.
"""

from __future__ import annotations

from cascade_train.data.spec import Dataset
from cascade_train.host.base import Host
from cascade_train.jobs.prepare import with_caches
from cascade_train.models.spec import ModelsSpec
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


def planned_validation(
    position: Position, total: int, every: int, learning_rate: float | None
) -> tuple[Position, str, bool]:
    """The same for ``total`` steps with the prompts drawn every ``every``; drawing is never there already."""
    goal, text, _ = planned_block(position, total, learning_rate)
    return goal, f"{text}, and draws the prompts every {every} steps", False


def planned_caches(
    dataset: Dataset, models: ModelsSpec, *, latents: bool, texts: bool, crops: int, ahead: bool, host: Host
) -> tuple[Dataset, str, bool]:
    """``dataset`` with its caches as `prepare.with_caches` gives it, nothing worked out."""
    cached = with_caches(dataset, models, latents=latents, texts=texts, crops=crops, ahead=False, host=host)
    return cached, "works out what is not cached yet" if ahead else "caches while training", not ahead
