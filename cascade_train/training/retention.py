"""The one place that decides which checkpoints may be deleted.

A checkpoint written at the end of a block is a position that a graph may still name: it stays until a person
asks for it to go. One that was saved on the way is only there so that a stop costs little: it goes as soon as
a later checkpoint lies further along the same way.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from cascade_train.training.checkpoints import Saved, listed, on_the_way, tag_of, truncated
from cascade_train.training.spec import Position


def superseded(position: Position) -> list[Saved]:
    """The timed checkpoints before ``position`` on its own way, given that ``position`` is saved."""
    return [saved for saved in on_the_way(position) if saved.kind == "timed" and saved.step < position.step]


def unneeded(run_folder: Path, named: Iterable[Position]) -> list[Saved]:
    """The checkpoints of a run that no position in ``named`` is, nor needs to be reached from.

    For each named position its own checkpoint stays; where that is missing, the newest one on the way to it.
    """
    keep: set[tuple[int, str]] = set()
    for position in named:
        newest = next(on_the_way(position), None)
        if newest is not None:
            keep.add((newest.step, newest.tag))
    return [saved for saved in listed(run_folder) if (saved.step, saved.tag) not in keep]


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


__all__ = ["delete", "superseded", "tag_of", "truncated", "unneeded"]
