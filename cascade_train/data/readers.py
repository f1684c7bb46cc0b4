"""One way to read every kind of source: rows of an index, and the bytes or pixels of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cascade_train.data.folder import Tell, index_folder
from cascade_train.data.index import Index
from cascade_train.data.pixels import decode
from cascade_train.data.probe import Entry
from cascade_train.data.spec import FolderSource, Source, TarSource, WorldSource
from cascade_train.data.tars import index_tar, read_member
from cascade_train.errors import CascadeError

PICTURES = "pictures"
"""The folder of the cache that holds pictures from other nodes, each set under a digest."""


class Reader(Protocol):
    """A source opened for reading; safe from many threads."""

    label: str
    """What people know the source by: the folder's or the tar's name."""

    @property
    def content(self) -> str: ...

    def rows(self) -> Iterator[Entry]: ...

    def row(self, row: int) -> Entry: ...

    def read(self, entry: Entry) -> bytes:
        """The file's bytes; OSError when they can no longer be read."""
        ...

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        """Upright sRGB uint8 (H, W, 3) that covers ``need``; BadImage or OSError when there are none."""
        ...


class _Indexed:
    def __init__(self, index: Index, label: str) -> None:
        self.index = index
        self.label = label

    @property
    def content(self) -> str:
        return self.index.content

    def rows(self) -> Iterator[Entry]:
        return self.index.rows()

    def row(self, row: int) -> Entry:
        return self.index.row(row)

    def read(self, entry: Entry) -> bytes:
        raise NotImplementedError

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        return decode(self.read(entry), background, need)


class FolderReader(_Indexed):
    def __init__(self, root: Path, index: Index) -> None:
        super().__init__(index, "images" if root.parent.name == PICTURES else root.name)
        self.root = root

    def read(self, entry: Entry) -> bytes:
        return (self.root / entry.name).read_bytes()


class MembersReader(_Indexed):
    def __init__(self, path: Path, index: Index) -> None:
        super().__init__(index, path.name)
        self.path = path

    def read(self, entry: Entry) -> bytes:
        return read_member(self.path, entry.offset, entry.size)


class WorldReader:
    """nano's procedural world: drawn when asked for."""

    def __init__(self, source: WorldSource) -> None:
        self.source = source
        self.label = f"world {source.kind}"

    @property
    def content(self) -> str:
        return f"{self.source.kind} {self.source.seed}"

    def rows(self) -> Iterator[Entry]:
        return (self.row(row) for row in range(self.source.count))

    def row(self, row: int) -> Entry:
        from cascade_train.nano.world import SIDE

        return Entry(f"{row}", crc=row, width=SIDE, height=SIDE, row=row)

    def render(self, row: int) -> tuple[np.ndarray, str]:
        from cascade_train.nano.world import render

        return render(self.source.kind, self.source.seed, row)

    def caption(self, row: int) -> str:
        from cascade_train.nano.world import scene

        if self.source.kind == "rich":
            return self.render(row)[1]
        return scene(self.source.kind, self.source.seed, row)[1]

    def read(self, entry: Entry) -> bytes:
        return self.render(entry.row)[0].tobytes()

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        return self.render(entry.row)[0]


def open_source(source: Source, cache: Path, tell: Tell | None = None) -> Reader:
    """A reader for a local source.

    Raises:
        CascadeError: it is gone, or its content is no longer what the dataset describes.
    """
    reader: Any
    if isinstance(source, WorldSource):
        return WorldReader(source)
    if isinstance(source, FolderSource):
        root = Path(source.path)
        reader = FolderReader(root, index_folder(root, source.recursive, cache, tell))
    elif isinstance(source, TarSource):
        path = Path(source.path)
        reader = MembersReader(path, index_tar(path, cache, tell))
    else:
        raise CascadeError(
            "a streamed source cannot be read at random",
            fix="Use it alone, or copy the shards to this machine",
        )
    if source.content and reader.content != source.content:
        raise CascadeError(
            "the dataset has changed since this graph read it",
            where=source.path,
            fix="Queue the graph again: a run is named by what it was trained on",
        )
    return reader


def folder_source(path: Path, recursive: bool, cache: Path, tell: Tell | None = None) -> FolderSource:
    """The source that describes what is in the folder now; its index is made on the way."""
    return FolderSource(index_folder(path, recursive, cache, tell).content, str(path), recursive)


def tar_source(path: Path, cache: Path, tell: Tell | None = None) -> TarSource:
    """The source that describes what is in the tar now; its index is made on the way."""
    return TarSource(index_tar(path, cache, tell).content, str(path))
