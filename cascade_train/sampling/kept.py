"""What was drawn, kept in the cache folder by the name of all it follows from, and read instead of drawn.

Latents lie here one file each (`kept_latents`), pictures of prompts in the same folder (`jobs.drawn`). The
folder is bounded: what was used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.digest import digest
from cascade_train.files import write_with
from cascade_train.host.base import Host
from cascade_train.models.tensor_file import write_file
from cascade_train.sampling.spec import DRAWING

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "drawn"
"""Of the cache folder."""

BOUND = 2 << 30
"""Most bytes of that folder."""

NAME, CONTENT = "cascade_train.drawn", "cascade_train.content"
"""Texts in each file: what it follows from, and the SHA-256 of what it holds."""

_LEFT = 86400.0
"""Seconds after which a half-written file is one that a kill left."""


def kept_latents(host: Host, settings: Mapping[str, Any], make: Callable[[], Tensor]) -> Tensor:
    """What ``make`` draws (fp32, on the CPU), or the same bytes from disk where it was drawn before.

    ``settings`` hold all that it follows from: plain values, and tensors, which count by their content.
    Only one process draws what travels on these links, so nothing has to be agreed on.
    """
    name = digest({"drawing": DRAWING, **{key: _plain(value) for key, value in settings.items()}})
    file = host.folders.cache / FOLDER / f"{name}.safetensors"
    found = _read(file, name)
    if found is not None:
        return found
    drawn = make()
    if host.rank == 0:
        try:
            _write(file, name, drawn)
        except OSError as error:
            told(file, error, host)
        bound(file.parent)
    return drawn


def used(file: Path) -> None:
    """Note that ``file`` was of use, so that others go before it."""
    with suppress(OSError):
        os.utime(file)


def told(file: Path, error: OSError, host: Host) -> None:
    """A file that cannot be written costs itself alone."""
    host.warn(
        f"what was drawn could not be kept in {file} ({error.strerror or error}); it is drawn again next time"
    )


def bound(folder: Path, most: int = BOUND) -> int:
    """Remove what was used longest ago until ``folder`` holds at most ``most`` bytes; how many files went."""
    files: list[tuple[float, int, Path]] = []
    for path in folder.glob("*") if folder.is_dir() else ():
        with suppress(OSError):
            stat = path.stat()
            if not path.name.startswith("."):
                files.append((stat.st_mtime, stat.st_size, path))
            elif time.time() - stat.st_mtime > _LEFT:
                path.unlink()
    total, gone = sum(size for _, size, _ in files), 0
    for _, size, path in sorted(files, key=lambda each: each[0]):
        if total <= most:
            break
        with suppress(OSError):
            path.unlink()
            total, gone = total - size, gone + 1
    return gone


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        return ["tensor", str(value.dtype), list(value.shape), _content(value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(each) for each in value]
    return value


def _content(value: Tensor) -> str:
    return hashlib.sha256(value.detach().cpu().float().contiguous().numpy().tobytes()).hexdigest()


def _write(file: Path, name: str, drawn: Tensor) -> None:
    whole = drawn.detach().cpu().float()
    about = {NAME: name, CONTENT: _content(whole)}
    write_with(file, lambda beside: write_file(beside, {"samples": whole}, about))


def _read(file: Path, name: str) -> Tensor | None:
    """The latents in ``file``; None where it is not there, damaged, or holds others."""
    if not file.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as handle:
            noted = handle.metadata() or {}
            found: Tensor = handle.get_tensor("samples").clone()
    except (OSError, ValueError, RuntimeError, SafetensorError):
        return None
    if noted.get(NAME) != name or noted.get(CONTENT) != _content(found):
        return None
    used(file)
    return found
