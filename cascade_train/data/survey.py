"""What streamed shards hold, found by reading them once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cascade_train.data.arrivals import Arrival, LeftOut
from cascade_train.data.entry import printable
from cascade_train.data.pixels import BadImage, decode
from cascade_train.data.report import BucketCount, Report, Tally
from cascade_train.data.stream import OpenStream
from cascade_train.data.unused import warnings as unused_warnings
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent


def survey(
    stream: OpenStream,
    *,
    most: int = 0,
    decoded: bool = False,
    progress: Progress = silent,
    each: Callable[[Arrival | LeftOut], None] = lambda item: None,
) -> Report:
    """Count what is in the shards of ``stream``, or among their first ``most`` samples.

    With ``decoded`` every picture that would be used is decoded, which finds damage inside. ``each`` is given
    every sample that was looked at.

    Raises:
        CascadeError: no shard can be fetched.
    """
    bad, dropped, uncaptioned = Tally(), Tally(), Tally()
    buckets: Counter[int] = Counter()
    several = empty = seen = 0
    more = False
    for item in stream.once(bad.add):
        if most and seen >= most:
            more = True
            break
        seen += 1
        if seen % 64 == 0:
            progress(seen, most, f"looked at {seen} samples")
        if isinstance(item, LeftOut):
            {"bad": bad, "dropped": dropped}.get(item.kind, uncaptioned).add(item.reason, item.name)
            each(item)
            continue
        if decoded:
            try:
                decode(item.data)
            except BadImage as error:
                bad.add(str(error), printable(item.entry.name))
                each(LeftOut("bad", str(error), printable(item.entry.name)))
                continue
        each(item)
        buckets[item.bucket] += 1
        several += len(item.captions) > 1
        empty += item.captions == ("",)
    if not seen and bad:
        raise CascadeError(
            "nothing can be read from the shards", where="; ".join(count.line() for count in bad.counts())
        )
    unused = [(url.rpartition("/")[2], found) for url, found in stream.unused.items()]
    warnings = [*stream.report.warnings, *unused_warnings(unused)]
    if uncaptioned:
        note = "; ".join(count.line() for count in uncaptioned.counts())
        warnings.insert(0, f"without caption, an error when training: {note}")
    if more:
        warnings.insert(0, f"only the first {most} samples of the shards were looked at")
    good = sum(buckets.values())
    lines = tuple(
        BucketCount(bucket.width, bucket.height, *bucket.grid, buckets[number])
        for number, bucket in enumerate(stream.buckets)
        if buckets[number]
    )
    return replace(
        stream.report,
        samples=good,
        epoch=good,
        bad=bad.counts(),
        dropped=dropped.counts(),
        buckets=lines,
        captioned=good,
        several_captions=several,
        empty_captions=empty,
        warnings=tuple(warnings),
        unused=tuple(item for _, found in unused for item in found.names),
    )
