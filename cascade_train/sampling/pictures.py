"""Pictures from files as ComfyUI's IMAGE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host

if TYPE_CHECKING:
    from torch import Tensor

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")


def chosen(path: str, first: int, count: int, host: Host) -> list[Path]:
    """The files that ``path`` (a file, or a folder's pictures by name) and the range name.

    Raises:
        CascadeError: no such place, or no picture in that range.
    """
    place = host.folders.resolve_read(path, "path")
    if place.is_file():
        return [place]
    files = sorted(each for each in place.iterdir() if each.suffix.lower() in ENDINGS)
    if not files:
        raise CascadeError("there are no pictures", where=str(place), fix=f"Looked for {', '.join(ENDINGS)}")
    taken = files[first : first + count]
    if not taken:
        raise CascadeError(
            f"there is no picture number {first}",
            where=str(place),
            fix=f"The folder has {len(files)}, counted from 0",
        )
    return taken


def stamp(path: str, first: int, count: int, host: Host) -> object:
    """A value that changes when a file that `load_pictures` would read does."""
    try:
        return [
            (str(each), each.stat().st_size, each.stat().st_mtime_ns)
            for each in chosen(path, first, count, host)
        ]
    except (CascadeError, OSError) as error:
        return str(error)


def load_pictures(path: str, first: int, count: int, width: int, height: int, host: Host) -> Tensor:
    """Pictures (N, height, width, 3) in [0, 1], N at most ``count``, scaled to cover and centre cropped.

    Raises:
        CascadeError: see `chosen`; a file that is no picture.
    """
    import torch
    from PIL import Image, ImageOps

    from cascade_train.drawing.paper import to_tensor

    rows = []
    for file in chosen(path, first, count, host):
        try:
            with Image.open(file) as opened:
                upright = ImageOps.exif_transpose(opened).convert("RGB")
        except (OSError, Image.DecompressionBombError) as error:
            raise CascadeError(
                f"'{file.name}' cannot be read as a picture: {error}",
                where=str(file.parent),
                fix="Remove it or save it again",
            ) from error
        rows.append(to_tensor(ImageOps.fit(upright, (width, height), Image.Resampling.LANCZOS)))
    return torch.cat(rows)
