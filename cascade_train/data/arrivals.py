"""One sample of a stream: read, judged, and not yet decoded."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cascade_train.data.buckets import Buckets
from cascade_train.data.captions import captions_of
from cascade_train.data.content import whole
from cascade_train.data.entry import Entry, printable
from cascade_train.data.filters.sieve import Sieve
from cascade_train.data.folder import TEXTS, metadata_json
from cascade_train.data.order import mix
from cascade_train.data.pixels import EXTENSIONS, decode
from cascade_train.data.probe import probe
from cascade_train.data.sample import Sample, Unusable
from cascade_train.data.spec import CaptionSpec
from cascade_train.data.tars import TarGroup


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
    sample: dict[str, Any], captions: CaptionSpec, sieve: Sieve, rule: Buckets, sizes: int
) -> Arrival:
    """The sample (`shards.samples_in`), decoded only where a filter measures it.

    Args:
        captions: where captions come from.
        sieve: what it has to pass.
        rule: sorts into buckets; only the first ``sizes`` of them may be used.

    Raises:
        LeftOut: it is not used.
        CascadeError: the caption rule is wrong for any sample.
    """
    key = str(sample["__key__"])
    group = TarGroup()
    picture: tuple[str, bytes] | None = None
    for ending, data in sample.items():
        if ending.startswith("__") or not isinstance(data, bytes):
            continue
        last = ending.rpartition(".")[2]
        if last in EXTENSIONS:
            if picture is None or ending in EXTENSIONS:
                picture = ending, data
        elif "." + last in TEXTS:
            group.say("." + ending, data)
    if picture is None:
        raise LeftOut("bad", "no picture in this sample", printable(key))
    name = f"{key}.{picture[0]}"
    seen = probe(io.BytesIO(picture[1]), len(picture[1]))
    if group.bad or seen.bad:
        raise LeftOut("bad", group.bad or seen.bad, printable(name))
    entry = Entry(
        name,
        size=len(picture[1]),
        crc=seen.crc,
        width=seen.width,
        height=seen.height,
        texts=json.dumps(group.texts),
        meta=metadata_json(group.meta),
    )
    judged = Sample(
        entry, _InHand(picture[1]), lambda entry: captions_of(captions, entry.name, group.texts, group.meta)
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
    return Arrival(entry, picture[1], found, bucket)
