"""The formats that pictures are decoded from, in one place, and the one way to open a picture file.

Pillow finds a format by a file's content, whatever its name says, and some of what it knows are programs:
PostScript (EPS) is handed to Ghostscript and run. So it is only ever asked for these. Who decodes by other
means (OpenCV) asks here first what a file is.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "HEIF", "PPM")
"""Pillow's names of formats that hold pixels and nothing else. HEIF comes with pillow-heif, where a person
has it; AVIF with Pillow 11.3 and later."""

EXTENSIONS = (
    *("jpg", "jpeg", "jpe", "jfif", "webp", "avif", "heic", "heif"),
    *("png", "tif", "tiff", "bmp", "gif"),
)
"""File name endings that are taken for pictures. Where several pictures have one name, the first of these is
meant: photographs come in the front ones, masks and depth maps in those behind."""


@cache
def _pillow() -> tuple[Any, tuple[str, ...]]:
    """Pillow's module, and those of `FORMATS` that it has here."""
    from PIL import Image

    try:
        import pillow_heif

        pillow_heif.register_heif_opener()
    except ImportError:
        pass
    Image.init()
    return Image, tuple(name for name in FORMATS if name in Image.OPEN)


def open_raster(source: bytes | BinaryIO | Path) -> Image.Image:
    """The undecoded picture in ``source``; raises what ``PIL.Image.open`` does, for other formats too."""
    image_module, formats = _pillow()
    handle = io.BytesIO(source) if isinstance(source, bytes) else source
    image: Image.Image = image_module.open(handle, formats=formats)
    return image
