"""One sample as an index knows it, and how names of files are kept and shown."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

WRITTEN = "_written"
"""A field of the metadata: how cells of a table that are numbers were written (``007``), by column."""


@dataclass(frozen=True)
class Entry:
    """One sample as an index knows it.

    ``name`` is the picture's path relative to its source, ``offset`` and ``size`` its place in bytes, ``crc``
    a checksum of its first and last 4 KiB, ``whole`` names its content where those cannot (`content`).
    ``width`` and ``height`` are upright. ``texts`` maps the endings of text files beside it to what they say,
    ``meta`` is its metadata. ``bad`` is why it cannot be used. ``stamp`` changes when its file does: the
    picture's own times, then a ``|`` and what lies beside it.
    """

    name: str
    size: int = 0
    crc: int = 0
    width: int = 0
    height: int = 0
    texts: str = "{}"
    meta: str = "{}"
    bad: str = ""
    offset: int = 0
    stamp: str = ""
    whole: str = ""
    row: int = -1

    def caption_files(self) -> dict[str, str]:
        out: dict[str, str] = json.loads(self.texts)
        return out

    def metadata(self) -> dict[str, Any]:
        out: dict[str, Any] = json.loads(self.meta)
        return out


def to_blob(name: str) -> bytes:
    """A file name as bytes, names that are not UTF-8 included."""
    return name.encode("utf-8", "surrogateescape")


def from_blob(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def split_ending(name: str) -> tuple[str, str]:
    """``a/b.c.png`` → (``a/b.c``, ``.png``). A leading dot is no ending."""
    dot = name.rfind(".")
    return (name[:dot], name[dot:]) if dot > name.rfind("/") + 1 else (name, "")


def printable(name: str) -> str:
    """A file name as one printable line."""
    errors = "replace" if os.name == "nt" else "surrogateescape"
    text = name.encode("utf-8", errors).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
