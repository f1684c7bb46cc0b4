"""WebDataset tars on this machine: indexed once, then read at random by offset."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from cascade_train.data.entry import Entry, to_blob
from cascade_train.data.folder import TEXTS, as_metadata, metadata_json
from cascade_train.data.index import Index
from cascade_train.data.kept import Before, kept
from cascade_train.data.pixels import EXTENSIONS
from cascade_train.data.probe import EDGE, Window, json_trouble, read_json, read_text
from cascade_train.data.sidecar import Sidecar, read_sidecar
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent

_BLOCK = 512
_MEMBER = re.compile(r"^((?:.*/)?[^/.]+)\.([^/]+)$", re.DOTALL)
_TEXT_LIMIT = 1 << 20


def split_name(name: str) -> tuple[str, str] | None:
    """(key, ending) of a member: the ending starts at the first dot of the file name, as in webdataset."""
    match = _MEMBER.match(name)
    return (match[1], match[2].lower()) if match else None


def index_tar(path: Path, cache: Path, progress: Progress = silent) -> Index:
    """The index of the tar at ``path``, kept in the folder ``cache``; what lies beside it makes it sooner.

    Raises:
        CascadeError: the tar is missing, compressed, or no tar.
    """
    try:
        status = path.stat()
        with path.open("rb"):
            pass
    except OSError as error:
        raise CascadeError(
            "the tar cannot be read", where=str(path), fix=str(error.strerror or error)
        ) from error
    where = str(path.resolve())
    place = f"{where}|{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    sidecar = Sidecar()

    def make(before: Before) -> tuple[Iterator[Entry], dict[str, Any]]:
        nonlocal sidecar
        sidecar = read_sidecar(path)
        facts: dict[str, Any] = {"place": place}
        return entries_of(path, facts, sidecar, before, progress), facts

    key = f"tar-{hashlib.sha256(to_blob(where)).hexdigest()[:24]}"
    state = hashlib.sha256(to_blob(place)).hexdigest()[:32]
    known = kept(cache, key, state, place, path.name, make)
    known.notes = (*known.notes, *sidecar.notes)
    return known


@dataclass
class TarGroup:
    """The members of a tar that share a key; ``picture`` is (name, offset, size)."""

    picture: tuple[str, int, int] | None = None
    texts: dict[str, str] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    bad: str = ""
    first: str = ""

    def say(self, kind: str, data: bytes) -> None:
        """Take in a text or metadata member with the ending ``kind``."""
        try:
            content = read_text(data)
            if kind == ".json":
                self.meta.update(as_metadata(read_json(content)))
            else:
                self.texts[kind] = content
        except UnicodeDecodeError:
            self.bad = self.bad or f"{kind} is not UTF-8"
        except (ValueError, RecursionError) as error:
            self.bad = self.bad or json_trouble(kind, error)


def members(path: Path) -> Iterator[tuple[str, int, int, str]]:
    """(name, offset, size, bad) of every file in a tar, in order; the last one says when the tar is cut off.

    Raises:
        CascadeError: it is compressed, or no tar.
    """
    size = path.stat().st_size
    if not size:
        raise CascadeError("the tar has zero bytes", where=str(path))
    with path.open("rb") as handle:
        if handle.read(2) == b"\x1f\x8b":
            raise CascadeError(
                "a compressed tar cannot be read at random", where=str(path), fix="Unpack it first (gunzip)"
            )
        handle.seek(0)
        end = 0
        try:
            with tarfile.open(fileobj=handle, mode="r:") as tar:
                for member in tar:
                    tar.members = []  # type: ignore[attr-defined]  # keep memory constant
                    end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                    if member.isfile():
                        cut = member.offset_data + member.size > size
                        bad = "the tar is cut off here" if cut else ""
                        yield member.name, member.offset_data, member.size, bad
        except (tarfile.TarError, EOFError, ValueError) as error:
            if not end:
                raise CascadeError(
                    f"this is no tar file ({error})",
                    where=str(path),
                    fix="Give a tar, or a folder of pictures",
                ) from error
            if end <= size:
                yield "", end, 0, "the tar is cut off or damaged behind its last readable member"
            return
        if end <= size:
            handle.seek(end)
            if len(handle.read(_BLOCK)) < _BLOCK:
                yield "", end, 0, "the tar is cut off behind its last readable member"


def entries_of(
    path: Path,
    facts: dict[str, Any],
    sidecar: Sidecar = Sidecar(),  # noqa: B008
    before: Before | None = None,
    progress: Progress = silent,
) -> Iterator[Entry]:
    """The samples of a tar in the order of their keys, found by reading through it; ``facts`` are filled."""
    groups: dict[str, TarGroup] = {}
    size = path.stat().st_size
    cut = ""
    with path.open("rb") as handle:
        for number, (name, offset, length, bad) in enumerate(members(path)):
            if not name:
                cut = bad
                continue
            if name.rpartition("/")[2].startswith(".") or "/." in name.removeprefix("./"):
                continue
            parts = split_name(name)
            if parts is None:
                groups.setdefault(name, TarGroup(first=name)).bad = "a name without ending"
                continue
            key, ending = parts
            group = groups.setdefault(key, TarGroup(first=name))
            _take(group, handle, name, ending, offset, length, bad)
            if number % 256 == 0:
                progress(offset, size, f"indexing {path.name}")
    if cut and groups:
        last = next(reversed(groups.values()))
        if not last.texts and not last.meta:  # what lay beside it is behind the cut
            last.bad = last.bad or "the tar is cut off here"
    for number, key in enumerate(sorted(groups, key=to_blob)):
        group = groups[key]
        if number % 64 == 0:
            progress(number, len(groups), f"looking at the pictures in {path.name}")
        said = json.dumps(group.texts, ensure_ascii=False)
        if group.picture is None:
            yield Entry(group.first, bad=group.bad or "no picture in this sample", texts=said)
            continue
        name, offset, length = group.picture
        with path.open("rb") as handle:
            window = cast(BinaryIO, BufferedReader(Window(handle, offset, length), EDGE))
            seen = sidecar.probe(window, offset, length)
            entry = Entry(
                name,
                size=length,
                crc=seen.crc,
                width=seen.width,
                height=seen.height,
                texts=said,
                meta=metadata_json(group.meta),
                bad=group.bad or seen.bad,
                offset=offset,
                whole=seen.whole,
            )
            if before is not None:
                before.looked_at(entry, window)
        yield entry
    if cut:
        facts["cut"] = cut
        yield Entry(path.name, bad=cut)


def _take(
    group: TarGroup, handle: BinaryIO, name: str, ending: str, offset: int, length: int, bad: str
) -> None:
    last = ending.rpartition(".")[2]
    if ending in EXTENSIONS or (last in EXTENSIONS and group.picture is None):
        if group.picture is not None and split_name(group.picture[0]) == split_name(name):
            group.bad = group.bad or "the same name twice"
        if group.picture is None or ending in EXTENSIONS:
            group.picture = (name, offset, length)
            group.bad = group.bad or bad
        return
    if "." + last not in TEXTS or length > _TEXT_LIMIT:
        return
    if bad:
        group.bad = group.bad or bad
        return
    handle.seek(offset)
    group.say("." + ending, handle.read(length))


def read_member(path: Path, offset: int, size: int) -> bytes:
    """``size`` bytes of a tar at ``offset``; OSError when the file no longer holds them.

    Opened anew each time: with thousands of shards, files kept open would run out.
    """
    with path.open("rb", buffering=0) as handle:
        handle.seek(offset)
        data = handle.read(size)
        while len(data) < size and (more := handle.read(size - len(data))):
            data += more
    if len(data) != size:
        raise OSError(f"{path} ends before byte {offset + size}")
    return data
