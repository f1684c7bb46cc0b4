"""Pictures from files as ComfyUI's IMAGE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host

if TYPE_CHECKING:
    from torch import Tensor


def chosen(path: str, first: int, count: int, host: Host) -> list[Path]:
    """The files that ``path`` (a file, or a folder's pictures by name) and the range name.

    Raises:
        CascadeError: no such place, or no picture in that range.
    """
    place = host.folders.resolve_read(path, "path")
    if place.is_file():
        return [place]
    from cascade_train.data.names import is_picture
    from cascade_train.data.pixels import EXTENSIONS

    there = sorted(
        each for each in place.iterdir() if is_picture(each.name) and not each.name.startswith(".")
    )
    files = [each for each in there if host.folders.follow_links or host.folders.may_read(each)]
    if len(files) < len(there):
        host.warn(
            f"{len(there) - len(files)} of the {len(there)} pictures in {place.name} are links that lead "
            "outside the allowed folders and are left out (--follow-links follows them)"
        )
    if not files:
        looked = ", ".join(sorted(EXTENSIONS))
        raise CascadeError("there are no pictures", where=str(place), fix=f"Looked for {looked}")
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

    They are read as for training (`data.pixels`): upright, sRGB, on white where they are transparent.

    Raises:
        CascadeError: see `chosen`; a file that is no picture.
    """
    import torch

    from cascade_train.data.pixels import BadImage, cover_size, decode, fit, open_image, upright_size

    rows = []
    for file in chosen(path, first, count, host):
        try:
            data = file.read_bytes()
            need = cover_size(*upright_size(open_image(data)), width, height)
            pixels = decode(data, need=need)
        except (BadImage, OSError) as error:
            raise CascadeError(
                f"'{file.name}' cannot be read as a picture: {error}",
                where=str(file.parent),
                fix="Remove it or save it again",
            ) from error
        rows.append(torch.tensor(fit(pixels, width, height)))
    return torch.stack(rows).float() / 255
