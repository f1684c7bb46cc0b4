"""What training would do, without doing it (and without torch): for ``--dry-run``."""

from __future__ import annotations

from cascade_train.host.base import Host
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
