"""What lies beside a tar and travels with it: the sizes of its pictures, so that it is indexed sooner.

Text, a line a picture behind a first one that tells what it is. It may come from a stranger, and the tar may
have been written anew beside it, so all names, captions and checksums are read from the tar itself; a line
counts only for a picture that lies where it says, as long and with the same ends. A size that is a lie makes
its picture a bad one when it is decoded. Nothing else is taken from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cascade_train.data.content import EDGE, checksum
from cascade_train.data.entry import Entry
from cascade_train.data.pixels import MAX_PIXELS
from cascade_train.data.probe import Probe, probe, read_json
from cascade_train.files import write_text

FORMAT = 2
"""Format 1 was a database; those are left alone."""

_IS = "index of a tar"
_MOST_BYTES = 64 << 20
_MOST_LINE = 200


def beside(path: Path) -> Path:
    """Where the sidecar of the tar ``path`` lies."""
    return path.with_name(path.name + ".index")


@dataclass(frozen=True)
class Sidecar:
    """Sizes (width, height) of pictures by (offset, length, checksum of their ends)."""

    sizes: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Why it is not used, for a person."""

    def probe(self, handle: BinaryIO, offset: int, size: int) -> Probe:
        """As `probe.probe` of the picture open as ``handle``, which lies at ``offset``."""
        if self.sizes and size > 2 * EDGE:
            handle.seek(0)
            start = handle.read(EDGE)
            handle.seek(size - EDGE)
            crc = checksum(start, handle.read(EDGE))
            known = self.sizes.get((offset, size, crc))
            if known is not None:
                return Probe(*known, crc)
        return probe(handle, size)


def read_sidecar(path: Path) -> Sidecar:
    """What lies beside the tar ``path``, as far as it can be used."""
    file = beside(path)
    try:
        if not file.is_file():
            return Sidecar()
        if file.stat().st_size > min(_MOST_BYTES, path.stat().st_size):
            return _unused(file, "it is larger than it can be")
        data = file.read_bytes()
    except OSError as error:
        return _unused(file, str(error.strerror or error))
    first, _, rest = data.partition(b"\n")
    try:
        head = read_json(first[:_MOST_LINE].decode("utf-8"))
        if not isinstance(head, dict) or head.get("is") != _IS or head.get("format") != FORMAT:
            return _unused(file, "it is of another format")
        if head.get("digest") != _digest(rest):
            return _unused(file, "it is damaged")
        return Sidecar(dict(_line(line) for line in rest.splitlines()))
    except (ValueError, RecursionError):
        return _unused(file, "it is of another format")


def _unused(file: Path, why: str) -> Sidecar:
    return Sidecar(notes=(f"{file.name} is not used ({why}); the tar is read through instead",))


def _line(line: bytes) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """One picture; ValueError when it is none."""
    numbers: Any = read_json(line.decode("ascii")) if len(line) <= _MOST_LINE else None
    if not isinstance(numbers, list) or len(numbers) != 5 or not all(type(n) is int for n in numbers):
        raise ValueError("no line of a sidecar")
    offset, size, crc, width, height = numbers
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise ValueError("no size of a picture")
    return (offset, size, crc), (width, height)


def write_sidecar(path: Path, entries: Iterable[Entry]) -> None:
    """Write the sidecar of the tar ``path``, whose samples are ``entries``; raises OSError.

    Pictures that an index reads through anyway are left out.
    """
    lines = "".join(
        json.dumps([entry.offset, entry.size, entry.crc, entry.width, entry.height]) + "\n"
        for entry in entries
        if not entry.bad and not entry.whole and entry.size > 2 * EDGE
    )
    head = {"is": _IS, "format": FORMAT, "digest": _digest(lines.encode())}
    write_text(beside(path), json.dumps(head) + "\n" + lines)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
