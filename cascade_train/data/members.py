"""The members of a tar by their headers: links followed, damage and lies passed over, one bad one at a time.

Only headers are read, and nothing of a size that a header claims before that size is known to be sane.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from cascade_train.data.names import slash_path
from cascade_train.data.probe import Window
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent

MOST_BYTES = 1 << 30
"""Larger members are refused before they are read: no picture that may be decoded needs more."""

TOO_LARGE = "larger than 1 GiB"
CUT = "the tar is cut off here"
CUT_BEHIND = "the tar is cut off behind its last readable member"
DAMAGED = "the tar is damaged in the middle"

_BLOCK = 512
_EXTENDED = b"xgXLK"
_EXTENDED_BYTES, _EXTENDED_CHAIN = 16 << 10, 8
"""Headers that only describe the next one: the longest, and how many in a row, that are believed."""
_MAPS = 4 << 20
_NAME = 4096
_HOPS = 16
_LOOKED_THROUGH = 64 << 20
"""Bytes at the front of a file in which the first header of a damaged tar is looked for."""
_PACKED = (
    (b"\x1f\x8b", "gunzip"),
    (b"BZh", "bunzip2"),
    (b"\xfd7zXZ", "unxz"),
    (b"\x28\xb5\x2f\xfd", "unzstd"),
)


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar: ``size`` bytes at ``offset``. One that is stored with holes (sparse) lies in pieces:
    its ``offset`` is −1 − the place of its header. ``bad`` is why it cannot be used; without a name it is
    about the tar itself."""

    name: str
    offset: int
    size: int
    bad: str = ""


@dataclass(slots=True)
class _Extended:
    """What the headers in front of a member say about it."""

    at: int
    count: int = 0
    bad: str = ""
    name: str | None = None
    link: str | None = None
    size: int | None = None
    sparse: bool = False


