"""Pictures in a folder, with captions and metadata beside them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cascade_train.data.entry import Entry, printable, split_ending, to_blob
from cascade_train.data.index import Index
from cascade_train.data.kept import Before, kept
from cascade_train.data.links import Linked, Roots, leads_outside, told
from cascade_train.data.members import MOST_BYTES, TOO_LARGE
from cascade_train.data.names import TABLES, TEXTS, composed, grouped, of_system
from cascade_train.data.probe import probe
from cascade_train.data.said import TEXT_LIMIT, Said, metadata_json
from cascade_train.data.tables import TableRows, beside_table
from cascade_train.data.unused import HIDDEN, ORPHAN, OTHER, Unused
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent
from cascade_train.rasters import EXTENSIONS

_LISTED = 4096
_CHUNK, _PART = 512, 32
"""Pictures looked at between two reports of progress, and by one thread at a time."""


@dataclass(slots=True)
class Found:
    """One file of a listing; ``name`` is its path in the folder that is listed."""

    name: str
    size: int
    times: str
    """When it was last written and last changed, in ns."""


@dataclass(slots=True)
class _Picture:
    """A picture, (ending, text) beside it, and what the tables say of it."""

    found: Found
    texts: list[tuple[str, Found]]
    row: dict[str, Any] | None


def _scan(
    folder: str,
    prefix: str,
    recursive: bool,
    seen: set[str],
    links: Roots,
    aside: Callable[[str], None] | None = None,
) -> Iterator[Iterator[Found | Linked | str]]:
    """The files of one folder after the other, as `_files` gives them; they are to be read to the end."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    folders: list[tuple[str, str]] = []
    yield _files(folder, prefix, folders, links, aside)
    if recursive:
        for name, path in sorted(folders, key=lambda item: to_blob(item[0])):
            yield from _scan(path, f"{prefix}{name}/", recursive, seen, links, aside)


def _files(
    folder: str,
    prefix: str,
    folders: list[tuple[str, str]],
    links: Roots,
    aside: Callable[[str], None] | None,
) -> Iterator[Found | Linked | str]:
    """The files in a folder in any order, of those that cannot be looked at the name alone, and links that
    are not followed; the folders in it are added to ``folders``, and ``aside`` is told of what is hidden or
    an operating system's own."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if of_system(entry.name):
                    if aside is not None:
                        aside(prefix + entry.name)
                    continue
                try:
                    if leads_outside(entry, links):
                        yield Linked(prefix + entry.name)
                        continue
                    if entry.is_dir():
                        folders.append((entry.name, entry.path))
                        continue
                    status = entry.stat()
                    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
                    yield Found(prefix + entry.name, status.st_size, times)
                except OSError:
                    yield prefix + entry.name
    except OSError:
        yield prefix.rstrip("/") or "."


def folder_stamp(root: Path, recursive: bool, progress: Progress = silent, links: Roots = None) -> str:
    """A digest of the names, sizes and times of all files; changes when any of them does.

    It adds up what each file gives, so that no listing is held and sorted.
    """
    total = count = 0
    for files in _scan(str(root), "", recursive, set(), links):
        for found in files:
            said = (
                to_blob(found.name) + f"\0{found.size} {found.times}".encode()
                if isinstance(found, Found)
                else b"?" + to_blob(found.name + "@" if isinstance(found, Linked) else found)
            )
            total += int.from_bytes(hashlib.blake2b(said, digest_size=32).digest(), "little")
            count += 1
            if count % _LISTED == 0:
                progress(count, 0, f"{count} files so far in {root.name}")
    return hashlib.sha256(f"listing 3 {count} {total % (1 << 256)}".encode()).hexdigest()[:32]


def index_folder(
    root: Path,
    recursive: bool,
    cache: Path,
    progress: Progress = silent,
    ending: str = "",
    links: Roots = None,
) -> Index:
    """The up-to-date index of ``root``, kept in the folder ``cache``; only what changed is looked at.

    Of pictures that share a key it has the one with ``ending`` (`names.grouped`).

    Raises:
        CascadeError: the folder is missing, is no folder, or holds no picture.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise CascadeError(
            f"the picture folder {what}", where=str(root), fix="Give a folder that holds pictures"
        )
    chosen = f"|{ending}" if ending else ""
    key = hashlib.sha256(to_blob(f"{root.resolve()}|{recursive}{chosen}")).hexdigest()[:24]
    state = folder_stamp(root, recursive, progress, links)

    def make(before: Before) -> tuple[Iterator[Entry], dict[str, Any]]:
        builder = _Builder(root, recursive, ending, before, progress, links)
        return builder.entries(), builder.facts

    known = kept(cache, key, state, str(root.resolve()), root.name, make)
    if not len(known):
        unused = Unused.from_data(known.facts.get("unused", {}))
        counts = [f"{count} {ending}" for ending, count in sorted(unused.endings.items())]
        if unused.counts[ORPHAN]:
            counts.append(f"{unused.counts[ORPHAN]} captions or metadata files without a picture")
        if known.facts.get("links"):
            counts.append(told(known.facts["links"], known.facts["link_names"]))
        seen = ", ".join(counts) or "no files"
        raise CascadeError(
            "no picture was found" + (" in it or below it" if recursive else ""),
            where=str(root),
            fix=f"Looked for {', '.join(sorted(EXTENSIONS))}; there are {seen}"
            + ("" if recursive else ". Turn on 'recursive' to look into sub-folders"),
        )
    return known


