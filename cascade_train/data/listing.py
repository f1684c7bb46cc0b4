"""Every sample of a dataset, one after the other, and every file that is none."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cascade_train.data.arrivals import Arrival, LeftOut
from cascade_train.data.dataset import OpenDataset
from cascade_train.data.entry import printable
from cascade_train.data.names import composed, key_of
from cascade_train.data.report import Report
from cascade_train.data.stream import OpenStream
from cascade_train.data.survey import survey
from cascade_train.host.progress import Progress


@dataclass(frozen=True)
class Listed:
    """A sample: its source and key, upright size and bucket in pixels, and all its captions before one is
    drawn. Keys are shown with composed accents (NFC), whichever way the disk has them."""

    key: str
    width: int
    height: int
    bucket: tuple[int, int]
    captions: tuple[str, ...]

    def line(self) -> str:
        said = " | ".join(printable(caption) for caption in self.captions)
        return f"{composed(self.key)}  {self.width}×{self.height}  bucket {_size(self.bucket)}  {said}"

    def data(self) -> dict[str, Any]:
        """As JSON values; the bucket as ``width×height`` is written in settings, ``768x896``."""
        return {
            "key": composed(self.key),
            "width": self.width,
            "height": self.height,
            "bucket": f"{self.bucket[0]}x{self.bucket[1]}",
            "captions": list(self.captions),
        }


def _size(bucket: tuple[int, int]) -> str:
    return f"{bucket[0]}×{bucket[1]}"


def listed(opened: OpenDataset, without: Container[int] = ()) -> Iterator[Listed]:
    """The samples that can be drawn, in the order of their sources, but for the numbers ``without``."""
    for sample in range(len(opened)):
        if sample not in without:
            entry, bucket = opened.entry(sample), opened.bucket_of(sample)
            yield Listed(
                f"{opened.label(sample)}/{key_of(entry.name)}",
                entry.width,
                entry.height,
                (bucket.width, bucket.height),
                opened.captions(sample),
            )


def unlisted(opened: OpenDataset) -> Iterator[tuple[str, str]]:
    """(name, reason) of every picture and text that is no sample, filters apart: bad ones, and those
    that have no caption."""
    for label, entry, captions in opened.unchosen():
        name = printable(entry.name)
        if entry.bad or captions is None:
            yield name if label == name else f"{label}/{name}", entry.bad or "without caption"


def survey_listed(
    stream: OpenStream, lines: list[Listed] | None, most: int, decoded: bool, progress: Progress
) -> Report:
    """`survey.survey`; unless ``lines`` is None every sample is added to them, and every file that is none is
    named."""
    unused: list[tuple[str, str]] = []

    def each(item: Arrival | LeftOut) -> None:
        if lines is None:
            return
        if isinstance(item, LeftOut):
            if item.kind != "dropped":
                unused.append((item.name, item.reason))
            return
        bucket, entry = stream.buckets[item.bucket], item.entry
        size = bucket.width, bucket.height
        lines.append(Listed(key_of(entry.name), entry.width, entry.height, size, item.captions))

    report = survey(stream, most=most, decoded=decoded, progress=progress, each=each)
    return replace(report, unused=(*report.unused, *unused))
