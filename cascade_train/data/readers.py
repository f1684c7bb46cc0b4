"""One way to read every kind of source: rows of an index, and the bytes or pixels of one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from cascade_train.data.captions import captions_of
from cascade_train.data.contents import Contents
from cascade_train.data.entry import Entry
from cascade_train.data.folder import index_folder
from cascade_train.data.index import Index
from cascade_train.data.links import Roots
from cascade_train.data.members import read_member
from cascade_train.data.pixels import decode
from cascade_train.data.spec import CaptionSpec, FolderSource, Source, TarSource
from cascade_train.data.tars import index_tar
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent

PICTURES = "pictures"
"""The folder of the cache that holds pictures from other nodes, each set under a digest."""


Tell = Callable[[str], object]
"""Takes a line for a person."""


def unheard(line: str) -> None:
    """Tells nobody."""


class Reader(ABC):
    """A source opened for reading; safe from many threads, and from spawned processes.

    ``label`` is what people know the source by: the folder's or the tar's name.
    """

    own_captions: ClassVar[bool] = False
    """Whether each sample has just one caption, of its own, whatever the dataset's caption rule says."""

    remembered: bool = True
    """Whether what is found out about its samples is worth keeping on disk."""

    label: str

    @property
    @abstractmethod
    def content(self) -> str:
        """Identifies what it holds, wherever it lies."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What else was noticed when it was indexed, for the report."""
        return {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person is told of how it was indexed."""
        return ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self) -> Iterator[Entry]: ...

    @abstractmethod
    def row(self, row: int) -> Entry: ...

    @abstractmethod
    def read(self, entry: Entry) -> bytes:
        """The file's bytes; OSError when they can no longer be read."""

    def known(self, entries: Sequence[Entry]) -> list[str]:
        """What `whole` gives of each of ``entries``, as far as it is known without reading; else ""."""
        return [f"{self.content} {entry.name} {entry.crc}" for entry in entries]

    def whole(self, entry: Entry) -> str:
        """Names the whole content of a picture; OSError when it has to be read for that and cannot be."""
        return self.known([entry])[0]

    def later(self, entry: Entry) -> Callable[[], bytes]:
        """What reads a sample again, without its entry being kept until then."""
        return partial(self._read_row, entry.row)

    def _read_row(self, row: int) -> bytes:
        return self.read(self.row(row))

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        """Upright sRGB uint8 (H, W, 3) that covers ``need``; BadImage or OSError when there are none."""
        return decode(self.read(entry), background, need, (entry.width, entry.height))

    def captions(self, entry: Entry, spec: CaptionSpec) -> tuple[str, ...] | None:
        """All captions of a sample by ``spec``; None when it has none and none may be made up."""
        return captions_of(spec, entry.name, entry.caption_files(), entry.metadata(), self.label)

    def load(
        self,
        entry: Entry,
        background: tuple[int, int, int],
        need: tuple[int, int] | None,
        spec: CaptionSpec,
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """`pixels` and `captions` at once, ``("",)`` for no caption."""
        return self.pixels(entry, background, need), self.captions(entry, spec) or ("",)


class _Indexed(Reader):
    """Files, or members of one. What is read is compared with what the index was made from (`Contents`)."""

    def __init__(self, index: Index, label: str, contents: Contents) -> None:
        self.index = index
        self.label = label
        self._contents = contents

    @property
    def content(self) -> str:
        return self.index.content

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.index.facts

    @property
    def notes(self) -> tuple[str, ...]:
        return self.index.notes

    def __len__(self) -> int:
        return len(self.index)

    def rows(self) -> Iterator[Entry]:
        return self.index.rows()

    def row(self, row: int) -> Entry:
        return self.index.row(row)

    def read(self, entry: Entry) -> bytes:
        """The file's bytes.

        Raises:
            OSError: they can no longer be read.
            CascadeError: it is another picture than the index or the dataset's name were made from.
        """
        data = self._bytes(entry)
        self._contents.read(entry, data)
        return data

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        pixels = super().pixels(entry, background, need)
        self._contents.decoded(entry)
        return pixels

    @abstractmethod
    def _bytes(self, entry: Entry) -> bytes: ...

    def known(self, entries: Sequence[Entry]) -> list[str]:
        return self._contents.known(entries)

    def whole(self, entry: Entry) -> str:
        return self.known([entry])[0] or self._contents.read(entry, self._bytes(entry))


class FolderReader(_Indexed):
    def __init__(self, root: Path, index: Index) -> None:
        label = "images" if root.parent.name == PICTURES else root.name
        super().__init__(index, label, Contents(index.path.parent, str(root.resolve()), index.content))
        self.root = root

    def _bytes(self, entry: Entry) -> bytes:
        return (self.root / entry.name).read_bytes()


class MembersReader(_Indexed):
    def __init__(self, path: Path, index: Index) -> None:
        place = str(index.facts.get("place", ""))
        super().__init__(index, path.name, Contents(index.path.parent, place, index.content))
        self.path = path

    def _bytes(self, entry: Entry) -> bytes:
        return read_member(self.path, entry.offset, entry.size)


_S = TypeVar("_S", bound=Source)
_OPENERS: dict[type[Source], Callable[[Any, Path, Progress], Reader]] = {}


def opens(
    kind: type[_S],
) -> Callable[[Callable[[_S, Path, Progress], Reader]], Callable[[_S, Path, Progress], Reader]]:
    """Marks the function that opens sources of ``kind``: it takes the source, the folder that indexes are
    kept in, and a progress. A source of another room stands in one module with it, so that whoever has the
    source, a spawned process too, can open it."""

    def register(
        opener: Callable[[_S, Path, Progress], Reader],
    ) -> Callable[[_S, Path, Progress], Reader]:
        _OPENERS[kind] = opener
        return opener

    return register


def open_source(source: Source, cache: Path, progress: Progress = silent) -> Reader:
    """A reader for a source on this machine.

    Raises:
        CascadeError: it is gone, or its content is no longer what the dataset describes.
    """
    opener = _OPENERS.get(type(source))
    if opener is None:
        raise CascadeError(
            "a streamed source cannot be read at random",
            fix="Use it alone, or copy the shards to this machine",
        )
    return opener(source, cache, progress)


@opens(FolderSource)
def _open_folder(source: FolderSource, cache: Path, progress: Progress) -> Reader:
    root = Path(source.path)
    index = index_folder(root, source.recursive, cache, progress, source.ending, source.links)
    return _unchanged(FolderReader(root, index), source)


@opens(TarSource)
def _open_tar(source: TarSource, cache: Path, progress: Progress) -> Reader:
    path = Path(source.path)
    return _unchanged(MembersReader(path, index_tar(path, cache, progress, source.ending)), source)


def _unchanged(reader: Reader, source: FolderSource | TarSource) -> Reader:
    if source.content and reader.content != source.content:
        raise CascadeError(
            "the dataset has changed since this graph read it",
            where=source.path,
            fix="Queue the graph again: a run is named by what it was trained on",
        )
    return reader


def folder_source(
    path: Path,
    recursive: bool,
    cache: Path,
    progress: Progress = silent,
    tell: Tell = unheard,
    ending: str = "",
    links: Roots = None,
) -> FolderSource:
    """The source that describes what is in the folder now; its index is made on the way.

    ``tell`` hears lines for a person. Of pictures that share a key it has the one with ``ending``.
    """
    index = index_folder(path, recursive, cache, progress, ending, links)
    for note in index.notes:
        tell(note)
    return FolderSource(index.content, str(path), recursive, ending, links)


def tar_source(
    path: Path, cache: Path, progress: Progress = silent, tell: Tell = unheard, ending: str = ""
) -> TarSource:
    """The source that describes what is in the tar now; its index is made on the way.

    What is no tar is a source of one bad sample. ``tell`` and ``ending`` are as in `folder_source`.
    """
    index = index_tar(path, cache, progress, ending)
    for note in index.notes:
        tell(note)
    return TarSource(index.content, str(path), ending)
