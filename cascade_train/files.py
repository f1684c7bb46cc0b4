"""Files written beside and renamed, so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """Yield a fresh name beside ``path``; on a clean exit flush it to disk and rename it to ``path``.

    On an exception the half-written file is removed and ``path`` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield beside
        with beside.open("rb+") as handle:
            os.fsync(handle.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def check_own(folder: Path) -> None:
    """See that what is written in ``folder``, a run's, stays beside the other runs.

    Raises:
        CascadeError: the folder, something in it or in its ``checkpoints`` is a link that leads elsewhere.
    """
    home = os.path.realpath(folder.parent)
    for place in (folder, folder / "checkpoints"):
        for path in (str(place), *_links_in(place)):
            real = os.path.realpath(path)
            if real != home and not real.startswith(home.rstrip(os.sep) + os.sep):
                raise CascadeError(
                    f"'{path}' is a link that leads to '{real}': nothing is written through it",
                    where=str(folder),
                    fix="Remove the link; to keep runs elsewhere, choose another output folder",
                )


def _links_in(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def shared(path: Path) -> None:
    """Let others read ``path``: safetensors makes its files private, and what is made here may be shared."""
    path.chmod(0o644)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` in one visible step."""
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