def members(path: Path, progress: Progress = silent) -> list[Member]:
    """Every file in a tar in order, hard and symbolic links as what they lead to.

    Raises:
        CascadeError: it is empty, compressed, or no tar.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if not size:
        raise CascadeError("the tar has zero bytes", where=str(path), fix="Copy or fetch it again")
    out: list[Member] = []
    links: list[tuple[int, str]] = []

    def tell(at: int) -> None:
        progress(at, size, f"indexing {path.name}")

    with path.open("rb") as handle:
        start = handle.read(8)
        for mark, tool in _PACKED:
            if start.startswith(mark):
                raise CascadeError(
                    "a compressed tar cannot be read at random",
                    where=str(path),
                    fix=f"Unpack it first ({tool})",
                )
        for member, target in _walk(handle, size, path, tell):
            if target:
                links.append((len(out), target))
            out.append(member)
            if len(out) % 256 == 0:
                tell(max(0, member.offset))
    return _linked(out, links) if links else out


def _linked(found: list[Member], links: list[tuple[int, str]]) -> list[Member]:
    """``found`` with each link as what it leads to."""
    leads = dict(links)
    by_name = {slash_path(member.name): number for number, member in enumerate(found)}
    for number, _ in links:
        at, seen = number, 0
        while at in leads and seen < _HOPS:
            at, seen = by_name.get(leads[at], -1), seen + 1
        if at < 0 or at in leads:
            found[number] = replace(found[number], bad="a link to what is not in the tar")
        else:
            found[number] = replace(found[at], name=found[number].name)
    return found


def _walk(
    handle: BinaryIO, size: int, path: Path, tell: Callable[[int], None]
) -> Iterator[tuple[Member, str]]:
    """(member, where it leads if it is a link); ``tell`` hears how far a search came."""
    at, ahead, seen = 0, None, False
    while True:
        block = _read(handle, at, _BLOCK)
        if len(block) < _BLOCK:
            if at <= size:
                yield Member("", at, 0, CUT_BEHIND), ""
            return
        if not any(block):
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError):
            reach = size if seen else min(size, _LOOKED_THROUGH)
            next_at = _next_header(handle, at + _BLOCK, reach, tell)
            if next_at is None and not seen:
                raise CascadeError(
                    "this is no tar file (it has no header)",
                    where=str(path),
                    fix="Give a tar, or a folder of pictures",
                ) from None
            lost = "the tar is cut off or damaged behind its last readable member"
            yield Member("", at, 0, lost if next_at is None else DAMAGED), ""
            if next_at is None:
                return
            at, ahead, seen = next_at, None, True
            continue
        seen = True
        data = at + _BLOCK
        if info.type in (b"x", b"g", b"X", b"L", b"K"):
            ahead = ahead or _Extended(at)
            _take(ahead, info, handle, data)
            end = _end(data, info.size)
            if not 0 <= info.size <= size - data:
                next_at = _next_header(handle, data, size, tell)
                if next_at is None:
                    yield Member("", at, 0, CUT), ""
                    return
                end = next_at
            at = end
            continue
        member, target, length = _member(info, ahead, at, handle, size)
        ahead = None
        if member is not None:
            yield member, target
        if 0 <= length <= size - data:
            at = _end(data, length)
            continue
        found = None if info.name.lower().endswith(".tar") else _next_header(handle, data, size, tell)
        if found is None:
            return
        at = found


def _member(
    info: tarfile.TarInfo, ahead: _Extended | None, at: int, handle: BinaryIO, size: int
) -> tuple[Member | None, str, int]:
    """(what a header describes, where it leads if it is a link, bytes that follow it)."""
    extended = ahead or _Extended(at)
    name = extended.name or info.name
    length = info.size if extended.size is None else extended.size
    stored = length if info.isreg() or info.type not in tarfile.SUPPORTED_TYPES else 0
    data = at + _BLOCK
    bad = extended.bad or ("a name of more than 4096 characters" if len(name) > _NAME else "")
    name = name[:_NAME]
    if info.islnk() or info.issym():
        target = extended.link or info.linkname
        if info.issym():
            target = posixpath.join(posixpath.dirname(slash_path(name)), target)
        return Member(name, data, 0, bad), "" if bad else slash_path(target), stored
    if not info.isreg():
        return None, "", stored
    if info.type == tarfile.GNUTYPE_SPARSE or extended.sparse:
        member, end = _sparse(name, extended.at, bad, handle, size)
        return member, "", stored if end is None else end - data
    if not bad and not 0 <= length <= MOST_BYTES:
        bad = f"claims {length} bytes"
    if not bad and data + length > size:
        bad = CUT
    return Member(name, data, max(0, min(length, size)), bad), "", stored


def _sparse(name: str, at: int, bad: str, handle: BinaryIO, size: int) -> tuple[Member, int | None]:
    """A member that is stored with holes, and where the next header is; None where that is not known."""
    if bad:
        return Member(name, -1 - at, 0, bad), None
    archive = _empty()
    try:
        info = _parsed(handle, at, archive)
    except Exception:  # whatever a damaged map makes of tarfile
        return Member(name, -1 - at, 0, "a damaged map of its holes"), None
    pieces = _pieces(info)
    stored = sum(length for _, length in pieces)
    sane = all(first >= 0 and length >= 0 and first + length <= info.size for first, length in pieces)
    if not 0 <= info.size <= MOST_BYTES:
        bad = f"claims {info.size} bytes"
    elif not sane or stored > MOST_BYTES:
        bad = "a damaged map of its holes"
    elif info.offset_data + stored > size:
        bad = CUT
    return Member(info.name, -1 - at, 0 if bad else info.size, bad), int(archive.offset)


def _pieces(info: tarfile.TarInfo) -> list[tuple[int, int]]:
    """(place in the file, length) of each piece that is stored, in order."""
    return cast("list[tuple[int, int]]", list(getattr(info, "sparse", None) or ()))


def _empty() -> tarfile.TarFile:
    """A tar that is no file, which lends its settings to the reading of one header."""
    return tarfile.TarFile(fileobj=io.BytesIO(bytes(2 * _BLOCK)))


def _parsed(handle: BinaryIO, at: int, archive: tarfile.TarFile) -> tarfile.TarInfo:
    """The member whose first header is at ``at``, with the map of its holes."""
    window = io.BufferedReader(Window(handle, 0, at + _MAPS))  # a map without end is read no further
    window.seek(at)
    archive.fileobj = window
    return tarfile.TarInfo.fromtarfile(archive)


def read_member(path: Path, offset: int, size: int) -> bytes:
    """The ``size`` bytes of a member at ``offset`` (`Member`); OSError when the file no longer holds them.

    Opened anew each time: with thousands of shards, files kept open would run out.
    """
    with path.open("rb", buffering=0) as raw:
        handle = cast(BinaryIO, raw)
        data = _assembled(handle, -1 - offset, size) if offset < 0 else _read(handle, offset, size)
    if len(data) != size:
        raise OSError(f"{path} ends before byte {offset + size}")
    return data


def _assembled(handle: BinaryIO, at: int, size: int) -> bytes:
    try:
        info = _parsed(handle, at, _empty())
    except Exception as error:  # whatever a damaged map makes of tarfile
        raise OSError("the map of the member's holes is damaged") from error
    out, place = bytearray(size), info.offset_data
    for first, length in _pieces(info):
        piece = _read(handle, place, length)
        if len(piece) != length or first + length > size:
            raise OSError("the member's pieces are not all there")
        out[first : first + length] = piece
        place += length
    return bytes(out)


def _read(handle: BinaryIO, at: int, count: int) -> bytes:
    handle.seek(at)
    data = handle.read(count)
    while len(data) < count and (more := handle.read(count - len(data))):
        data += more
    return data


def _end(data: int, size: int) -> int:
    return data + -(-size // _BLOCK) * _BLOCK


def _take(ahead: _Extended, info: tarfile.TarInfo, handle: BinaryIO, at: int) -> None:
    """Take in a header, with its data ``at``, that describes the next one."""
    ahead.count += 1
    if ahead.count > _EXTENDED_CHAIN:
        ahead.bad = ahead.bad or f"more than {_EXTENDED_CHAIN} headers in front of it"
        return
    if not 0 <= info.size <= _EXTENDED_BYTES:
        ahead.bad = ahead.bad or f"a header in front of it claims {info.size} bytes"
        return
    data = _read(handle, at, info.size)
    if info.type in (b"L", b"K"):
        text = data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        if info.type == b"L":
            ahead.name = text
        else:
            ahead.link = text
    elif info.type != b"g":  # of all that follows: dates and comments
        _pax(ahead, data)


def _pax(ahead: _Extended, data: bytes) -> None:
    """Take in the records ``length key=value`` of a pax header."""
    while data.strip(b"\0"):
        length = data.partition(b" ")[0]
        if not length.isdigit() or len(length) > 6 or not 3 < int(length) <= len(data):
            ahead.bad = ahead.bad or "a damaged header in front of it"
            return
        record, data = data[: int(length) - 1], data[int(length) :]
        key, _, value = record[len(length) + 1 :].partition(b"=")
        if key == b"path":
            ahead.name = value.decode("utf-8", "surrogateescape")
        elif key == b"linkpath":
            ahead.link = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            ahead.size = int(value) if value.isdigit() and len(value) < 20 else -1
        elif key.startswith(b"GNU.sparse."):
            ahead.sparse = True


def _next_header(handle: BinaryIO, start: int, end: int, tell: Callable[[int], None]) -> int | None:
    """Where the next header with a right checksum begins, from ``start`` on; None where there is none."""
    at = start
    while at < end:
        piece = _read(handle, at, 1 << 20)
        tell(at)
        found = piece.find(b"ustar")
        while found >= 0:
            place = at + found - 257
            if place % _BLOCK == 0 and place >= start:
                try:
                    tarfile.TarInfo.frombuf(_read(handle, place, _BLOCK), "utf-8", "surrogateescape")
                    return place
                except (tarfile.HeaderError, ValueError):
                    pass
            found = piece.find(b"ustar", found + 1)
        at += len(piece) or end
    return None
