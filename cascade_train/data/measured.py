"""What was measured of pictures, kept on disk by their content, so that each is decoded once ever.

A folder of small SQLite files, sealed: each is complete from the moment it has its name and never changed
afterwards, so that any number of processes may read and add at once, on network file systems too. When there
are many, whoever adds the next one takes them over into it. A file that is damaged, or gone since another
process took it over, only means that its pictures are measured again.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.data.index import close, connection, remove
from cascade_train.data.sealed import seal, sound, sweep

MEASURES = "measures"
"""The folder of the cache that holds them."""

FORMAT = 2
"""In each file's ``user_version``; what is in one of another format is found out again."""

_MOST_FILES = 6
_FLUSH_COUNT, _FLUSH_SECONDS = 4096, 30.0
_ASKED = 500
"""Keys in one question: SQLite takes no more than 999 values on old systems."""


class MeasureStore:
    """Results by content and measure. Safe from many threads; what is added is on disk after `flush`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""
        """Why nothing could be written (disk full, no permission); "" while all is well."""
        self.lost = 0
        """Files that were damaged, or of an earlier version, and are gone."""
        self._fresh: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._flushed = time.monotonic()

    def find(self, contents: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What is known, by content and then by the measure's key."""
        found: dict[str, dict[str, Any]] = {}
        for path in self._files():
            for first in range(0, len(contents), _ASKED):
                asked = contents[first : first + _ASKED]
                marks = ",".join("?" * len(asked))
                for content, measure, value in _rows(path, f"WHERE content IN ({marks})", asked):
                    found.setdefault(content, {})[measure] = json.loads(value)
        with self._lock:
            for content in contents:
                if content in self._fresh:
                    found.setdefault(content, {}).update(self._fresh[content])
        return found

    def add(self, content: str, values: Mapping[str, Any]) -> None:
        """Keep ``values``, by measure, of the picture ``content``."""
        with self._lock:
            self._fresh.setdefault(content, {}).update(values)
            if len(self._fresh) >= _FLUSH_COUNT or time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self.flush()

    def flush(self) -> None:
        """Write what is new. A disk that is full ends the writing, not the work."""
        with self._lock:
            self._flushed = time.monotonic()
            fresh, self._fresh = self._fresh, {}
            if not fresh or self.trouble:
                return
            known = self._files()
            taken = known if len(known) >= _MOST_FILES else []
            name = f"{time.time_ns():019d}-{os.getpid()}-{secrets.token_hex(3)}.sqlite"
            try:
                sweep(self.folder)
                seal(self.folder / name, lambda beside: _write(beside, fresh, taken))
            except (OSError, sqlite3.Error) as error:
                self.trouble = f"{getattr(error, 'strerror', None) or error}"
                return
            for path in taken:
                remove(path)

    def _files(self) -> list[Path]:
        out = []
        for path in sorted(self.folder.glob("*.sqlite")):
            if path.name.startswith("."):
                continue
            if sound(path):
                out.append(path)
            elif path.exists():
                self.lost += 1
                remove(path)
        return out


_OPEN: dict[Path, MeasureStore] = {}
_OPEN_LOCK = threading.Lock()


def opened(folder: Path) -> MeasureStore:
    """This process's store in ``folder``; what is added is on disk when the process ends."""
    with _OPEN_LOCK:
        if folder not in _OPEN:
            _OPEN[folder] = MeasureStore(folder)
            atexit.register(_OPEN[folder].flush)
        return _OPEN[folder]


def flush_all() -> None:
    """Write what is new in every store that `opened` gave."""
    with _OPEN_LOCK:
        stores = list(_OPEN.values())
    for store in stores:
        store.flush()


def _rows(path: Path, where: str = "", values: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """The rows of one file; none where it is damaged or gone."""
    try:
        database = connection(path)
        if database.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
            yield from database.execute(f"SELECT content, measure, value FROM measured {where}", values)
    except sqlite3.Error:
        close(path)


def _write(beside: Path, fresh: Mapping[str, Mapping[str, Any]], taken: Sequence[Path]) -> None:
    database = sqlite3.connect(beside)
    try:
        database.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA user_version={FORMAT};"
            "CREATE TABLE measured(content TEXT, measure TEXT, value TEXT, PRIMARY KEY(content, measure))"
            " WITHOUT ROWID;"
        )
        database.execute("BEGIN")
        put = "INSERT OR REPLACE INTO measured VALUES (?,?,?)"
        for path in taken:
            database.executemany(put, _rows(path))
        database.executemany(
            put,
            (
                (content, measure, json.dumps(value))
                for content, values in fresh.items()
                for measure, value in values.items()
            ),
        )
        database.commit()
    finally:
        database.close()
