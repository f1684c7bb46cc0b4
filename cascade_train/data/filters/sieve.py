"""Filters at work: samples go through them in order, and each picture is decoded at most once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from cascade_train.data.filters.base import Dropped, Filter, Judge
from cascade_train.data.measured import MeasureStore
from cascade_train.data.measures import CHEAP, WHITE, Measure, measured, working_size
from cascade_train.data.pixels import BadImage
from cascade_train.data.sample import Sample, Unusable
from cascade_train.digest import canonical

_UNKEPT = "unkept"


@dataclass(frozen=True)
class Rejection:
    """Why a sample is not used: filters drop it, or it is bad."""

    kind: Literal["bad", "dropped"]
    reason: str


class Sieve:
    """Filters with what they remember of one way through a dataset. Asked by one thread at a time.

    Results of measures are looked up in ``store``, and added to it. A picture that cannot be decoded is bad;
    that is not kept, since a mended file may look the same to an index.
    """

    def __init__(self, filters: Sequence[Filter], store: MeasureStore) -> None:
        self._store = store
        self._judges: list[tuple[Filter, Judge]] = [(each, each.judge()) for each in filters]
        self.unread = 0
        """Samples that were bad because they could not be read or decoded."""

    def inside(self, filters: Sequence[Filter]) -> Sieve:
        """A sieve whose samples go through ``filters`` first and then through this one."""
        inner = Sieve(filters, self._store)
        inner._judges += self._judges
        return inner

    @property
    def filters(self) -> tuple[Filter, ...]:
        return tuple(each for each, _ in self._judges)

    @property
    def remembers(self) -> bool:
        """Whether what becomes of a sample depends on the samples before it."""
        return any(each.remembers for each in self.filters)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(dict.fromkeys(measure for each in self.filters for measure in each.measures))

    def described(self, known: dict[int, int]) -> list[Any]:
        """Names the filters, and which of them are one with those of other sieves in ``known``."""
        return [
            [
                canonical(each),
                [measure.key for measure in each.measures],
                known.setdefault(id(judge), len(known)),
            ]
            for each, judge in self._judges
        ]

    def sift(self, samples: Sequence[Sample]) -> list[Rejection | None]:
        """What becomes of each of ``samples``, the next in order; None for those that are kept."""
        out: list[Rejection | None] = [None] * len(samples)
        for each, judge in self._judges:
            left = [at for at, found in enumerate(out) if found is None]
            if each.measures:
                for at, trouble in zip(left, self._measure([samples[at] for at in left], each.measures)):
                    if trouble:
                        out[at] = Rejection("bad", trouble)
                        self.unread += 1
                left = [at for at in left if out[at] is None]
            for at in left:
                out[at] = self._judged(each, judge, samples[at])
        return out

    def _judged(self, each: Filter, judge: Judge, sample: Sample) -> Rejection | None:
        try:
            return None if judge(sample) else Rejection("dropped", each.reason)
        except Dropped as error:
            return Rejection("dropped", str(error))
        except Unusable as error:
            return Rejection("bad", str(error))
        except (BadImage, OSError) as error:
            self.unread += 1
            return Rejection("bad", trouble_of(error))

    def _measure(self, samples: Sequence[Sample], wanted: Sequence[Measure]) -> list[str]:
        """Give ``samples`` the results of ``wanted``; why one cannot be decoded, "" where it can."""
        keys = self._keys(samples)
        known = self._store.find(sorted({key for key in keys if key})) if any(keys) else {}
        missing: dict[str, list[Sample]] = {}
        for sample, key in zip(samples, keys):
            sample.values.update(known.get(key, {}))
            if any(measure.key not in sample.values for measure in wanted):
                missing.setdefault(key or f"{_UNKEPT} {id(sample)}", []).append(sample)
        troubles: dict[int, str] = {}
        firsts = [group[0] for group in missing.values()]
        for (key, group), found in zip(missing.items(), self._decoded(firsts)):
            for sample in group:
                if isinstance(found, str):
                    troubles[id(sample)] = found
                else:
                    sample.values.update(found)
            if not key.startswith(_UNKEPT) and not isinstance(found, str):
                self._store.add(key, found)
        return [troubles.get(id(sample), "") for sample in samples]

    def _keys(self, samples: Sequence[Sample]) -> list[str]:
        """What results are kept by, the whole content of each picture; "" where they are not kept."""
        keys = [""] * len(samples)
        origins: dict[int, list[int]] = {}
        for at, sample in enumerate(samples):
            if sample.origin.remembered:
                origins.setdefault(id(sample.origin), []).append(at)
        for places in origins.values():
            origin = samples[places[0]].origin
            for at, key in zip(places, origin.known([samples[at].entry for at in places])):
                keys[at] = key
        unread = [at for at, sample in enumerate(samples) if sample.origin.remembered and not keys[at]]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for at, key in zip(unread, pool.map(_whole, [samples[at] for at in unread])):
                keys[at] = key
        return keys

    def _decoded(self, samples: Sequence[Sample]) -> Iterable[dict[str, float] | str]:
        measures = tuple(dict.fromkeys((*CHEAP, *self.measures)))
        if len(samples) < 2:
            return [_decoded(measures, sample) for sample in samples]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            return list(pool.map(partial(_decoded, measures), samples))


def _whole(sample: Sample) -> str:
    try:
        return sample.origin.whole(sample.entry)
    except OSError:  # found out again where it is decoded
        return ""


def _decoded(measures: Sequence[Measure], sample: Sample) -> dict[str, float] | str:
    """The results by key, or why the picture cannot be decoded."""
    entry = sample.entry
    try:
        pixels = sample.origin.pixels(entry, WHITE, working_size(entry.width, entry.height))
    except (BadImage, OSError) as error:
        return trouble_of(error)
    return measured(pixels, measures)


def trouble_of(error: Exception) -> str:
    """Why a picture is bad, as the report says it."""
    return str(error) if isinstance(error, BadImage) else f"cannot be read ({type(error).__name__})"
