"""An index on disk of one source's samples: written once, then read by row, in constant memory.

A SQLite file, sealed: complete from the moment it has its name and never changed afterwards, so any number of
processes may read it, on network file systems too, and a damaged one is noticed before it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cascade_train.data.entry import Entry, from_blob, to_blob
from cascade_train.data.sealed import seal, sealed, sound
from cascade_train.errors import CascadeError

FORMAT = 2
_CONTENT = 1
"""The number in a source's content, which names runs: it stays when only the file's format changes."""
_PAGE = 1024
_COLUMNS = ("name", "size", "crc", "width", "height", "texts", "meta", "bad", "offset", "stamp", "whole")


def write_entries(
    path: Path,
    entries: Iterable[Entry],
    facts: dict[str, Any],
    settled: Callable[[str], None] = lambda content: None,
) -> Path:
    """Write ``entries``, in order, and ``facts`` (JSON values) to a new index sealed under the name ``path``.

    The fact ``content`` is made here: a digest of names, sizes, checksums, captions and metadata, and of the
    whole of those pictures that these cannot tell apart. ``settled`` is told it, and may raise: then nothing
    is written.

    Raises:
        CascadeError: it cannot be written.
    """

    def write(beside: Path) -> None:
        database = sqlite3.connect(beside)
        try:
            settled(_fill(database, entries, facts))
        finally:
            database.close()

    try:
        return seal(path, write)
    except (OSError, sqlite3.Error) as error:
        raise CascadeError(
            f"the dataset's index cannot be written: {getattr(error, 'strerror', None) or error}",
            where=str(path.parent),
            fix="Make room there, or choose another output folder",
        ) from error


def _fill(database: sqlite3.Connection, entries: Iterable[Entry], facts: dict[str, Any]) -> str:
    """Write all rows; the content that they are."""
    content = hashlib.sha256(f"index {_CONTENT}".encode())
    database.executescript(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        "CREATE TABLE samples(id INTEGER PRIMARY KEY, name BLOB, size INTEGER, crc INTEGER,"
        " width INTEGER, height INTEGER, texts TEXT, meta TEXT, bad TEXT, offset INTEGER,"
        " stamp TEXT, whole TEXT);"
        "CREATE TABLE facts(name TEXT PRIMARY KEY, value TEXT);"
    )
    database.execute("BEGIN")
    for row, entry in enumerate(entries):
        name = to_blob(entry.name)
        size = b"%d %d" % (entry.size, entry.crc) + (f" {entry.whole}".encode() if entry.whole else b"")
        for part in (name, size, entry.texts.encode("utf-8"), entry.meta.encode("utf-8")):
            content.update(b"%d:" % len(part) + part)
        database.execute(
            "INSERT INTO samples VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                row,
                name,
                entry.size,
                entry.crc,
                entry.width,
                entry.height,
                entry.texts,
                entry.meta,
                entry.bad,
                entry.offset,
                entry.stamp,
                entry.whole,
            ),
        )
    named = content.hexdigest()[:32]
    database.executemany(
        "INSERT INTO facts VALUES (?,?)",
        [(key, json.dumps(value)) for key, value in {**facts, "format": FORMAT, "content": named}.items()],
    )
    database.commit()
    database.execute("CREATE INDEX by_name ON samples(name)")
    database.commit()
    return named


_OPEN = threading.local()
_MOST_OPEN = 8
"""Connections that a thread keeps; with thousands of shards, one for each would run out of files."""


def connection(path: Path) -> sqlite3.Connection:
    """This thread's connection to the SQLite file at ``path``, which never changes once it has its name."""
    if _OPEN.__dict__.get("process") != os.getpid():  # a forked child leaves its parent's alone
        _OPEN.__dict__.update(process=os.getpid(), known=OrderedDict())
    known: OrderedDict[Path, sqlite3.Connection] = _OPEN.known
    if path in known:
        known.move_to_end(path)
    else:
        known[path] = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        while len(known) > _MOST_OPEN:
            known.popitem(last=False)[1].close()
    return known[path]


def close(path: Path) -> None:
    """Close this thread's connection to ``path``, so that the file may go."""
    known = _OPEN.__dict__.get("known", {}).pop(path, None)
    if known is not None:
        known.close()


def find(path: Path) -> tuple[Index | None, bool]:
    """The sound index sealed under ``path``, and whether a damaged one was there, which is removed."""
    damaged = False
    for candidate in sealed(path):
        if sound(candidate):
            try:
                return Index(candidate), damaged
            except sqlite3.Error:
                close(candidate)
        damaged = True
        remove(candidate)
    return None, damaged


def remove(path: Path) -> None:
    """Let an index go, where nobody keeps it."""
    close(path)
    try:
        path.unlink(missing_ok=True)
    except OSError:  # another process reads it (Windows)
        return


def older(cache: Path, key: str) -> Index | None:
    """A sound index of what ``key`` names, of some earlier state."""
    for path in sorted(cache.glob(f"{key}-*.sqlite")):
        if sound(path):
            try:
                return Index(path)
            except sqlite3.Error:
                close(path)
    return None


def remove_others(cache: Path, key: str, keep: Path) -> None:
    """Remove the indexes of what ``key`` names, but for ``keep``."""
    for path in cache.glob(f"{key}-*.sqlite"):
        if path != keep:
            remove(path)


class Index:
    """A written index. Rows count from 0 to ``len`` − 1; safe from many threads."""

    notes: tuple[str, ...] = ()
    """What a person is told of how it came to be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, Any] = {
            name: json.loads(value) for name, value in self._query("SELECT name, value FROM facts")
        }
        if self.facts.get("format") != FORMAT:
            raise sqlite3.DatabaseError(f"{path} has another format")
        self._count = int(self._query("SELECT COUNT(*) FROM samples").fetchone()[0])

    def _query(self, text: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return connection(self.path).execute(text, values)

    def close(self) -> None:
        """Close this thread's connection, so that the file may go."""
        close(self.path)

    @property
    def content(self) -> str:
        return str(self.facts["content"])

    def __len__(self) -> int:
        return self._count

    def row(self, row: int) -> Entry:
        """One row; CascadeError when the index was removed or damaged meanwhile."""
        try:
            found = self._query(f"SELECT {','.join(_COLUMNS)}, id FROM samples WHERE id=?", (row,)).fetchone()
        except sqlite3.Error as error:
            raise CascadeError(
                f"the dataset's index cannot be read ({error})",
                where=str(self.path),
                fix="Run again: the index is made anew, and the run goes on where it was",
            ) from error
        return self._entry(found)

    def rows(self) -> Iterator[Entry]:
        """All rows in order."""
        for first in range(0, self._count, _PAGE):
            found = self._query(
                f"SELECT {','.join(_COLUMNS)}, id FROM samples WHERE id >= ? AND id < ? ORDER BY id",
                (first, first + _PAGE),
            ).fetchall()
            yield from map(self._entry, found)

    def named(self, name: str) -> Entry | None:
        found = self._query(
            f"SELECT {','.join(_COLUMNS)}, id FROM samples WHERE name=?", (to_blob(name),)
        ).fetchone()
        return self._entry(found) if found else None

    @staticmethod
    def _entry(found: tuple[Any, ...]) -> Entry:
        return Entry(from_blob(found[0]), *found[1:])
