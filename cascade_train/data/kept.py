"""Which index of a source is up to date, and what is carried over from the one before.

An index is named by its source and the state that it was made in: names, sizes and times of files. When the
state is another one, pictures whose own times changed are read through, and compared with what they were when
they were first read (`contents`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cascade_train.data.content import EDGE, whole_of
from cascade_train.data.contents import Contents, file_key
from cascade_train.data.entry import Entry
from cascade_train.data.index import Index, find, older, remove_others, write_entries
from cascade_train.data.sealed import sweep

Make = Callable[["Before"], "tuple[Iterator[Entry], dict[str, Any]]"]
"""Makes the entries of an index, and its facts, which may be filled while the entries go by."""


class Before:
    """What is known of a source from before, while its index is made anew. Safe from many threads."""

    def __init__(self, cache: Path, index: Index | None, place: str) -> None:
        self._cache, self._index, self._place = cache, index, place
        self._changed: list[tuple[str, str, str]] = []
        self._lock = threading.Lock()

    def unchanged(self, name: str, size: int, stamp: str) -> Entry | None:
        """The entry of a picture that has this size and ``stamp`` still."""
        old = self._index.named(name) if self._index is not None else None
        return old if old is not None and (old.size, old.stamp) == (size, stamp) else None

    def looked_at(self, entry: Entry, handle: BinaryIO) -> None:
        """Read the picture through, open as ``handle``, if its times are not what they were."""
        if self._index is None or entry.bad or entry.whole or entry.size <= 2 * EDGE:
            return
        old = self._index.named(entry.name)
        if old is None or (old.size, old.crc) != (entry.size, entry.crc):
            return
        if entry.stamp and old.stamp.partition("|")[0] == entry.stamp.partition("|")[0]:
            return
        found = entry.name, file_key(self._place, entry), whole_of(handle)
        with self._lock:
            self._changed.append(found)

    def settled(self, content: str) -> None:
        """CascadeError when a picture is not what the dataset ``content`` was named with."""
        Contents(self._cache, self._place, content).settle(self._changed)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()


def kept(cache: Path, key: str, state: str, place: str, label: str, make: Make) -> Index:
    """The index in the folder ``cache`` of what ``key`` names in this ``state``; made where there is none.

    ``place`` is where the source lies, with all that changes when it is replaced as one (`Contents`);
    ``label`` is what people know it by.

    Raises:
        CascadeError: it cannot be written, or a picture is no longer what the dataset was named with.
    """
    path = cache / f"{key}-{state}.sqlite"
    known, damaged = find(path)
    if known is None:
        sweep(cache)
        old = older(cache, key)
        damaged = damaged or (old is None and any(cache.glob(f"{key}-*.sqlite")))
        before = Before(cache, old, place)
        try:
            entries, facts = make(before)
            made = write_entries(path, entries, facts, before.settled)
        finally:
            before.close()
        known = Index(made)
        remove_others(cache, key, made)
    if damaged:
        known.notes = (f"the index of {label} was damaged or of another version, and was made anew",)
    return known
