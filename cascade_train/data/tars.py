"""WebDataset tars on this machine: indexed once, then read at random by offset."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from cascade_train.data.entry import Entry, split_ending, to_blob
from cascade_train.data.index import Index
from cascade_train.data.kept import Before, kept
from cascade_train.data.members import Member, read_member
from cascade_train.data.probe import EDGE, Window
from cascade_train.data.said import metadata_json
from cascade_train.data.shard import ShardSample, read_shard, said
from cascade_train.data.sidecar import Sidecar, read_sidecar
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent


def index_tar(path: Path, cache: Path, progress: Progress = silent, ending: str = "") -> Index:
    """The index of the tar at ``path``, kept in the folder ``cache``; what lies beside it makes it sooner.

    Of pictures that share a key it has the one with ``ending`` (`names.grouped`). Of what is no tar it has
    one bad sample, and says why in the fact ``unusable``.

    Raises:
        CascadeError: the tar is missing or may not be read.
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
        return entries_of(path, facts, sidecar, before, progress, ending), facts

    named = f"{where}|{ending}" if ending else where
    key = f"tar-{hashlib.sha256(to_blob(named)).hexdigest()[:24]}"
    state = hashlib.sha256(to_blob(place)).hexdigest()[:32]
    known = kept(cache, key, state, place, path.name, make)
    known.notes = (*known.notes, *sidecar.notes)
    return known


def unusable(path: Path, cache: Path, ending: str = "") -> tuple[str, ...]:
    """(what is wrong, what would be right) with what is no tar at all; empty for a tar."""
    return tuple(index_tar(path, cache, ending=ending).facts.get("unusable", ()))


def entries_of(
    path: Path,
    facts: dict[str, Any],
    sidecar: Sidecar = Sidecar(),  # noqa: B008
    before: Before | None = None,
    progress: Progress = silent,
    ending: str = "",
) -> Iterator[Entry]:
    """The samples of a tar in the order of their keys, found by reading through it; ``facts`` are filled."""
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
    found = []
    for number, sample in enumerate(shard.samples):
        if number % 64 == 0:
            progress(number, len(shard.samples), f"looking at the pictures in {path.name}")
        found.append(_entry(path, sample, sidecar, before))
    found.sort(key=lambda item: item[0])
    yield from (entry for _, entry in found)
    facts["unused"] = shard.unused.data()
    for trouble in shard.troubles:
        facts["cut"] = trouble
        yield Entry(path.name, bad=trouble)


def _entry(path: Path, sample: ShardSample, sidecar: Sidecar, before: Before | None) -> tuple[bytes, Entry]:
    """(what samples are put in order by, the sample as the index keeps it)."""
    words = said(path, sample)
    texts = json.dumps(words.texts, ensure_ascii=False)
    picture = sample.picture
    if picture is None:
        return to_blob(split_ending(sample.name)[0]), Entry(sample.name, bad=words.bad, texts=texts)
    entry = Entry(
        picture.name,
        size=picture.size,
        texts=texts,
        meta=metadata_json(words.meta),
        bad=words.bad,
        offset=picture.offset,
    )
    if not sample.bad:
        try:
            with path.open("rb") as handle:
                window = _window(handle, path, picture)
                seen = sidecar.probe(window, picture.offset, picture.size)
                entry = replace(
                    entry,
                    crc=seen.crc,
                    width=seen.width,
                    height=seen.height,
                    whole=seen.whole,
                    bad=words.bad or seen.bad,
                )
                if before is not None:
                    before.looked_at(entry, window)
        except OSError:
            entry = replace(entry, bad=words.bad or "cannot be read")
    return to_blob(split_ending(picture.name)[0]), entry


def _window(handle: BinaryIO, path: Path, picture: Member) -> BinaryIO:
    """The bytes of a member as a file of their own."""
    if picture.offset < 0:
        return io.BytesIO(read_member(path, picture.offset, picture.size))
    return cast(BinaryIO, io.BufferedReader(Window(handle, picture.offset, picture.size), EDGE))
