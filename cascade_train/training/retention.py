"""The one place that decides which checkpoints may be deleted.

A checkpoint written at the end of a block is a position that a graph may still name: it stays until a person
asks for it to go (``cascade-train runs prune``). One that was saved on the way is only there so that a stop
costs little: it goes as soon as a later checkpoint lies further along the same way.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from cascade_train.training.checkpoints import Saved, cut, listed, on_the_way
from cascade_train.training.spec import Position


def superseded(position: Position) -> list[Saved]:
    """The timed checkpoints before ``position`` on its own way, given that ``position`` is saved."""
    return [saved for saved in on_the_way(position) if saved.kind == "timed" and saved.step < position.step]


def prunable(run_folder: Path, keep_steps: Iterable[int] = ()) -> list[Saved]:
    """What a person who wants room may delete: checkpoints from which a later one was reached.

    The end of every branch stays, and every checkpoint at one of ``keep_steps``. A graph that still names one
    of the others trains it again, from the newest one before it.
    """
    everything, keep = listed(run_folder), set(keep_steps)
    return [
        saved
        for saved in everything
        if saved.step not in keep
        and any(
            later.step > saved.step and cut(later.blocks, saved.step) == saved.blocks for later in everything
        )
    ]


def delete(saved: Iterable[Saved]) -> int:
    """Remove checkpoints; returns how many. Each is renamed first, so that no half of one is ever found."""
    count = 0
    for item in saved:
        gone = item.folder.with_name(f".{item.folder.name}.part")
        try:
            item.folder.rename(gone)
        except OSError:
            continue
        shutil.rmtree(gone, ignore_errors=True)
        count += 1
    return count
