"""The whole content of each picture of a source, as it was first read.

An index recognises a picture by its length and both ends. Whenever its bytes pass by, all of them are hashed
and compared with what was read before: of the file that lies there, and of the one by this name that was
decoded for the dataset that a run is named after. So neither a latent, nor a measure, nor a run is taken for
another picture's. Files are believed while their times stay as they are; one that was never decoded may be
mended.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.data.content import ends, whole
from cascade_train.data.entry import Entry, printable, to_blob
from cascade_train.data.measured import MeasureStore, opened
from cascade_train.errors import CascadeError

CONTENTS = "contents"
"""The folder beside indexes that holds them."""

_WHOLE, _DECODED = "whole", "decoded"
_REMEMBERED = 1 << 17
"""Pictures of a source whose content is kept in memory."""


class Contents:
    """Of one source. Safe from many threads, and from spawned processes.

    Args:
        cache: the folder that indexes are kept in.
        place: where the source lies, with all that changes when it is replaced as one.
        content: names what it holds, as runs are named.
    """

    def __init__(self, cache: Path, place: str, content: str) -> None:
        self._folder, self._place, self._content = cache / CONTENTS, place, content
        self._start()

    def _start(self) -> None:
        self._known: dict[str, str] = {}
        self._decoded: set[str] = set()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None, "_decoded": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @property
    def _store(self) -> MeasureStore:
        return opened(self._folder)

    def known(self, entries: Sequence[Entry]) -> list[str]:
        """`content.whole` of the pictures as they lie there; "" of those that nobody has read.

        Raises:
            CascadeError: one is not what the dataset was named with.
        """
        out = [entry.whole or self._known.get(entry.name, "") for entry in entries]
        missing = [at for at, found in enumerate(out) if not found]
        if not missing:
            return out
        keys = [file_key(self._place, entries[at]) for at in missing]
        kept = self._store.find(sorted(set(keys)))
        learnt, decoded = {}, {}
        for at, key in zip(missing, keys):
            values = kept.get(key, {})
            if _WHOLE in values:
                name = entries[at].name
                out[at] = learnt[name] = values[_WHOLE]
                if values.get(_DECODED):
                    decoded[name] = values[_WHOLE]
        self._compare(learnt)
        self._name(decoded)
        self._remember(learnt)
        return out

    def read(self, entry: Entry, data: bytes) -> str:
        """`content.whole` of ``data``, which was read as the picture ``entry``.

        Raises:
            CascadeError: that is another picture than the index or the dataset's name were made from.
        """
        found = whole(data)
        if self._known.get(entry.name) == found:
            return found
        (before,) = self.known([entry])
        if len(data) != entry.size or ends(data) != entry.crc or before not in ("", found):
            raise CascadeError(
                "this picture has changed since the dataset was opened",
                where=printable(entry.name),
                fix="Run again: a run is named by what it was trained on",
            )
        self._compare({entry.name: found})
        self._store.add(file_key(self._place, entry), {_WHOLE: found})
        self._remember({entry.name: found})
        return found

    def decoded(self, entry: Entry) -> None:
        """Keep that the picture, just read, could be decoded: it stands behind the dataset's name now."""
        found = self._known.get(entry.name)
        if found is None or entry.name in self._decoded:
            return
        self._store.add(file_key(self._place, entry), {_WHOLE: found, _DECODED: True})
        self._name({entry.name: found})
        with self._lock:
            self._decoded.add(entry.name)

    def settle(self, found: Sequence[tuple[str, str, str]]) -> None:
        """Keep what files are: (name in the source, `file_key`, `content.whole`).

        Raises:
            CascadeError: one is not what the dataset was named with.
        """
        self._compare({name: content for name, _, content in found})
        for _, key, content in found:
            self._store.add(key, {_WHOLE: content})

    def _named(self, names: Iterable[str]) -> dict[str, tuple[str, str | None]]:
        """(key, content) of the pictures that stand behind the dataset's name, by their own."""
        keys = {name: _key(self._content, to_blob(name), "") for name in names}
        kept = self._store.find(sorted(keys.values())) if keys else {}
        return {name: (key, kept.get(key, {}).get(_WHOLE)) for name, key in keys.items()}

    def _name(self, found: Mapping[str, str]) -> None:
        for name, (key, before) in self._named(found).items():
            if before is None:
                self._store.add(key, {_WHOLE: found[name]})

    def _compare(self, found: Mapping[str, str]) -> None:
        for name, (_, before) in self._named(found).items():
            if before not in (None, found[name]):
                raise CascadeError(
                    "this picture is no longer the one that the dataset was named with: it was changed and "
                    "kept its length and both ends",
                    where=printable(name),
                    fix="Save it under another name, or put the earlier one back",
                )

    def _remember(self, found: Mapping[str, str]) -> None:
        with self._lock:
            if len(self._known) + len(found) > _REMEMBERED:
                self._known.clear()
                self._decoded.clear()
            self._known.update(found)


def file_key(place: str, entry: Entry) -> str:
    """Names the file of a picture that lies at ``place``, as its times are."""
    stamp = entry.stamp.partition("|")[0]
    return _key(place, to_blob(entry.name), f"{entry.offset} {entry.size} {entry.crc} {stamp}")


def _key(place: str, name: bytes, rest: str) -> str:
    said = hashlib.blake2b(digest_size=16)
    for part in (place.encode("utf-8", "surrogateescape"), name, rest.encode("utf-8", "surrogateescape")):
        said.update(b"%d:" % len(part) + part)
    return said.hexdigest()
