"""Pictures in a folder, with captions and metadata beside them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cascade_train.data import index as index_file
from cascade_train.data.entry import Entry, printable, split_ending, to_blob
from cascade_train.data.index import Index
from cascade_train.data.links import Linked, Roots, leads_outside, told
from cascade_train.data.pixels import EXTENSIONS
from cascade_train.data.probe import json_trouble, probe, read_json, read_text
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent

TEXTS = frozenset((".txt", ".caption", ".captions", ".cap", ".tags", ".text", ".json"))
TABLES = frozenset((".jsonl", ".csv", ".parquet"))
NAME_FIELDS = ("file_name", "filename", "file", "path", "image", "image_path", "key")
"""Columns of a metadata table that may name the picture, in order of preference."""

_TEXT_LIMIT = 1 << 20
_CHUNK, _PART = 512, 32
"""Pictures looked at between two reports of progress, and by one thread at a time."""


@dataclass(slots=True)
class Found:
    """One file of a listing; ``name`` is its path in the folder that is listed."""

    name: str
    size: int
    mtime: int


@dataclass
class Listing:
    """One folder's files: pictures with their text files, tables, and what is left over."""

    pictures: list[tuple[Found, list[tuple[str, Found]]]] = field(default_factory=list)
    tables: list[Found] = field(default_factory=list)
    orphans: list[Found] = field(default_factory=list)
    others: list[Found] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)


def walk(root: Path, recursive: bool, links: Roots = None) -> Iterator[Listing]:
    """The folders under ``root`` in the order of their names; no loops, and no links out of ``links``."""
    for files in _scan(str(root), "", recursive, set(), links):
        listing, found = Listing(), []
        for item in files:
            if isinstance(item, Found):
                found.append(item)
            elif isinstance(item, Linked):
                listing.linked.append(item.name)
            else:
                listing.unreadable.append(item)
        found.sort(key=lambda item: to_blob(item.name))
        _sort_out(found, listing)
        yield listing


def _scan(
    folder: str, prefix: str, recursive: bool, seen: set[str], links: Roots
) -> Iterator[Iterator[Found | Linked | str]]:
    """The files of one folder after the other, as `_files` gives them; they are to be read to the end."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    folders: list[tuple[str, str]] = []
    yield _files(folder, prefix, folders, links)
    if recursive:
        for name, path in sorted(folders, key=lambda item: to_blob(item[0])):
            yield from _scan(path, f"{prefix}{name}/", recursive, seen, links)


def _files(
    folder: str, prefix: str, folders: list[tuple[str, str]], links: Roots
) -> Iterator[Found | Linked | str]:
    """The files in a folder in any order, of those that cannot be looked at the name alone, and links that
    are not followed; the folders in it are added to ``folders``."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    if leads_outside(entry, links):
                        yield Linked(prefix + entry.name)
                        continue
                    if entry.is_dir():
                        folders.append((entry.name, entry.path))
                        continue
                    status = entry.stat()
                    yield Found(prefix + entry.name, status.st_size, status.st_mtime_ns)
                except OSError:
                    yield prefix + entry.name
    except OSError:
        yield prefix.rstrip("/") or "."


def _sort_out(files: list[Found], listing: Listing) -> None:
    owners: dict[str, list[int] | int] = {}  # the pictures of a stem: a number, as for nearly all, or several
    rest = []
    for found in files:
        stem, ending = split_ending(found.name)
        if ending.lower().lstrip(".") in EXTENSIONS:
            number = len(listing.pictures)
            listing.pictures.append((found, []))
            before = owners.get(stem)
            owners[stem] = number if before is None else [*_numbers(before), number]
        else:
            rest.append(found)
    names: dict[str, int] = {}

    def owning(name: str) -> list[int]:
        numbers = _numbers(owners.get(name, []))
        if split_ending(name)[1].lower().lstrip(".") in EXTENSIONS:  # of cat.png.txt
            if not names:
                names.update((picture.name, number) for number, (picture, _) in enumerate(listing.pictures))
            numbers = [*numbers, *_numbers(names.get(name, []))]
        return numbers

    for found in rest:
        stem, ending = split_ending(found.name)
        if ending.lower() in TEXTS and found.size <= _TEXT_LIMIT:
            inner, more = split_ending(stem)
            numbers, kind = owning(stem), ending.lower()
            if not numbers and more:
                numbers, kind = owning(inner), (more + ending).lower()
            if not numbers:
                listing.orphans.append(found)
            for number in numbers:
                listing.pictures[number][1].append((kind, found))
        elif ending.lower() in TABLES:
            listing.tables.append(found)
        else:
            listing.others.append(found)


