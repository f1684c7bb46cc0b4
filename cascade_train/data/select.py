"""From a dataset's description to the samples that can be drawn: which rows, which bucket, how often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from cascade_train.data.buckets import Buckets
from cascade_train.data.choosing import Leaf
from cascade_train.data.entry import WRITTEN, printable
from cascade_train.data.filters.sieve import Sieve
from cascade_train.data.links import told
from cascade_train.data.measured import MeasureStore
from cascade_train.data.noted import choices
from cascade_train.data.readers import FolderReader, Reader, open_source
from cascade_train.data.report import BucketCount, Report, Tallies
from cascade_train.data.selection import Selection, SourceRows
from cascade_train.data.spec import Dataset
from cascade_train.data.unused import OTHER, Unused
from cascade_train.data.unused import warnings as unused_warnings
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent

_LOOKED_AT, _FIELDS = 256, 30
"""Samples whose metadata is looked at for the names of fields, and how many of these are shown."""


def select(
    dataset: Dataset,
    *,
    multiple: int,
    native_side: int,
    factor: int | None,
    index: Path,
    store: MeasureStore,
    progress: Progress = silent,
    strict: bool = True,
) -> Selection:
    """Open ``dataset``'s sources and choose its samples.

    Indexes and notes are kept in the folder ``index``, what is measured of pictures in ``store``. With
    ``strict`` off nothing but a missing source or a setting that cannot be is an error: the report tells what
    would be one.

    Raises:
        CascadeError: no sample is left, captions are missing, too many samples are bad, or a source is gone.
    """
    tallies = Tallies()
    parts = _gather(dataset, tallies, index, store, progress)
    unused = [(part.reader.label, Unused.from_data(part.reader.facts.get("unused", {}))) for part in parts]
    warnings = [*unused_warnings(_to_tell(parts, unused, strict))]
    warnings += [line for part in parts for line in _noticed(part.reader)]
    if store.trouble:
        warnings.append(f"what was measured of the pictures could not be kept ({store.trouble})")
    if store.lost:
        warnings.append(
            f"{store.lost} files of what was measured of pictures were damaged or of another version; these "
            "pictures are measured again"
        )
    _judge(dataset, parts, tallies, warnings, strict)
    buckets = Buckets(dataset.buckets, multiple, native_side, factor)
    widths = np.concatenate([part.left.widths for part in parts])
    heights = np.concatenate([part.left.heights for part in parts])
    chances = np.concatenate([part.left.chances for part in parts])
    bucket_of = buckets.assign(widths, heights, chances)
    part_of = np.repeat(np.arange(len(parts)), [len(part.left) for part in parts])
    row_of = np.concatenate([part.left.rows for part in parts])
    small = np.flatnonzero(bucket_of < 0)
    for at in small:
        part = parts[part_of[at]]
        name = printable(part.reader.row(int(row_of[at])).name) if at in small[:10] else ""
        tallies.dropped.add("too small", name)
    kept = bucket_of >= 0
    part_of, row_of, bucket_of, chances = part_of[kept], row_of[kept], bucket_of[kept], chances[kept]
    widths, heights = widths[kept].astype(np.int32), heights[kept].astype(np.int32)
    if not len(row_of):
        if strict:
            raise CascadeError(
                "no sample is left in the dataset",
                fix="Dropped: " + "; ".join(c.line() for c in tallies.dropped.counts()),
            )
        warnings.append("no sample is left, an error when training")
    times = np.array([part.times for part in parts])[part_of] if len(part_of) else np.zeros(0)
    whole = np.floor(times + 1e-9).astype(np.int64)
    return Selection(
        tuple(parts),
        part_of,
        row_of,
        bucket_of,
        widths,
        heights,
        chances,
        tuple(buckets.sizes),
        whole,
        np.clip(times - whole, 0, 1),
        replace(
            _report(buckets, bucket_of, times, tallies, warnings),
            unused=tuple(
                (name if len(unused) == 1 else f"{label}/{name}", reason)
                for label, found in unused
                for name, reason in found.names
            ),
        ),
    )


def _report(
    buckets: Buckets, bucket_of: np.ndarray, times: np.ndarray, tallies: Tallies, warnings: list[str]
) -> Report:
    counts = (
        np.bincount(bucket_of, minlength=len(buckets.sizes)) if len(bucket_of) else [0] * len(buckets.sizes)
    )
    return Report(
        samples=len(bucket_of),
        epoch=round(float(times.sum())),
        bad=tallies.bad.counts(),
        dropped=tallies.dropped.counts(),
        buckets=tuple(
            BucketCount(bucket.width, bucket.height, *bucket.grid, int(counts[number]))
            for number in range(len(buckets.sizes))
            if counts[number] and (bucket := buckets.bucket(number))
        ),
        captioned=tallies.captioned,
        several_captions=tallies.several,
        empty_captions=tallies.empty,
        warnings=(*warnings, *buckets.warnings()),
    )


def _gather(
    dataset: Dataset, tallies: Tallies, index: Path, store: MeasureStore, progress: Progress
) -> list[SourceRows]:
    """Every source of ``dataset`` with what is left of it.

    Sources whose filters remember what went by are chosen from together, others each on its own.
    """
    parts: list[SourceRows] = []
    try:
        for group in _groups(dataset, Sieve((), store), index, progress):
            for leaf, left in zip(group, choices(group, tallies, index, progress)):
                parts.append(SourceRows(leaf.reader, leaf.dataset, left))
    finally:
        store.flush()
    return _weighed(dataset, iter(parts))


def _groups(dataset: Dataset, outer: Sieve, index: Path, progress: Progress) -> list[list[Leaf]]:
    """The sources in order, opened; those whose samples go through one filter that remembers are together."""
    sieve = outer.inside(dataset.filters)
    groups: list[list[Leaf]] = []
    for weighted in dataset.sources:
        if isinstance(weighted.source, Dataset):
            groups += _groups(weighted.source, sieve, index, progress)
        else:
            groups.append([Leaf(open_source(weighted.source, index, progress), dataset, sieve)])
    return [[leaf for group in groups for leaf in group]] if sieve.remembers else groups


def _weighed(dataset: Dataset, parts: Iterator[SourceRows]) -> list[SourceRows]:
    """``parts``, the sources of ``dataset`` in order, each with how often an epoch sees it."""
    groups: list[list[SourceRows]] = []
    for weighted in dataset.sources:
        inner = weighted.source
        group = _weighed(inner, parts) if isinstance(inner, Dataset) else [next(parts)]
        for part in group:
            part.times *= max(1, weighted.repeats)
        groups.append(group)
    if any(weighted.share > 0 for weighted in dataset.sources):
        _share_out(dataset, groups)
    return [part for group in groups for part in group]


def _share_out(dataset: Dataset, groups: list[list[SourceRows]]) -> None:
    """Set how often each source is seen so that epochs hold them in the proportion of their shares."""
    if any(weighted.share <= 0 for weighted in dataset.sources):
        raise CascadeError(
            "some of the combined datasets have a share and some have none",
            fix="Give each a share above 0, or none",
        )
    lengths = [sum(len(part.left) * part.times for part in group) for group in groups]
    wanted = [
        weighted.share / length if length else 0.0 for weighted, length in zip(dataset.sources, lengths)
    ]
    least = min((value for value in wanted if value), default=1.0)
    for group, value in zip(groups, wanted):
        for part in group:
            part.times *= value / least if value else 1.0


def _judge(
    dataset: Dataset, parts: list[SourceRows], tallies: Tallies, warnings: list[str], strict: bool
) -> None:
    good = sum(len(part.left) for part in parts)
    bad, missing = tallies.bad, tallies.uncaptioned
    if missing:
        note = "; ".join(count.line() for count in missing.counts())
        if strict:
            raise CascadeError(
                f"{missing.total} of {missing.total + good} pictures have no caption",
                where=note,
                fix="Put a text file of the same name beside each, name the metadata field that holds it, or "
                f"choose a fallback in Caption Options{_columns(parts)}",
            )
        warnings.append(f"without caption, an error when training: {note}{_columns(parts)}")
    if not bad:
        return
    note = "; ".join(count.line() for count in bad.counts())
    share = bad.total / max(1, bad.total + good + tallies.dropped.total)
    refused = dataset.on_bad == "error" or any(leaf.on_bad == "error" for _, leaf in dataset.leaves())
    if strict and (refused or share > dataset.max_bad):
        limit = "none may be" if refused else f"at most {dataset.max_bad:.0%} may be"
        raise CascadeError(
            f"{bad.total} samples are bad ({share:.0%} of the dataset, {limit})",
            where=note,
            fix="Mend or remove these files, or allow more bad samples",
        )
    if strict and not good and not tallies.dropped:
        raise CascadeError("every sample is bad", where=note)


def _to_tell(
    parts: list[SourceRows], unused: list[tuple[str, Unused]], strict: bool
) -> Iterator[tuple[str, Unused]]:
    """What is told of the files that are not used; of a folder's other things only to a person who looks at
    it."""
    for part, (label, found) in zip(parts, unused):
        loose = strict and isinstance(part.reader, FolderReader)
        yield label, found.without(OTHER) if loose else found


def _noticed(reader: Reader) -> Iterator[str]:
    """How an index came to be, and what a person may want to mend in a folder."""
    yield from reader.notes
    if reader.facts.get("links"):
        yield told(reader.facts["links"], reader.facts["link_names"])
    for table in reader.facts.get("tables_bad", ()):
        yield f"metadata of {reader.label} that cannot be used: {table}"


def _columns(parts: list[SourceRows]) -> str:
    """The fields that there are, for a person whose captions were not found."""
    names: dict[str, None] = {}
    for part in parts:
        for entry in islice(part.reader.rows(), _LOOKED_AT):
            names.update(dict.fromkeys(entry.metadata()))
    names.pop(WRITTEN, None)
    shown = ", ".join(printable(name) for name in list(names)[:_FIELDS])
    return f" (their metadata has: {shown})" if shown else ""
