"""From a dataset's description to the samples that can be drawn: which rows, which bucket, how often."""

from __future__ import annotations

import hashlib
import json
import zipfile
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cascade_train.data.buckets import Buckets
from cascade_train.data.captions import captions_of
from cascade_train.data.expressions import Expression, Missing
from cascade_train.data.folder import TABLES
from cascade_train.data.index import shown, to_blob
from cascade_train.data.probe import Entry
from cascade_train.data.readers import Reader, WorldReader, open_source
from cascade_train.data.report import BucketCount, Report, Tally
from cascade_train.data.spec import Dataset
from cascade_train.digest import digest
from cascade_train.errors import CascadeError
from cascade_train.files import written_beside

_LARGE = 2000
"""Samples from which on the choice among them is noted on disk."""
_NOTE = 1
_ARRAYS = ("rows", "widths", "heights", "chances")
_Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

Tell = Callable[[int, int, str], None]


@dataclass
class Part:
    """The rows of one source that are left, and how often an epoch sees each."""

    reader: Reader
    dataset: Dataset
    rows: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    chances: np.ndarray
    times: float = 1.0

    def keep(self, mask: np.ndarray) -> None:
        self.rows, self.widths, self.heights, self.chances = (
            self.rows[mask],
            self.widths[mask],
            self.heights[mask],
            self.chances[mask],
        )


@dataclass
class _Tallies:
    bad: Tally = field(default_factory=Tally)
    dropped: Tally = field(default_factory=Tally)
    uncaptioned: Tally = field(default_factory=Tally)
    warnings: list[str] = field(default_factory=list)
    captioned: int = 0
    several: int = 0
    empty: int = 0

    def add(self, other: _Tallies) -> None:
        """Count what ``other`` counted."""
        for mine, theirs in (
            (self.bad, other.bad),
            (self.dropped, other.dropped),
            (self.uncaptioned, other.uncaptioned),
        ):
            mine.merge(theirs)
        self.captioned += other.captioned
        self.several += other.several
        self.empty += other.empty


@dataclass(frozen=True)
class Selection:
    """All that can be drawn: sample i is row ``row_of[i]`` of ``parts[part_of[i]]``, in ``bucket_of[i]``."""

    parts: tuple[Part, ...]
    part_of: np.ndarray
    row_of: np.ndarray
    bucket_of: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    chances: np.ndarray
    sizes: tuple[tuple[int, int], ...]
    whole: np.ndarray
    fraction: np.ndarray
    report: Report


def fields_of(entry: Entry) -> dict[str, Any]:
    """What a filter may ask of a sample: its metadata, and its own width, height, aspect, file_size, name."""
    fields = {key: value for key, value in entry.metadata().items() if value is not None}
    fields.update(
        width=entry.width,
        height=entry.height,
        aspect=entry.width / max(entry.height, 1),
        file_size=entry.size,
        file_name=entry.name,
    )
    return fields


def select(
    dataset: Dataset,
    *,
    multiple: int,
    native_side: int,
    factor: int | None,
    cache: Path,
    tell: Tell | None = None,
    strict: bool = True,
) -> Selection:
    """Open ``dataset``'s sources and choose its samples.

    With ``strict`` off nothing but a missing source or a setting that cannot be is an error: the report
    tells what would be one.

    Raises:
        CascadeError: no sample is left, captions are missing, too many samples are bad, or a source is gone.
    """
    tallies = _Tallies()
    parts = _gather(dataset, (), tallies, cache, tell)
    if not strict:
        tallies.warnings += [text for part in parts if (text := _others(part.reader))]
    _judge(dataset, parts, tallies, strict)
    buckets = Buckets(dataset.buckets, multiple, native_side, factor)
    widths = np.concatenate([part.widths for part in parts])
    heights = np.concatenate([part.heights for part in parts])
    chances = np.concatenate([part.chances for part in parts])
    bucket_of = buckets.assign(widths, heights, chances)
    part_of = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    row_of = np.concatenate([part.rows for part in parts])
    small = np.flatnonzero(bucket_of < 0)
    for at in small:
        part = parts[part_of[at]]
        name = shown(part.reader.row(int(row_of[at])).name) if at in small[:10] else ""
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
        tallies.warnings.append("no sample is left, an error when training")
    times = np.array([part.times for part in parts])[part_of] if len(part_of) else np.zeros(0)
    whole = np.floor(times + 1e-9).astype(np.int64)
    counts = (
        np.bincount(bucket_of, minlength=len(buckets.sizes))
        if len(bucket_of)
        else np.zeros(len(buckets.sizes), dtype=np.int64)
    )
    lines = tuple(
        BucketCount(bucket.width, bucket.height, *bucket.grid, int(counts[index]))
        for index in range(len(buckets.sizes))
        if counts[index] and (bucket := buckets.bucket(index))
    )
    report = Report(
        samples=len(row_of),
        epoch=round(float(times.sum())),
        bad=tallies.bad.counts(),
        dropped=tallies.dropped.counts(),
        buckets=lines,
        captioned=tallies.captioned,
        several_captions=tallies.several,
        empty_captions=tallies.empty,
        warnings=(*tallies.warnings, *buckets.warnings()),
    )
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
        report,
    )


