"""Which way is up: index and pixels agree for every format, place and number of an orientation."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from cascade_train.data.pixels import BadImage, decode
from cascade_train.data.probe import probe

from .conftest import encoded

XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description rdf:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="{}"/>'
    "</rdf:RDF></x:xmpmeta>"
)
RED_IS = {1: "left", 2: "right", 3: "right", 4: "left", 5: "top", 6: "top", 7: "bottom", 8: "bottom"}
"""Where the red side of a picture with red on its left lies once it is upright."""


def sided() -> Image.Image:
    """Wide, red on the left, with a white corner at the top left, so that no turn looks like another."""
    pixels = np.zeros((96, 192, 3), np.uint8)
    pixels[:, :64] = (255, 0, 0)
    pixels[:32, :32] = (255, 255, 255)
    return Image.fromarray(pixels)


def exif(number: int) -> Image.Exif:
    out = Image.Exif()
    out[0x0112] = number
    return out


def png_with(kind: bytes, content: bytes, behind: bool) -> bytes:
    """A PNG with one more chunk, before its pixels or behind them."""
    data = encoded(sided())
    chunk = len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
    at = data.index(b"IEND") - 4 if behind else 33
    return data[:at] + chunk + data[at:]


def xmp_text(number: int) -> bytes:
    return b"XML:com.adobe.xmp\0\0\0\0\0" + XMP.format(number).encode()


def jpeg_xmp(number: int, **options: Any) -> bytes:
    """A JPEG with an APP1 segment of XMP behind what Pillow writes first (older ones write no XMP)."""
    data = encoded(sided(), "JPEG", quality=95, **options)
    content = b"http://ns.adobe.com/xap/1.0/\0" + XMP.format(number).encode()
    at = 2
    while data[at + 1] in (0xE0, 0xE1):
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:at] + b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + data[at:]


WAYS: dict[str, Callable[[int], bytes]] = {
    "jpeg exif": lambda n: encoded(sided(), "JPEG", quality=95, exif=exif(n)),
    "jpeg xmp": jpeg_xmp,
    "tiff tag": lambda n: encoded(sided(), "TIFF", exif=exif(n)),
    "tiff lzw": lambda n: encoded(sided(), "TIFF", exif=exif(n), compression="tiff_lzw"),
    "png exif": lambda n: encoded(sided(), "PNG", exif=exif(n)),
    "png exif behind": lambda n: png_with(b"eXIf", exif(n).tobytes()[6:], True),
    "png xmp": lambda n: png_with(b"iTXt", xmp_text(n), False),
    "png xmp behind": lambda n: png_with(b"iTXt", xmp_text(n), True),
    "webp exif": lambda n: encoded(sided(), "WEBP", lossless=True, exif=exif(n)),
    "avif": lambda n: encoded(sided(), "AVIF", quality=95, exif=exif(n)),
}


def as_seen(pixels: np.ndarray) -> tuple[str, tuple[int, int]]:
    """The side that is red, and the (row, column) half of the white corner."""
    height, width = pixels.shape[:2]
    red = (pixels[..., 0] > 200) & (pixels[..., 1] < 90)
    rows, columns = (axis.mean() for axis in np.nonzero(red))
    if width > height:
        side = "left" if columns < width / 2 else "right"
    else:
        side = "top" if rows < height / 2 else "bottom"
    white = pixels.min(axis=2) > 200
    at = tuple(int(axis.mean() > length / 2) for axis, length in zip(np.nonzero(white), (height, width)))
    return side, (at[0], at[1])


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("way", WAYS)
def test_index_and_pixels_agree_and_up_is_up(way: str, number: int) -> None:
    if way == "avif" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    data = WAYS[way](number)
    seen = probe(io.BytesIO(data), len(data))
    pixels = decode(data, size=(seen.width, seen.height))
    assert (seen.width, seen.height) == ((96, 192) if number > 4 else (192, 96)) and not seen.bad
    assert pixels.shape == (seen.height, seen.width, 3)
    corner = {1: (0, 0), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}
    assert as_seen(pixels) == (RED_IS[number], corner[number])
    smaller = decode(data, need=(20, 20))
    assert smaller.shape[0] < smaller.shape[1] if number < 5 else smaller.shape[0] > smaller.shape[1]
    assert as_seen(smaller) == as_seen(pixels)


def test_exif_goes_before_xmp_and_nonsense_is_upright() -> None:
    both = jpeg_xmp(6, exif=exif(3))
    assert decode(both).shape == (96, 192, 3) and as_seen(decode(both))[0] == "right"
    for number in (0, 9):
        assert decode(encoded(sided(), "JPEG", exif=exif(number))).shape == (96, 192, 3)


def test_a_picture_of_another_size_than_it_was_indexed_with_is_bad() -> None:
    with pytest.raises(BadImage, match="192×96, not 96×192"):
        decode(encoded(sided()), size=(96, 192))
