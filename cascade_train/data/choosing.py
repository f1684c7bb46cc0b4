"""Which samples of sources are used: whole ones that pass the filters and have a caption."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from cascade_train.data.entry import Entry, printable, to_blob
from cascade_train.data.filters.sieve import Sieve
from cascade_train.data.readers import Reader
from cascade_train.data.report import Tallies
from cascade_train.data.sample import Sample, Unusable
from cascade_train.data.selection import Rows
from cascade_train.data.spec import Dataset
from cascade_train.host.progress import Progress

_CHUNK, _DECODED_CHUNK = 1024, 64
"""Samples that filters look at together, and between two reports of progress."""
_TOLD = 4096


@dataclass(frozen=True)
class Leaf:
    """A source opened, the dataset that describes its captions, and what its samples go through."""

    reader: Reader
    dataset: Dataset
    sieve: Sieve


def choose(leaf: Leaf, tallies: Tallies, progress: Progress) -> Rows:
    """The samples of a source that are used; the others are counted."""
    rows, widths, heights, chances = array("q"), array("q"), array("q"), array("Q")
    for entry in _used(leaf, tallies, progress):
        rows.append(entry.row)
        widths.append(entry.width)
        heights.append(entry.height)
        name = to_blob(entry.name) + b"%d" % entry.crc
        chances.append(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little"))
    if leaf.reader.own_captions:
        tallies.captioned += len(rows)
    return Rows(
        np.array(rows, dtype=np.int64),
        np.array(widths, dtype=np.int64),
        np.array(heights, dtype=np.int64),
        np.array(chances, dtype=np.uint64),
    )


def _used(leaf: Leaf, tallies: Tallies, progress: Progress) -> Iterator[Entry]:
    for sample in _passed(leaf, tallies, progress):
        if leaf.reader.own_captions or _captioned(sample, tallies):
            yield sample.entry


def _passed(leaf: Leaf, tallies: Tallies, progress: Progress) -> Iterator[Sample]:
    """The samples that are whole and pass the filters."""
    measuring = bool(leaf.sieve.measures)
    captions = partial(leaf.reader.captions, spec=leaf.dataset.captions)
    total, seen = len(leaf.reader), 0
    entries = iter(leaf.reader.rows())
    while chunk := list(islice(entries, _DECODED_CHUNK if measuring else _CHUNK)):
        seen += len(chunk)
        if measuring or seen % _TOLD == 0:
            progress(seen, total, f"choosing among {total} samples")
        samples = []
        for entry in chunk:
            if entry.bad:
                tallies.bad.add(entry.bad, printable(entry.name))
            else:
                samples.append(Sample(entry, leaf.reader, captions))
        if not leaf.sieve.filters:
            yield from samples
            continue
        for sample, rejection in zip(samples, leaf.sieve.sift(samples)):
            if rejection is None:
                yield sample
            else:
                tally = tallies.bad if rejection.kind == "bad" else tallies.dropped
                tally.add(rejection.reason, printable(sample.entry.name))


def _captioned(sample: Sample, tallies: Tallies) -> bool:
    try:
        captions = sample.captions
    except Unusable as error:
        tallies.bad.add(str(error), printable(sample.entry.name))
        return False
    if captions is None:
        tallies.uncaptioned.add("without caption", printable(sample.entry.name))
        return False
    tallies.captioned += 1
    tallies.several += len(captions) > 1
    tallies.empty += captions == ("",)
    return True
