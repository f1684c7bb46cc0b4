"""A folder of pictures as WebDataset shards, each with what makes its index sooner beside it."""

from __future__ import annotations

import io
import json
import re
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_train.data.entry import printable, split_ending
from cascade_train.data.readers import Reader
from cascade_train.data.report import Count, Tally
from cascade_train.data.sidecar import write_sidecar
from cascade_train.data.tars import entries_of
from cascade_train.errors import CascadeError
from cascade_train.files import written_beside
from cascade_train.host.progress import Progress, silent


@dataclass(frozen=True)
class Packed:
    """The shards written, how many samples they hold, and what was left out."""

    shards: tuple[Path, ...]
    samples: int
    bad: tuple[Count, ...]


def shard_name(out: Path, number: int) -> Path:
    """The name of one of several shards: ``set.tar`` becomes ``set-00000.tar``, ``set-00001.tar``, …"""
    return out.with_name(f"{out.stem}-{number:05}{out.suffix}")


def pack(reader: Reader, out: Path, *, shard_bytes: int = 0, progress: Progress = silent) -> Packed:
    """Write the pictures of ``reader``, their text files and metadata to ``out``.

    File bytes go in as they are. Keys are the pictures' paths with dots and slashes replaced, made unique.
    With ``shard_bytes`` a new shard begins when one would grow beyond it; a single shard is called ``out``.

    Raises:
        CascadeError: ``out`` is no name of a tar, or exists.
    """
    if out.suffix != ".tar":
        raise CascadeError(f"'{out.name}' is no tar", fix="Give a name that ends in .tar")
    existing = [path for path in (out, shard_name(out, 0)) if path.exists()]
    if existing:
        raise CascadeError(
            "the shard exists already", where=str(existing[0]), fix="Give another name, or remove it"
        )
    bad = Tally()
    keys: set[str] = set()
    total = len(getattr(reader, "index", ()))
    with _Writer(out, shard_bytes) as writer:
        for number, entry in enumerate(reader.rows()):
            if number % 64 == 0:
                progress(number, total, f"packed {number} of {total} pictures")
            if entry.bad:
                bad.add(entry.bad, printable(entry.name))
                continue
            try:
                data = reader.read(entry)
            except OSError:
                bad.add("cannot be read", printable(entry.name))
                continue
            stem, ending = split_ending(entry.name)
            files = [(ending.lower(), data)]
            files += [(kind, text.encode("utf-8")) for kind, text in entry.caption_files().items()]
            meta = entry.metadata()
            if meta:
                files.append((".json", json.dumps(meta, ensure_ascii=False).encode("utf-8")))
            writer.add(_key(stem, keys), files)
    shards = writer.shards
    if len(shards) == 1:
        shards = [shards[0].replace(out)]
    for shard in shards:
        write_sidecar(shard, entries_of(shard, {}, progress=progress))
    return Packed(tuple(shards), len(keys), bad.counts())


def _key(stem: str, keys: set[str]) -> str:
    plain = re.sub(r"[./\\\s]+", "_", stem.encode("utf-8", "replace").decode("utf-8")).strip("_") or "picture"
    key, number = plain, 2
    while key.casefold() in keys:
        key, number = f"{plain}_{number}", number + 1
    keys.add(key.casefold())
    return key


class _Writer:
    """Shards one after the other; leaving by an exception removes the one that was being written."""

    def __init__(self, out: Path, shard_bytes: int) -> None:
        self._out, self._limit = out, shard_bytes
        self.shards: list[Path] = []
        self._stack = ExitStack()
        self._tar: tarfile.TarFile | None = None
        self._bytes = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)

    def add(self, key: str, files: list[tuple[str, bytes]]) -> None:
        size = sum(512 + -(-len(data) // 512) * 512 for _, data in files)
        if self._limit and self._bytes and self._bytes + size > self._limit:
            self._stack.close()
            self._tar, self._bytes = None, 0
        if self._tar is None:
            path = shard_name(self._out, len(self.shards))
            beside_path = self._stack.enter_context(written_beside(path))
            self._tar = self._stack.enter_context(
                tarfile.open(  # noqa: SIM115
                    beside_path, "w", format=tarfile.PAX_FORMAT
                )
            )
            self.shards.append(path)
        for ending, data in files:
            info = tarfile.TarInfo(key + ending)
            info.size = len(data)
            info.mode = 0o644
            self._tar.addfile(info, io.BytesIO(data))
        self._bytes += size
