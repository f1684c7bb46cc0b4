"""Which way up a picture is. One reader decides for the index and for the pixels."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from cascade_train.rasters import open_raster

if TYPE_CHECKING:
    from PIL import Image

_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
"""Orientations that swap width and height."""
_WIDTH, _HEIGHT = 256, 257
"""Tags of a TIFF."""
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_SAYS = re.compile(rb"tiff:Orientation(?:\s*=\s*[\"']|>)([1-8])")
_MOST_CHUNK, _MOST_CHUNKS = 8 << 20, 8 << 20
"""Bytes of a PNG's chunks beside its pixels, each and together, that are looked through."""


def orientation(image: Image.Image) -> int:
    """1 … 8 as EXIF counts them; 1 where nothing says it, or what does is damaged.

    EXIF's tag (TIFF's is the same) goes before XMP's ``tiff:Orientation``. ``image`` has been opened and not
    yet decoded; what lies behind a PNG's pixels counts as well, without decoding them.
    """
    try:
        if image.format == "PNG" and "exif" not in image.info:
            image = _described(image.fp, image)  # type: ignore[attr-defined]
        value = int(_exif(image).get(_ORIENTATION) or _jpeg_xmp(image) or 1)
    except Exception:
        return 1
    return value if 1 <= value <= 8 else 1


def _exif(image: Image.Image) -> Any:
    """What Pillow reads of EXIF and XMP, without the decoding that it does for a PNG."""
    from PIL import Image as image_module

    return image_module.Image.getexif(image)


def _jpeg_xmp(image: Image.Image) -> int:
    """What a JPEG's XMP says, which later versions of Pillow read themselves; 0 where it says nothing."""
    for marker, content in getattr(image, "applist", ()):
        if marker == "APP1" and content.startswith(_XMP):
            found = _XMP_SAYS.search(content)
            return int(found[1]) if found else 0
    return 0


def _described(handle: BinaryIO, image: Image.Image) -> Image.Image:
    """A PNG as ``image``, of which ``handle`` is the file, with all its descriptions before its pixels."""
    place = handle.tell()
    try:
        handle.seek(0)
        start = handle.read(33)
        before, total = [start], 0
        while len(head := handle.read(8)) == 8:
            length, kind = int.from_bytes(head[:4], "big"), head[4:]
            if kind in (b"eXIf", b"iTXt", b"zTXt", b"tEXt"):
                total += length
                if length > _MOST_CHUNK or total > _MOST_CHUNKS:
                    break
                before.append(head + handle.read(length + 4))
            elif kind == b"IEND":
                break
            else:
                handle.seek(length + 4, io.SEEK_CUR)
        if len(before) == 1:
            return image
        empty = b"\0\0\0\0IDAT\x35\xaf\x06\x1e"
        return open_raster(b"".join((*before, empty)))
    finally:
        handle.seek(place)


def stored_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) as the file has it, before it is turned."""
    tags = getattr(image, "tag_v2", None)
    if image.format == "TIFF" and tags is not None and _WIDTH in tags and _HEIGHT in tags:
        return int(tags[_WIDTH]), int(tags[_HEIGHT])  # newer versions of Pillow turn the size of a TIFF
    return image.width, image.height


def upright_size(image: Image.Image, turn: int | None = None) -> tuple[int, int]:
    """(width, height) of an opened picture once it is turned, by ``turn`` if its `orientation` is known."""
    width, height = stored_size(image)
    swapped = (orientation(image) if turn is None else turn) in _TURNED
    return (height, width) if swapped else (width, height)


def left_to_turn(image: Image.Image, before: int) -> int:
    """The orientation that is left to apply once ``image``, whose orientation was ``before``, is decoded:
    Pillow turns a TIFF itself, in most versions, and then says so."""
    if image.format != "TIFF":
        return before
    try:
        value = int(image.getexif().get(_ORIENTATION, 1))
    except Exception:
        return 1
    return value if 1 <= value <= 8 else 1


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (H, W, 3) upright, contiguous."""
    if orientation == 1:
        return pixels
    if orientation in (3, 4, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7):
        pixels = pixels[:, ::-1]
    if orientation in (5, 7):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (6, 8):
        pixels = np.rot90(pixels, -1 if orientation == 6 else 1)
    return np.ascontiguousarray(pixels)
