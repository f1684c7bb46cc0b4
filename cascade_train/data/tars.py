"""WebDataset tars on this machine: indexed once, then read at random by offset."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from cascade_train.data import index as index_file
from cascade_train.data.entry import Entry, split_ending, to_blob
from cascade_train.data.index import Index
from cascade_train.data.members import Member, read_member
from cascade_train.data.probe import EDGE, Probe, Window, probe
from cascade_train.data.said import metadata_json
from cascade_train.data.shard import ShardSample, read_shard, said
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent

_RULES = 2
"""Grows when the same tar makes other samples."""


def beside(path: Path) -> Path:
    """Where an index that travels with a tar lies."""
    return path.with_name(path.name + ".index")


def index_tar(path: Path, cache: Path, progress: Progress = silent, ending: str = "") -> Index:
    """The index of the tar at ``path``: the one beside it if it fits, else one in the folder ``cache``.

    Of pictures that share a key it has the one with ``ending`` (`names.grouped`). Of what is no tar it has
    one bad sample, and says why in the fact ``unusable``.

    Raises:
        CascadeError: the tar is missing or may not be read.
    """
    try:
        status = path.stat()
        with path.open("rb") as handle:
            edges = hashlib.sha256(handle.read(EDGE))
            handle.seek(max(0, status.st_size - EDGE))
            edges.update(handle.read(EDGE))
    except OSError as error:
        raise CascadeError(
            "the tar cannot be read", where=str(path), fix=str(error.strerror or error)
        ) from error
    mark = f"{status.st_size} {edges.hexdigest()[:32]}"
    known = _open(beside(path), mark)
    if known is not None and known.facts.get("ending", "") == ending:
        return known
    named = f"{path.resolve()}|{status.st_mtime_ns}|{mark}|{_RULES}|{ending}"
    key = hashlib.sha256(to_blob(named)).hexdigest()[:32]
    inside = cache / f"tar-{key}.sqlite"
    known = _open(inside, mark)
    if known is None:
        write_index(path, inside, mark, progress, ending)
        known = Index(inside)
    return known


def unusable(path: Path, cache: Path, ending: str = "") -> tuple[str, ...]:
    """(what is wrong, what would be right) with what is no tar at all; empty for a tar."""
    return tuple(index_tar(path, cache, ending=ending).facts.get("unusable", ()))


def _open(path: Path, mark: str) -> Index | None:
    if not path.is_file():
        return None
    try:
        found = Index(path)
    except (sqlite3.Error, OSError):
        return None
    return found if found.facts.get("tar") == mark else None


def write_index(
    path: Path, to: Path, mark: str | None = None, progress: Progress = silent, ending: str = ""
) -> None:
    """Read through the tar once and write its index to ``to``."""
    if mark is None:
        size = path.stat().st_size
        with path.open("rb") as handle:
            edges = hashlib.sha256(handle.read(EDGE))
            handle.seek(max(0, size - EDGE))
            edges.update(handle.read(EDGE))
        mark = f"{size} {edges.hexdigest()[:32]}"
    facts: dict[str, Any] = {"tar": mark, "ending": ending}
    index_file.write_entries(to, _entries(path, facts, ending, progress), facts)


def _entries(path: Path, facts: dict[str, Any], ending: str, progress: Progress) -> Iterator[Entry]:
    try:
        shard = read_shard(path, ending, progress)
    except CascadeError as error:
        facts["unusable"] = [error.what, error.fix or ""]
        yield Entry(path.name, bad=error.what)
        return
    except OSError as error:
        what = "may not be read" if isinstance(error, PermissionError) else "cannot be read"
        facts["unusable"] = [what, str(error.strerror or error)]
        yield Entry(path.name, bad=what)
        return
    size = path.stat().st_size
    found = []
    for number, sample in enumerate(shard.samples):
        if number % 256 == 0:
            progress(max(0, sample.picture.offset) if sample.picture else 0, size, f"indexing {path.name}")
        found.append(_entry(path, sample))
    found.sort(key=lambda item: item[0])
    yield from (entry for _, entry in found)
    facts["unused"] = shard.unused.data()
    for trouble in shard.troubles:
        facts["cut"] = trouble
        yield Entry(path.name, bad=trouble)


def _entry(path: Path, sample: ShardSample) -> tuple[bytes, Entry]:
    """(what samples are put in order by, the sample as the index keeps it)."""
    words = said(path, sample)
    texts = json.dumps(words.texts, ensure_ascii=False)
    picture = sample.picture
    if picture is None:
        return to_blob(split_ending(sample.name)[0]), Entry(sample.name, bad=words.bad, texts=texts)
    seen = Probe(bad=sample.bad)
    if not sample.bad:
        with path.open("rb") as handle:
            seen = _probed(handle, path, picture)
    return to_blob(split_ending(picture.name)[0]), Entry(
        picture.name,
        size=picture.size,
        crc=seen.crc,
        width=seen.width,
        height=seen.height,
        texts=texts,
        meta=metadata_json(words.meta),
        bad=words.bad or seen.bad,
        offset=picture.offset,
    )


def _probed(handle: BinaryIO, path: Path, picture: Member) -> Probe:
    try:
        if picture.offset < 0:
            return probe(io.BytesIO(read_member(path, picture.offset, picture.size)), picture.size)
        window = io.BufferedReader(Window(handle, picture.offset, picture.size), EDGE)
        return probe(cast(BinaryIO, window), picture.size)
    except OSError:
        return Probe(bad="cannot be read")
