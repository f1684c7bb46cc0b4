"""One process trains a run at a time; a second is told who the first is."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cascade_train.errors import CascadeError
from cascade_train.files import check_own, write_json
from cascade_train.migrations import read_forward, stamped

LOCK = "run.lock"
HOLDER = "holder.json"


@contextmanager
def locked(run_folder: Path) -> Iterator[None]:
    """Hold the run folder's lock; it falls with the process, however that ends.

    Raises:
        CascadeError: another process holds it; the message names its pid, host and start.
    """
    check_own(run_folder)
    run_folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run_folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CascadeError(
            f"this run is being trained by {_holder(run_folder)}",
            where=str(run_folder),
            fix="Wait for it or stop it, then run again: training continues from its last checkpoint",
        ) from None
    try:
        write_json(
            run_folder / HOLDER,
            stamped(
                "holder",
                {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "started": time.strftime("%Y-%m-%d %H:%M:%S"),
                },
            ),
        )
        yield
    finally:
        (run_folder / HOLDER).unlink(missing_ok=True)
        lock.release()


def holder(run_folder: Path) -> str:
    """Who trains the run now, for people; empty when nobody does."""
    lock = FileLock(run_folder / LOCK)
    if not (run_folder / LOCK).exists():
        return ""
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return _holder(run_folder)
    lock.release()
    return ""


def _holder(run_folder: Path) -> str:
    try:
        holder = read_forward(run_folder / HOLDER, "holder")
        return f"process {holder['pid']} on {holder['host']} since {holder['started']}"
    except (OSError, ValueError, KeyError, CascadeError):
        return "another process"