def _numbers(owner: list[int] | int) -> list[int]:
    return [owner] if isinstance(owner, int) else owner


def folder_stamp(root: Path, recursive: bool, links: Roots = None) -> str:
    """A digest of the names, sizes and times of all files; changes when any of them does.

    It adds up what each file gives, so that no listing is held and sorted.
    """
    total = count = 0
    for files in _scan(str(root), "", recursive, set(), links):
        for found in files:
            said = (
                to_blob(found.name) + b"\0%d %d" % (found.size, found.mtime)
                if isinstance(found, Found)
                else b"?" + to_blob(found.name + "@" if isinstance(found, Linked) else found)
            )
            total += int.from_bytes(hashlib.blake2b(said, digest_size=32).digest(), "little")
            count += 1
    return hashlib.sha256(f"listing 2 {count} {total % (1 << 256)}".encode()).hexdigest()[:32]


def index_folder(
    root: Path, recursive: bool, cache: Path, progress: Progress = silent, links: Roots = None
) -> Index:
    """The up-to-date index of ``root``, kept in the folder ``cache``; only what changed is looked at.

    Raises:
        CascadeError: the folder is missing, is no folder, or holds no picture.
    """
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise CascadeError(
            f"the picture folder {what}", where=str(root), fix="Give a folder that holds pictures"
        )
    key = hashlib.sha256(to_blob(f"{root.resolve()}|{recursive}")).hexdigest()[:24]
    path = cache / f"{key}-{folder_stamp(root, recursive, links)}.sqlite"
    known = _open(path)
    if known is None:
        older = next((opened for old in cache.glob(f"{key}-*.sqlite") if (opened := _open(old))), None)
        builder = _Builder(root, recursive, older, progress, links)
        index_file.write_entries(path, builder.entries(), builder.facts)
        if older is not None:
            older.close()
        known = Index(path)
        for old in cache.glob(f"{key}-*.sqlite"):
            if old != path:
                try:
                    old.unlink()
                except OSError:  # another process reads it (Windows)
                    continue
    if not len(known):
        others = known.facts.get("others", {})
        counts = [f"{count} {ending}" for ending, count in sorted(others.items())]
        if known.facts.get("orphans"):
            counts.append(f"{known.facts['orphans']} captions or metadata files without a picture")
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


def _open(path: Path) -> Index | None:
    if not path.is_file():
        return None
    try:
        return Index(path)
    except sqlite3.Error:
        return None


