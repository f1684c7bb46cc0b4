"""What exported files are called: names that every system takes, and no two files of an export share."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from cascade_train.errors import CascadeError

LONGEST = 150
"""UTF-8 bytes of a name that a person gives. File systems take 255; the rest is for a token's name, the
ending and what marks a file that is being written."""

TOKEN = 60
"""UTF-8 bytes that a token's own name takes in a file's name."""

_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])\s*(\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r'[<>:"|?*]')


def check_name(name: str, what: str = "filename") -> None:
    """Refuse a name that some system does not take; ``/`` and ``\\`` part folders.

    Raises:
        CascadeError: a part of it is too long, reserved on Windows, or holds signs that Windows forbids.
    """
    for part in PurePosixPath(name.replace("\\", "/")).parts:
        if part in ("/", ".", ".."):
            continue
        if len(part.encode("utf-8", "surrogatepass")) > LONGEST:
            raise CascadeError(
                f"the {what} '{part[:40]}…' is too long: {len(part.encode('utf-8', 'surrogatepass'))} bytes",
                fix=f"Use {LONGEST} at most; letters beyond a to z take 2 to 4 each",
            )
        if _RESERVED.fullmatch(part):
            raise CascadeError(
                f"the {what} '{part}' is the name of a device on Windows",
                fix="Use another, so that the graph runs everywhere",
            )
        bad = _FORBIDDEN.search(part)
        if bad or part != part.rstrip(". "):
            sign = f"the sign {bad[0]}" if bad else "a dot or a space at the end"
            raise CascadeError(
                f"the {what} '{part}' has {sign}, which Windows does not take",
                fix="Leave it out, so that the graph runs everywhere",
            )


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written where it is to go, as far as that can be seen now.

    Raises:
        CascadeError: there is a folder of that name, a file where a folder should be, or no permission.
    """
    if path.is_dir():
        raise CascadeError(f"{path.name} is a folder", where=str(path), fix="Choose another filename")
    above = next((parent for parent in path.parents if parent.exists()), None)
    if above is not None and not above.is_dir():
        raise CascadeError(f"{above.name} is a file", where=str(above), fix="Choose another folder")
    if above is not None and not os.access(above, os.W_OK):
        raise CascadeError(
            "writing is not permitted there", where=str(above), fix="Choose another output folder"
        )


def cut(text: str, most: int) -> str:
    """The start of ``text`` that takes ``most`` UTF-8 bytes at most."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def dashed(text: str) -> str:
    """``text`` with everything but letters, digits, - and _ as -."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in text)


def word(entry: str) -> str:
    """The word that a vocabulary entry stands for: ``[circle]`` and ``circle</w>`` → ``circle``."""
    return entry.removesuffix("</w>").strip("[]")


def token_names(entries: Sequence[str]) -> list[str]:
    """A part of a file's name for each trained ``entry`` of a vocabulary; no two are one, whatever a file
    system thinks of case and accents.

    An entry's word is kept where a file can be called so and none before it is; else a few digits of the
    entry's digest follow.
    """
    shown = [cut(dashed(word(entry)), TOKEN) or "token" for entry in entries]
    first: dict[str, int] = {}
    for index in sorted(range(len(entries)), key=lambda index: shown[index] != word(entries[index])):
        first.setdefault(_same(shown[index]), index)
    out = [""] * len(entries)
    taken = set(first)
    for index in first.values():
        out[index] = shown[index]
    for index, entry in enumerate(entries):
        digits = hashlib.sha256(entry.encode("utf-8", "surrogatepass")).hexdigest()
        length = 6
        while not out[index]:
            name = f"{shown[index]}-{digits[:length]}"
            if _same(name) not in taken or length >= len(digits):
                taken.add(_same(name))
                out[index] = name
            length += 2
    return out


def _same(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
