"""Links inside a folder of pictures: those that lead out of the allowed folders are told, not followed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_train.files import lies_below

Roots = tuple[str, ...] | None
"""The real paths of the folders that links must not lead out of (`Folders.link_roots`); None: they may."""


@dataclass(frozen=True)
class Linked:
    """A link that is left alone, by its name in the folder that is listed."""

    name: str


def leads_outside(entry: os.DirEntry[str], roots: Roots) -> bool:
    """Whether ``entry`` is a link (on Windows also a junction) out of all ``roots``."""
    if roots is None:
        return False
    junction = getattr(entry, "is_junction", None)
    if not entry.is_symlink() and not (junction is not None and junction()):
        return False
    real = os.path.realpath(entry.path)
    return not any(lies_below(real, root) for root in roots)


def told(count: int, names: Sequence[str]) -> str:
    """The warning about ``count`` links, of which ``names`` are some."""
    shown = ", ".join(names) + (f", and {count - len(names)} more" if count > len(names) else "")
    what = "1 link that leads" if count == 1 else f"{count} links that lead"
    return f"{what} outside the allowed folders, not followed: {shown} (--follow-links follows them)"
