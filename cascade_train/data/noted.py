"""Which samples of large sources are used, noted on disk so that they need not be chosen again.

A note is named by all that the choice follows from: the sources' contents, the caption rule, the filters and
what they measure. It is written beside and renamed, and never changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np

from cascade_train.data.choosing import Leaf, choose
from cascade_train.data.report import Tallies
from cascade_train.data.selection import Rows
from cascade_train.digest import digest
from cascade_train.files import written_beside
from cascade_train.host.progress import Progress

_LARGE = 2000
"""Samples from which on the choice among them is noted."""
_FORMAT = 2
_ARRAYS = tuple(field.name for field in fields(Rows))


def choices(leaves: Sequence[Leaf], tallies: Tallies, cache: Path, progress: Progress) -> list[Rows]:
    """What is left of each of ``leaves``, which go through their filters together; counted in ``tallies``."""
    note = _note(leaves, cache)
    known = _read(note, len(leaves)) if note is not None else None
    if known is None:
        mine = Tallies()
        before = [leaf.sieve.unread for leaf in leaves]
        rows = [choose(leaf, mine, progress) for leaf in leaves]
        if note is not None and before == [leaf.sieve.unread for leaf in leaves]:
            _write(note, rows, mine)
        known = rows, mine
    tallies.add(known[1])
    return known[0]


def _note(leaves: Sequence[Leaf], cache: Path) -> Path | None:
    """Where the choice is noted; None where it is not."""
    if sum(len(leaf.reader) for leaf in leaves) < _LARGE or not all(
        leaf.reader.remembered for leaf in leaves
    ):
        return None
    judges: dict[int, int] = {}
    name = digest(
        [
            _FORMAT,
            [
                [leaf.reader.content, leaf.reader.label, leaf.dataset.captions, leaf.sieve.described(judges)]
                for leaf in leaves
            ],
        ]
    )
    return cache / f"selected-{name}.npz"


def _read(note: Path, count: int) -> tuple[list[Rows], Tallies] | None:
    try:
        with np.load(note, allow_pickle=False) as stored:
            rows = [Rows(*(stored[f"{key}{number}"] for key in _ARRAYS)) for number in range(count)]
            return rows, Tallies.from_data(json.loads(str(stored["told"])))
    except Exception:  # whatever damage makes of a zip; its checksums find it
        return None


def _write(note: Path, found: Sequence[Rows], tallies: Tallies) -> None:
    """Note the choice; where the disk is full it is made again the next time."""
    arrays = {f"{key}{number}": getattr(rows, key) for number, rows in enumerate(found) for key in _ARRAYS}
    with suppress(OSError), written_beside(note) as beside, beside.open("wb") as handle:
        np.savez(handle, told=np.array(json.dumps(tallies.data())), **arrays)
