"""One of every group of pictures that look nearly the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar, Literal

from cascade_train.data.filters.base import Filter, Judge
from cascade_train.data.filters.exact_duplicates import ExactDuplicates
from cascade_train.data.measures import DIFFERENCE_HASH
from cascade_train.data.sample import Sample

Duplicates = Literal["keep", "remove", "remove near"]
"""What a person may choose to do about duplicates."""

_BITS = 64


@dataclass(frozen=True)
class NearDuplicates(Filter):
    """Keeps the first of pictures whose difference hashes differ in at most ``distance`` of 64 bits."""

    distance: int = 3

    measures = (DIFFERENCE_HASH,)
    remembers: ClassVar[bool] = True
    on_streams: ClassVar[str] = ExactDuplicates.on_streams

    @property
    def reason(self) -> str:
        return "near duplicate"

    def judge(self) -> Judge:
        return _Seen(self.distance).keep


class _Seen:
    """Hashes that went by, found by bands of their bits: two hashes at most ``distance`` bits apart agree in
    one of ``distance + 1`` bands."""

    def __init__(self, distance: int) -> None:
        self._distance = distance
        bands = max(1, min(distance + 1, 16))
        self._edges = [_BITS * band // bands for band in range(bands + 1)]
        self._known: dict[tuple[int, int], list[int]] = defaultdict(list)

    def keep(self, sample: Sample) -> bool:
        value = int(sample.measure(DIFFERENCE_HASH))
        keys = [
            (low, (value >> low) & ((1 << (high - low)) - 1))
            for low, high in zip(self._edges, self._edges[1:])
        ]
        if any((value ^ other).bit_count() <= self._distance for key in keys for other in self._known[key]):
            return False
        for key in keys:
            self._known[key].append(value)
        return True


def duplicate_filters(choice: Duplicates, distance: int = NearDuplicates.distance) -> tuple[Filter, ...]:
    """The filters that ``choice`` means; near duplicates are looked for among what is not equal."""
    return {
        "keep": (),
        "remove": (ExactDuplicates(),),
        "remove near": (ExactDuplicates(), NearDuplicates(distance)),
    }[choice]
