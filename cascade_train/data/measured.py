"""What was measured of pictures, kept on disk by their content, so that each is decoded once ever.

A folder of small SQLite files. Each is complete from the moment it has its name and never changed
afterwards, so that any number of processes may read and add at once, on network file systems too. When there
are many, whoever adds the next one takes them over into it. A file that is damaged, or gone since another
process took it over, only means that its pictures are measured again.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cascade_train.data.index import close, connection
from cascade_train.files import written_beside

MEASURES = "measures"
"""The folder of the cache that holds them."""

FORMAT = 1
"""In each file's ``user_version``; one of another format is left alone."""

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
        self._fresh: dict[str, dict[str, float]] = {}
        self._lock = threading.RLock()
        self._flushed = time.monotonic()

    def find(self, contents: Sequence[str]) -> dict[str, dict[str, float]]:
        """What is known, by content and then by the measure's key."""
        found: dict[str, dict[str, float]] = {}
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

    def add(self, content: str, values: Mapping[str, float]) -> None:
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
                with written_beside(self.folder / name) as beside:
                    _write(beside, fresh, taken)
            except (OSError, sqlite3.Error) as error:
                self.trouble = f"{getattr(error, 'strerror', None) or error}"
                return
            for path in taken:
                close(path)
                try:
                    path.unlink(missing_ok=True)
                except OSError:  # another process reads it (Windows)
                    continue

    def _files(self) -> list[Path]:
        return [path for path in sorted(self.folder.glob("*.sqlite")) if not path.name.startswith(".")]


def _rows(path: Path, where: str = "", values: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """The rows of one file; none where it is damaged or gone."""
    try:
        database = connection(path)
        if database.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
            yield from database.execute(f"SELECT content, measure, value FROM measured {where}", values)
    except sqlite3.Error:
        close(path)


def _write(beside: Path, fresh: Mapping[str, Mapping[str, float]], taken: Sequence[Path]) -> None:
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
