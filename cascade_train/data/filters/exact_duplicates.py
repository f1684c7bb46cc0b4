"""One of every group of pictures whose files are equal, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from cascade_train.data.content import index_key, whole
from cascade_train.data.filters.base import Filter, Judge
from cascade_train.data.sample import Sample


@dataclass(frozen=True)
class ExactDuplicates(Filter):
    """Keeps the first of equal pictures."""

    remembers: ClassVar[bool] = True
    on_streams: ClassVar[str] = (
        "duplicates are looked for in each epoch anew, among the samples read before in it, so that which of "
        "them is shown changes with the order of the shards"
    )

    @property
    def reason(self) -> str:
        return "duplicate"

    def judge(self) -> Judge:
        return _Seen().keep


class _Seen:
    """What went by. Only pictures that an index cannot tell apart are read."""

    def __init__(self) -> None:
        self._first: dict[str, Callable[[], bytes]] = {}
        self._digests: dict[str, set[str]] = {}

    def keep(self, sample: Sample) -> bool:
        key = index_key(sample.entry)
        if key not in self._digests:
            later = sample.origin.later(sample.entry)
            if later is not None and key not in self._first:
                self._first[key] = later
                return True
            self._digests[key] = _digests_of(self._first.pop(key, None))
        digest = whole(sample.data())
        known = digest in self._digests[key]
        self._digests[key].add(digest)
        return not known


def _digests_of(first: Callable[[], bytes] | None) -> set[str]:
    try:
        return {whole(first())} if first else set()
    except OSError:  # gone meanwhile: nothing equals it
        return set()
