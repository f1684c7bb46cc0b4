"""What names a picture's content: cheaply for an index, wholly for everything that is made of it.

An index reads both ends of a file. That tells files apart in practice, but not all of them: in formats whose
size follows from their pixels' number (BMP, uncompressed TIFF and PNG) a picture can be painted over without
its length or its ends changing, so of those the whole is read when they are indexed. Of all others it is
taken when they are first decoded, since their bytes pass by then.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, BinaryIO

from cascade_train.data.entry import Entry
from cascade_train.digest import stream_digest

if TYPE_CHECKING:
    from PIL import Image

EDGE = 4096
"""Bytes read from either end of a file to recognise its content."""

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of a PNG, by its colour type."""


def whole(data: bytes) -> str:
    """Names the content of a file: 32 hex digits of its SHA-256."""
    return hashlib.sha256(data).hexdigest()[:32]


def whole_of(handle: BinaryIO) -> str:
    """`whole` of an open file, from its beginning to its end."""
    handle.seek(0)
    return stream_digest(handle)[:32]


def ends(data: bytes) -> int:
    """The checksum that an index has of a file's first and last `EDGE` bytes."""
    return checksum(data[:EDGE], data[max(0, len(data) - EDGE) :])


def checksum(start: bytes, end: bytes) -> int:
    return zlib.crc32(end, zlib.crc32(start))


def index_key(entry: Entry) -> str:
    """Names a picture's content as far as an index knows it, whatever its file is called: equal pictures have
    equal keys, and other ones nearly always others."""
    return entry.whole or f"{entry.size} {entry.crc:08x} {entry.width}x{entry.height}"


def of_fixed_size(image: Image.Image, start: bytes, size: int) -> bool:
    """Whether another picture of as many pixels could have the same ``size`` and ends.

    ``image`` is opened and not decoded, ``start`` the first bytes of its file. Short files are wholly within
    their ends.
    """
    if size <= 2 * EDGE:
        return False
    if image.format in ("BMP", "DIB", "PPM"):
        return True
    if image.format == "TIFF":
        return image.info.get("compression") == "raw"
    return image.format == "PNG" and _stored(start, size)


def of_free_size(start: bytes, size: int) -> bool:
    """Whether a file surely is no picture `of_fixed_size`, as far as its first bytes alone tell."""
    if start.startswith(b"\x89PNG"):
        return not _stored(start, size)
    return start.startswith((b"\xff\xd8", b"GIF8")) or start[8:12] == b"WEBP" or start[4:8] == b"ftyp"


def _stored(start: bytes, size: int) -> bool:
    """Whether a PNG is as large as its pixels."""
    width, height = int.from_bytes(start[16:20], "big"), int.from_bytes(start[20:24], "big")
    row = -(-width * start[24] * _CHANNELS.get(start[25], 1) // 8) + 1
    return size >= row * height