class _Builder:
    def __init__(
        self, root: Path, recursive: bool, older: Index | None, progress: Progress, links: Roots
    ) -> None:
        self.root, self.recursive, self.older, self.progress = root, recursive, older, progress
        self.links = links
        self.facts: dict[str, Any] = {}

    def entries(self) -> Iterator[Entry]:
        others: Counter[str] = Counter()
        orphans: list[str] = []
        linked: list[str] = []
        orphan_count = link_count = done = 0
        tables_bad: list[str] = []
        tables: dict[str, dict[str, Any]] = {}
        with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 1)) as pool:
            for listing in walk(self.root, self.recursive, self.links):
                _read_tables(self.root, listing, tables, tables_bad)
                for name in listing.unreadable:
                    yield Entry(name, bad="may not be read")
                for first in range(0, len(listing.pictures), _CHUNK):
                    chunk = listing.pictures[first : first + _CHUNK]
                    parts = [chunk[at : at + _PART] for at in range(0, len(chunk), _PART)]
                    for entries in pool.map(partial(self._entries, tables), parts):
                        yield from entries
                    done += len(chunk)
                    self.progress(done, 0, f"looked at {done} pictures")
                orphan_count += len(listing.orphans)
                orphans.extend(printable(found.name) for found in listing.orphans[: 10 - len(orphans)])
                link_count += len(listing.linked)
                linked.extend(printable(name) for name in sorted(listing.linked)[: 10 - len(linked)])
                for found in (*listing.others, *listing.tables):
                    others[split_ending(found.name)[1].lower() or "without ending"] += 1
        self.facts.update(
            others=dict(others), orphans=orphan_count, orphan_names=orphans, tables_bad=tables_bad
        )
        self.facts.update({"links": link_count, "link_names": linked} if link_count else {})

    def _entries(
        self, tables: dict[str, dict[str, Any]], items: list[tuple[Found, list[tuple[str, Found]]]]
    ) -> list[Entry]:
        return [self._entry(tables, item) for item in items]

    def _entry(self, tables: dict[str, dict[str, Any]], item: tuple[Found, list[tuple[str, Found]]]) -> Entry:
        found, texts = item
        row = tables.get(found.name) or tables.get(split_ending(found.name)[0])
        mark = json.dumps(
            [found.mtime, [[kind, text.size, text.mtime] for kind, text in texts], row], default=str
        )
        if self.older is not None:
            old = self.older.named(found.name)
            if old is not None and old.size == found.size and old.stamp == mark:
                return old
        entry = Entry(found.name, size=found.size, stamp=mark)
        try:
            with (self.root / found.name).open("rb") as handle:
                seen = probe(handle, found.size)
        except OSError as error:
            denied = isinstance(error, PermissionError)
            return replace(entry, bad="may not be read" if denied else "cannot be read")
        said: dict[str, str] = {}
        meta: dict[str, Any] = dict(row or {})
        bad = seen.bad
        for kind, text in texts:
            try:
                content = read_text((self.root / text.name).read_bytes())
                if kind == ".json":
                    meta.update(as_metadata(read_json(content)))
                else:
                    said[kind] = content
            except UnicodeDecodeError:
                bad = bad or f"{kind} is not UTF-8"
            except OSError:
                bad = bad or f"{kind} may not be read"
            except (ValueError, RecursionError) as error:
                bad = bad or json_trouble(kind, error)
        return replace(
            entry,
            crc=seen.crc,
            width=seen.width,
            height=seen.height,
            bad=bad,
            texts=json.dumps(said, ensure_ascii=False),
            meta=metadata_json(meta),
        )


def metadata_json(meta: dict[str, Any]) -> str:
    return json.dumps(meta, ensure_ascii=False, default=str)


def as_metadata(value: Any) -> dict[str, Any]:
    """A metadata file's content as fields; a bare string or list of strings is the caption."""
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, (str, list)):
        return {"caption": value}
    return {}


def _read_tables(root: Path, listing: Listing, rows: dict[str, dict[str, Any]], bad: list[str]) -> None:
    """Add the rows of the folder's jsonl, csv and parquet files to ``rows``, by the picture they describe."""
    for table in listing.tables:
        prefix = table.name[: table.name.rfind("/") + 1]
        try:
            for row in table_rows(root / table.name):
                column = next((name for name in NAME_FIELDS if row.get(name)), None)
                if column is not None:
                    name = prefix + str(row[column]).replace("\\", "/").removeprefix("./")
                    values = {key: value for key, value in row.items() if key != column}
                    rows[name] = {**rows.get(name, {}), **values}
        except (ValueError, OSError, csv.Error, ImportError) as error:
            bad.append(f"{printable(table.name)}: {error}")


def table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a jsonl, csv or parquet file.

    Raises:
        ValueError: it is damaged. ImportError: parquet without pyarrow.
    """
    ending = path.suffix.lower()
    if ending == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise ImportError("parquet needs the extra 'parquet' (pyarrow)") from error
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    yield {key: None if value != value else value for key, value in row.items()}
        return
    text = read_text(path.read_bytes())
    if ending == ".csv":
        for row in csv.DictReader(io.StringIO(text, newline="")):
            yield {
                key: value if key in NAME_FIELDS else _number(value)
                for key, value in row.items()
                if isinstance(key, str)
            }
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = read_json(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if isinstance(value, dict):
                yield value


def _number(text: Any) -> Any:
    """A csv cell as a number where it is one."""
    if not isinstance(text, str):
        return text
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if value == value else None
    return text