def _judge(dataset: Dataset, parts: list[Part], tallies: _Tallies, strict: bool) -> None:
    good = sum(len(part.rows) for part in parts)
    bad, missing = tallies.bad, tallies.uncaptioned
    if missing:
        note = "; ".join(count.line() for count in missing.counts())
        if strict:
            raise CascadeError(
                f"{missing.total} of {missing.total + good} pictures have no caption",
                where=note,
                fix="Put a text file of the same name beside each, name the metadata field that holds it, or "
                "choose a fallback in Caption Options",
            )
        tallies.warnings.append(f"without caption, an error when training: {note}")
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


def _gather(
    dataset: Dataset, outer: tuple[str, ...], tallies: _Tallies, cache: Path, tell: Tell | None
) -> list[Part]:
    filters = (*dataset.filters, *outer)
    expressions = [Expression(text) for text in filters]
    groups: list[list[Part]] = []
    for weighted in dataset.sources:
        if isinstance(weighted.source, Dataset):
            group = _gather(weighted.source, filters, tallies, cache, tell)
        else:
            group = [
                _part(open_source(weighted.source, cache, tell), dataset, expressions, tallies, cache, tell)
            ]
        for part in group:
            part.times *= max(1, weighted.repeats)
        groups.append(group)
    if any(weighted.share > 0 for weighted in dataset.sources):
        _share_out(dataset, groups)
    parts = [part for group in groups for part in group]
    if dataset.duplicates != "keep":
        from cascade_train.data.duplicates import drop_duplicates

        drop_duplicates(parts, dataset, tallies.dropped, tell)
    return parts


def _share_out(dataset: Dataset, groups: list[list[Part]]) -> None:
    """Set how often each source is seen so that epochs hold them in the proportion of their shares."""
    if any(weighted.share <= 0 for weighted in dataset.sources):
        raise CascadeError(
            "some of the combined datasets have a share and some have none",
            fix="Give each a share above 0, or none",
        )
    lengths = [sum(len(part.rows) * part.times for part in group) for group in groups]
    wanted = [
        weighted.share / length if length else 0.0 for weighted, length in zip(dataset.sources, lengths)
    ]
    least = min((value for value in wanted if value), default=1.0)
    for group, value in zip(groups, wanted):
        for part in group:
            part.times *= value / least if value else 1.0


def _part(
    reader: Reader,
    dataset: Dataset,
    filters: list[Expression],
    tallies: _Tallies,
    cache: Path,
    tell: Tell | None,
) -> Part:
    """The samples of a source that are left, read from a note on disk where the source is large."""
    large = not isinstance(reader, WorldReader) and len(getattr(reader, "index", ())) >= _LARGE
    name = digest([_NOTE, reader.content, reader.label, dataset.captions, [f.text for f in filters]])
    note = cache / f"selected-{name}.npz"
    arrays, mine = (_noted(note) if large else None) or (None, _Tallies())
    if arrays is None:
        arrays = _chosen(reader, dataset, filters, mine, tell)
        if large:
            _write_note(note, arrays, mine)
    tallies.add(mine)
    _tell_facts(reader, tallies)
    return Part(reader, dataset, *arrays)


