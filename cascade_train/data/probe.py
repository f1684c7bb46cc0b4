"""What an index keeps of a picture: size, a cheap content check, and whether it is whole."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any, BinaryIO

from cascade_train.data.content import EDGE, checksum, of_fixed_size, whole_of
from cascade_train.data.pixels import BadImage, decode, looks_whole, open_image
from cascade_train.data.upright import upright_size


@dataclass(frozen=True)
class Probe:
    width: int = 0
    height: int = 0
    crc: int = 0
    bad: str = ""
    whole: str = ""
    """Names the whole content, where the ends cannot."""


class Window(io.RawIOBase):
    """Bytes ``offset`` … ``offset + size`` of an open file, as a file of their own."""

    def __init__(self, handle: BinaryIO, offset: int, size: int) -> None:
        self._handle, self._offset, self._size, self._at = handle, offset, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = max(0, place + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        want = max(0, min(len(buffer), self._size - self._at))
        self._handle.seek(self._offset + self._at)
        data = self._handle.read(want)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def probe(handle: BinaryIO, size: int) -> Probe:
    """Look at the picture in ``handle`` (a seekable file of ``size`` bytes) without decoding it.

    Only a picture whose end looks cut off is decoded, to be sure, and only one of a format of fixed size is
    read through.
    """
    if not size:
        return Probe(bad="zero bytes")
    handle.seek(0)
    start = handle.read(EDGE)
    handle.seek(max(0, size - EDGE))
    end = handle.read(EDGE)
    crc = checksum(start, end)
    if not any(start):
        return Probe(crc=crc, bad="nothing but zeros")
    if start.startswith(b"\xff\xd8") and not any(end[-512:]) and b"\xff\xd9" not in end.rstrip(b"\0")[-64:]:
        return Probe(crc=crc, bad="truncated")  # room was made for a download that never came to its end
    handle.seek(0)
    try:
        image = open_image(handle)
        width, height = upright_size(image)
        fixed = of_fixed_size(image, start, size)
        if not looks_whole(start, end, size):
            handle.seek(0)
            decode(handle.read(size))
    except BadImage as error:
        return Probe(crc=crc, bad=str(error))
    return Probe(width, height, crc, whole=whole_of(handle) if fixed else "")


def read_text(data: bytes) -> str:
    """The text in ``data``: UTF-8 or UTF-16, with or without a mark, else UnicodeDecodeError."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16")
    if b"\0" in data[:EDGE]:  # no text in UTF-8 has one; in UTF-16 every plain letter has
        odd, even = data[1:EDGE:2].count(0), data[0:EDGE:2].count(0)
        return data.decode("utf-16-le" if odd >= even else "utf-16-be")
    return data.decode("utf-8-sig")


def read_json(text: str) -> Any:
    """``text`` as JSON; ValueError for what is none, NaN and infinities included."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} in json")

    return json.loads(text, parse_constant=refuse)


def json_trouble(kind: str, error: Exception) -> str:
    """Why a JSON file cannot be used, as a short reason."""
    if isinstance(error, UnicodeEncodeError):
        return f"{kind} holds half a surrogate pair"
    return str(error) if str(error).endswith("in json") else f"{kind} is no valid JSON"