class _Builder:
    def __init__(
        self, root: Path, recursive: bool, ending: str, before: Before, progress: Progress, links: Roots
    ) -> None:
        self.root, self.recursive, self.ending, self.links = root, recursive, ending, links
        self.before, self.progress = before, progress
        self.facts: dict[str, Any] = {}
        self._rows = TableRows()
        self._tables_bad: list[str] = []
        self._tables: dict[str, None] = {}
        self._unused = Unused()

    def entries(self) -> Iterator[Entry]:
        done = 0
        linked: list[str] = []
        with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 1)) as pool:
            for files in _scan(str(self.root), "", self.recursive, set(), self.links, self._aside):
                found = []
                for item in files:
                    if isinstance(item, Found):
                        found.append(item)
                    elif isinstance(item, Linked):
                        linked.append(item.name)
                    else:
                        yield Entry(item, bad="may not be read")
                found.sort(key=lambda item: to_blob(item.name))
                pictures = self._sorted_out(found)
                for first in range(0, len(pictures), _CHUNK):
                    chunk = pictures[first : first + _CHUNK]
                    parts = [chunk[at : at + _PART] for at in range(0, len(chunk), _PART)]
                    for entries in pool.map(self._entries, parts):
                        yield from entries
                        done += len(entries)
                        try:
                            self.progress(done, 0, f"looked at {done} pictures")
                        except BaseException:
                            pool.shutdown(cancel_futures=True)
                            raise
        count, names = self._rows.unused()
        if count:
            tables = ", ".join(self._tables)
            some = ", ".join(names) + (", …" if count > len(names) else "")
            self._tables_bad.append(f"{tables}: rows of {count} pictures that are not there: {some}")
        self.facts.update(unused=self._unused.data(), tables_bad=self._tables_bad)
        if linked:
            self.facts.update(links=len(linked), link_names=[printable(name) for name in sorted(linked)[:10]])

    def _aside(self, name: str) -> None:
        self._unused.add(HIDDEN, printable(name))

    def _sorted_out(self, files: list[Found]) -> list[_Picture]:
        """The pictures among the files of one folder, with what belongs to each."""
        kept: list[Found] = []
        for found in files:
            kind = split_ending(found.name)[1].lower()
            if kind in TABLES:
                self._read_table(found)
            elif kind in TEXTS and found.size > TEXT_LIMIT:
                self._unused.add(OTHER, printable(found.name), kind)
            else:
                kept.append(found)
        names = [found.name for found in kept]
        groups = grouped(names, self.ending, self._rows.tells)
        for number in groups.orphans:
            self._unused.add(ORPHAN, printable(names[number]))
        self._unused.add_left(groups, names)
        present = {composed(name) for name in names} if self._tables else frozenset()
        out = []
        for group in groups.samples:
            row = self._rows.of(names[group.picture], present.__contains__) if self._tables else None
            texts = [(kind, kept[number]) for kind, number in group.texts]
            out.append(_Picture(kept[group.picture], texts, row))
        return out

    def _read_table(self, table: Found) -> None:
        name = printable(table.name)
        self._tables[name] = None
        for trouble in self._rows.read(self.root / table.name, beside_table(table.name)):
            self._tables_bad.append(f"{name}: {trouble}")

    def _entries(self, pictures: list[_Picture]) -> list[Entry]:
        return [self._entry(picture) for picture in pictures]

    def _entry(self, picture: _Picture) -> Entry:
        found, texts, row = picture.found, picture.texts, picture.row
        beside = [[kind, text.size, text.times] for kind, text in texts]
        stamp = f"{found.times}|{json.dumps([beside, row], default=str)}"
        old = self.before.unchanged(found.name, found.size, stamp)
        if old is not None:
            return old
        entry = Entry(found.name, size=found.size, stamp=stamp)
        if found.size > MOST_BYTES:
            return replace(entry, bad=TOO_LARGE)
        try:
            with (self.root / found.name).open("rb") as handle:
                seen = probe(handle, found.size)
                entry = replace(entry, crc=seen.crc, whole=seen.whole, bad=seen.bad)
                self.before.looked_at(entry, handle)
        except OSError as error:
            denied = isinstance(error, PermissionError)
            return replace(entry, bad="may not be read" if denied else "cannot be read")
        said = Said(meta=dict(row or {}), bad=seen.bad)
        for kind, text in texts:
            try:
                said.say(kind, (self.root / text.name).read_bytes())
            except OSError:
                said.bad = said.bad or f"{kind} may not be read"
        return replace(
            entry,
            width=seen.width,
            height=seen.height,
            bad=said.bad,
            texts=json.dumps(said.texts, ensure_ascii=False),
            meta=metadata_json(said.meta),
        )
