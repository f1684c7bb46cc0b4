"""Files written beside and renamed, so that a reader never sees half of one; failures told in a line."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError

PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")
"""What a file is called until it is whole."""

_FULL = {
    errno.ENOSPC: "the disk is full",
    getattr(errno, "EDQUOT", -1): "the quota on this disk is used up",
    errno.EFBIG: "the file is larger than files may be here",
}
_CAUSES = {
    **_FULL,
    errno.EROFS: "the disk can only be read",
    errno.EACCES: "writing is not permitted",
    errno.EPERM: "writing is not permitted",
    errno.EIO: "the disk fails",
    errno.ENAMETOOLONG: "the name is too long",
}


class NotWritten(CascadeError, OSError):
    """A file that could not be written: the cause and the path in one line. It is the system's error too, for
    those who have an answer to that."""

    def __init__(self, path: Path, error: OSError) -> None:
        code = error.errno or 0
        cause = _CAUSES.get(code) or error.strerror or str(error)
        fix = "Free space" if code in _FULL else "Choose another output folder"
        what = f"{path.name} cannot be written: {cause}"
        super().__init__(what, where=str(path), fix=f"{fix} and run again")
        self.errno, self.strerror, self.filename = error.errno, cause, str(path)


@contextmanager
def telling(path: Path, *also: Path) -> Iterator[None]:
    """Within the block, a failure of the system to write ``path`` (under that name or those of ``also``) is a
    `NotWritten`; others pass."""
    try:
        yield
    except NotWritten:
        raise
    except OSError as error:
        about = {str(each) for each in (path, path.parent, *also)}
        full = error.errno in _FULL
        if full or (error.errno in _CAUSES and str(error.filename) in about):
            raise NotWritten(path, error) from error
        raise


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yield a fresh name beside ``path``; on a clean exit flush it to disk and rename it to ``path``.

    On an exception the half-written file is removed and ``path`` is as it was. Of a process that is killed
    the half stays, until `sweep_parts`.

    Raises:
        NotWritten: the disk is full, or may not be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with telling(path, beside):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _claimed(beside):
                yield beside
                with beside.open("rb+") as handle:
                    os.fsync(handle.fileno())
                beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def sweep_parts(*folders: Path) -> int:
    """Remove the files in ``folders`` that processes were killed over; returns how many. What somebody is
    writing at this moment stays."""
    count = 0
    for folder in folders:
        try:
            found = [Path(each) for each in os.scandir(folder) if PART.fullmatch(each.name)]
        except OSError:
            continue
        for part in found:
            with suppress(OSError):
                if part.is_file() and not _in_use(part):
                    part.unlink()  # elsewhere than on POSIX it cannot be removed while it is open
                    count += 1
    return count


@contextmanager
def _claimed(part: Path) -> Iterator[None]:
    """Within the block ``part`` is seen to be in use: by a lock on POSIX, elsewhere by being open."""
    if os.name != "posix":
        yield
        return
    import fcntl

    while True:
        handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # a file system without locks: there nothing is swept
            fcntl.flock(handle, fcntl.LOCK_EX)
        if part.exists():
            break
        os.close(handle)  # it was swept between the two
    try:
        yield
    finally:
        os.close(handle)


def _in_use(part: Path) -> bool:
    if os.name != "posix":
        return False
    import fcntl

    handle = os.open(part, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def check_own(folder: Path) -> None:
    """See that what is written in ``folder``, a run's, stays beside the other runs.

    Raises:
        CascadeError: the folder, something in it or in its ``checkpoints`` is a link that leads elsewhere.
    """
    home = os.path.realpath(folder.parent)
    for place in (folder, folder / "checkpoints"):
        for path in (str(place), *_links_in(place)):
            real = os.path.realpath(path)
            if not lies_below(real, home):
                raise CascadeError(
                    f"'{path}' is a link that leads to '{real}': nothing is written through it",
                    where=str(folder),
                    fix="Remove the link; to keep runs elsewhere, choose another output folder",
                )


def lies_below(real: str, root: str) -> bool:
    """Whether the real path ``real`` is the real folder ``root`` or lies below it."""
    return real == root or real.startswith(root.rstrip(os.sep) + os.sep)


def _links_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def shared(path: Path) -> None:
    """Let others read ``path``: some libraries make files private, and what is made here may be shared."""
    path.chmod(0o644)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` in one visible step; raises as `written_beside` does, and so do all here."""
    with written_beside(path) as beside:
        beside.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 ``text`` to ``path`` in one visible step, newlines as they are."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON to ``path`` in one visible step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_with(path: Path, writer: Callable[[Path], object]) -> None:
    """Let ``writer`` fill a file beside ``path``, then rename it to ``path``."""
    with written_beside(path) as beside:
        writer(beside)
