"""Files whose names carry a digest of what is in them: damage is noticed before anything is read from one.

They are written once and never changed, so a file whose content and name disagree is damaged, however long
it is and whatever its format still lets a reader read.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from cascade_train.digest import file_digest

_DIGITS = 24
LEFT_SECONDS = 3600.0
"""Half-written files that nobody touched for so long were left by a process that was killed."""


def seal(path: Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a new file and give it the name ``path`` with a digest before its ending.

    Returns the whole name. On an exception nothing is left. Raises what ``write`` does, and OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write(beside)
        with beside.open("rb+") as handle:
            os.fsync(handle.fileno())
        final = path.with_name(f"{path.stem}.{_digest(beside)}{path.suffix}")
        beside.replace(final)
    finally:
        beside.unlink(missing_ok=True)
    return final


def sealed(path: Path) -> list[Path]:
    """The files that were sealed under the name ``path``."""
    stem = glob.escape(f"{path.stem}.")
    return sorted(path.parent.glob(f"{stem}{'?' * _DIGITS}{glob.escape(path.suffix)}"))


def sound(path: Path) -> bool:
    """Whether ``path`` holds what it was sealed with; each state of a file is read through once."""
    try:
        status = path.stat()
        return _sound(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    except OSError:
        return False


@lru_cache(maxsize=1 << 14)
def _sound(path: Path, size: int, modified: int, changed: int) -> bool:
    return path.stem.rpartition(".")[2] == _digest(path)


def _digest(path: Path) -> str:
    return file_digest(path)[:_DIGITS]


def sweep(folder: Path) -> None:
    """Remove half-written files, and folders, in ``folder`` that a killed process left."""
    for path in folder.glob(".*.part"):
        try:
            if time.time() - path.stat().st_mtime > LEFT_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:  # gone, or not ours to remove
            continue