def _noted(note: Path) -> tuple[_Arrays, _Tallies] | None:
    try:
        with np.load(note, allow_pickle=False) as stored:
            rows, widths, heights, chances = (stored[key] for key in _ARRAYS)
            told = json.loads(str(stored["told"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    tallies = _Tallies(Tally(told["bad"]), Tally(told["dropped"]), Tally(told["uncaptioned"]))
    tallies.captioned, tallies.several, tallies.empty = told["captioned"], told["several"], told["empty"]
    return (rows, widths, heights, chances), tallies


def _write_note(note: Path, arrays: _Arrays, tallies: _Tallies) -> None:
    told = json.dumps(
        {
            "bad": tallies.bad.data(),
            "dropped": tallies.dropped.data(),
            "uncaptioned": tallies.uncaptioned.data(),
            "captioned": tallies.captioned,
            "several": tallies.several,
            "empty": tallies.empty,
        }
    )
    with written_beside(note) as beside, beside.open("wb") as handle:
        np.savez(handle, told=np.array(told), **dict(zip(_ARRAYS, arrays)))  # type: ignore[arg-type]


def _chosen(
    reader: Reader, dataset: Dataset, filters: list[Expression], tallies: _Tallies, tell: Tell | None
) -> _Arrays:
    """Rows, widths, heights and chances of the samples that are whole, captioned and let through."""
    rows, widths, heights, chances = array("q"), array("q"), array("q"), array("Q")
    world = isinstance(reader, WorldReader)
    for seen, entry in enumerate(reader.rows()):
        if tell and seen % 4096 == 4095:
            tell(seen, 0, f"choosing among {seen} samples")
        if entry.bad:
            tallies.bad.add(entry.bad, shown(entry.name))
            continue
        reason = rejected(entry, filters) if filters else ""
        if reason:
            tallies.dropped.add(reason, shown(entry.name))
            continue
        if not world and not _captioned(entry, reader, dataset, tallies):
            continue
        rows.append(entry.row)
        widths.append(entry.width)
        heights.append(entry.height)
        name = to_blob(entry.name) + b"%d" % entry.crc
        chances.append(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little"))
    if world:
        tallies.captioned += len(rows)
    return (
        np.array(rows, dtype=np.int64),
        np.array(widths, dtype=np.int64),
        np.array(heights, dtype=np.int64),
        np.array(chances, dtype=np.uint64),
    )


def _captioned(entry: Entry, reader: Reader, dataset: Dataset, tallies: _Tallies) -> bool:
    try:
        captions = captions_of(
            dataset.captions, entry.name, entry.caption_files(), entry.metadata(), reader.label
        )
    except CascadeError:
        raise
    except Exception as error:
        tallies.bad.add(f"caption expression: {error}", shown(entry.name))
        return False
    if captions is None:
        tallies.uncaptioned.add("without caption", shown(entry.name))
        return False
    tallies.captioned += 1
    tallies.several += len(captions) > 1
    tallies.empty += captions == ("",)
    return True


def rejected(entry: Entry, filters: list[Expression]) -> str:
    """Why the filters drop a sample; "" when they let it through."""
    fields = fields_of(entry)
    for expression in filters:
        try:
            if not expression.value(fields):
                return f"not {expression.text}"
        except Missing as error:
            return f"without the field {error}"
        except Exception as error:
            return f"where {expression.text} fails ({type(error).__name__})"
    return ""


def _others(reader: Reader) -> str:
    """What else lies in a folder, for a person who looks at it; its tables of metadata are not else."""
    others = getattr(getattr(reader, "index", None), "facts", {}).get("others", {})
    counts = [f"{count} {ending}" for ending, count in sorted(others.items()) if ending not in TABLES]
    return f"other files in {reader.label} are left alone: {', '.join(counts)}" if counts else ""


def _tell_facts(reader: Reader, tallies: _Tallies) -> None:
    facts = getattr(getattr(reader, "index", None), "facts", {})
    if facts.get("orphans"):
        names = ", ".join(facts["orphan_names"])
        tallies.warnings.append(f"{facts['orphans']} text files without a picture in {reader.label}: {names}")
    for table in facts.get("tables_bad", ()):
        tallies.warnings.append(f"metadata that cannot be read: {table}")
