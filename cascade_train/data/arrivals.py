"""One sample of a stream: read, judged, and not yet decoded."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cascade_train.data.buckets import Buckets
from cascade_train.data.captions import captions_of
from cascade_train.data.content import whole
from cascade_train.data.entry import Entry, printable
from cascade_train.data.filters.sieve import Sieve
from cascade_train.data.members import read_member
from cascade_train.data.order import mix
from cascade_train.data.pixels import decode
from cascade_train.data.probe import probe
from cascade_train.data.said import metadata_json
from cascade_train.data.sample import Sample, Unusable
from cascade_train.data.shard import ShardSample, said
from cascade_train.data.spec import CaptionSpec


@dataclass(frozen=True)
class Arrival:
    """A sample with its picture's bytes, its captions, and the number of its bucket."""

    entry: Entry
    data: bytes
    captions: tuple[str, ...]
    bucket: int


@dataclass(frozen=True)
class _InHand:
    """The bytes of a picture that goes by."""

    data: bytes
    remembered: bool = True

    def read(self, entry: Entry) -> bytes:
        return self.data

    def known(self, entries: Sequence[Entry]) -> list[str]:
        return [whole(self.data)] * len(entries)

    def whole(self, entry: Entry) -> str:
        return whole(self.data)

    def later(self, entry: Entry) -> None:
        return None

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        return decode(self.data, background, need, (entry.width, entry.height))


class LeftOut(Exception):
    """A sample that is not used, and why: it is bad, filters drop it, or it has no caption."""

    def __init__(self, kind: Literal["bad", "dropped", "without caption"], reason: str, name: str) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.name = kind, reason, name


def arrived(
    path: Path, sample: ShardSample, captions: CaptionSpec, sieve: Sieve, rule: Buckets, sizes: int
) -> Arrival:
    """The ``sample`` of the tar at ``path``, decoded only where a filter measures it.

    Args:
        captions: where captions come from.
        sieve: what it has to pass.
        rule: sorts into buckets; only the first ``sizes`` of them may be used.

    Raises:
        LeftOut: it is not used.
        CascadeError: the caption rule is wrong for any sample.
    """
    name, picture = sample.name, sample.picture
    if sample.bad or picture is None:
        raise LeftOut("bad", sample.bad, printable(name))
    words = said(path, sample)
    try:
        data = read_member(path, picture.offset, picture.size)
    except OSError:
        raise LeftOut("bad", "cannot be read", printable(name)) from None
    seen = probe(io.BytesIO(data), len(data))
    if words.bad or seen.bad:
        raise LeftOut("bad", words.bad or seen.bad, printable(name))
    entry = Entry(
        name,
        size=len(data),
        crc=seen.crc,
        width=seen.width,
        height=seen.height,
        texts=json.dumps(words.texts),
        meta=metadata_json(words.meta),
    )
    judged = Sample(
        entry, _InHand(data), lambda entry: captions_of(captions, entry.name, words.texts, words.meta)
    )
    (rejection,) = sieve.sift([judged])
    if rejection is not None:
        raise LeftOut(rejection.kind, rejection.reason, printable(name))
    bucket = int(
        rule.assign(
            np.array([entry.width]), np.array([entry.height]), np.array([mix(entry.crc)], dtype=np.uint64)
        )[0]
    )
    if not 0 <= bucket < sizes:
        raise LeftOut("dropped", "too small", printable(name))
    try:
        found = judged.captions
    except Unusable as error:
        raise LeftOut("bad", str(error), printable(name)) from error
    if found is None:
        raise LeftOut("without caption", "without caption", printable(name))
    return Arrival(entry, data, found, bucket)
