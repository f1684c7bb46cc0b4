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
from cascade_train.data.expressions import Expression
from cascade_train.data.folder import TEXTS, as_json
from cascade_train.data.index import shown
from cascade_train.data.order import mix
from cascade_train.data.pixels import EXTENSIONS
from cascade_train.data.probe import Entry, probe
from cascade_train.data.select import rejected
from cascade_train.data.spec import CaptionSpec
from cascade_train.data.tars import Group
from cascade_train.errors import CascadeError


@dataclass(frozen=True)
class Held:
    """A sample with its picture's bytes, its captions, and the number of its bucket."""

    entry: Entry
    data: bytes
    captions: tuple[str, ...]
    bucket: int


class LeftOut(Exception):
    """A sample that is not used, and why: it is bad, filters drop it, or it has no caption."""

    def __init__(self, kind: Literal["bad", "dropped", "without caption"], reason: str, name: str) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.name = kind, reason, name


def held(
    sample: dict[str, Any], captions: CaptionSpec, filters: Sequence[Expression], rule: Buckets, sizes: int
) -> Held:
    """The sample (`shards.samples_in`) with what is known of it without decoding.

    Args:
        captions: where captions come from.
        filters: what it has to pass.
        rule: sorts into buckets; only the first ``sizes`` of them may be used.

    Raises:
        LeftOut: it is not used.
        CascadeError: the caption rule is wrong for any sample.
    """
    key = str(sample["__key__"])
    group = Group()
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
        raise LeftOut("bad", "no picture in this sample", shown(key))
    name = f"{key}.{picture[0]}"
    seen = probe(io.BytesIO(picture[1]), len(picture[1]))
    if group.bad or seen.bad:
        raise LeftOut("bad", group.bad or seen.bad, shown(name))
    entry = Entry(
        name,
        size=len(picture[1]),
        crc=seen.crc,
        width=seen.width,
        height=seen.height,
        texts=json.dumps(group.texts),
        meta=as_json(group.meta),
    )
    reason = rejected(entry, list(filters)) if filters else ""
    if reason:
        raise LeftOut("dropped", reason, shown(name))
    bucket = int(
        rule.assign(
            np.array([entry.width]), np.array([entry.height]), np.array([mix(entry.crc)], dtype=np.uint64)
        )[0]
    )
    if not 0 <= bucket < sizes:
        raise LeftOut("dropped", "too small", shown(name))
    try:
        found = captions_of(captions, entry.name, group.texts, group.meta)
    except CascadeError:
        raise
    except Exception as error:  # whatever the person's expression does with this sample's values
        raise LeftOut("bad", f"caption expression: {error}", shown(name)) from error
    if found is None:
        raise LeftOut("without caption", "without caption", shown(name))
    return Held(entry, picture[1], found, bucket)
