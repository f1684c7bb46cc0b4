"""A dataset of remote shards, opened for training: read in sequence, shuffled within a buffer.

Shards are read in an order drawn from (seed, epoch) and samples leave a buffer at random, so that a stream is
the same every time it is read from its beginning. A step in the middle is reached by replaying the stream up
to it (headers only; of pictures that a filter measures, the results are remembered). What cannot hold is said
where it is opened: epochs end where shards end, not where batches do, and a shard that changes or fails
changes what comes after.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.data import captions as caption_rules
from cascade_train.data.arrivals import Arrival, LeftOut, arrived
from cascade_train.data.buckets import Bucket, Buckets
from cascade_train.data.draws import Draw, Loaded, draws_of, needed_size, window
from cascade_train.data.entry import printable
from cascade_train.data.filters.base import Filter
from cascade_train.data.filters.sieve import Sieve
from cascade_train.data.measured import MeasureStore
from cascade_train.data.members import CUT
from cascade_train.data.order import mix, permutation
from cascade_train.data.pixels import BadImage, decode
from cascade_train.data.report import Count, Report, Tally
from cascade_train.data.shard import ShardSample, read_shard
from cascade_train.data.shards import ShardCache
from cascade_train.data.spec import CaptionSpec, Dataset, StreamSource
from cascade_train.data.unused import Unused, warnings
from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from cascade_train.host.base import Host

SAID = (
    "streamed from remote shards: a step is reached by replaying the stream, epochs are approximate, and "
    "shards that change or fail change what comes after"
)

_DAMAGED = "shard is cut off or damaged"
_KEPT_BATCHES = 16
_TOLD = 10


class OpenStream:
    """Like `OpenDataset`, for streamed shards: ``len`` is 0 (not known), draws are made in sequence."""

    crop_is_fixed = False

    def __init__(
        self,
        dataset: Dataset,
        source: StreamSource,
        leaf: Dataset,
        buckets: Buckets,
        cache: Path,
        store: MeasureStore,
        host: Host | None,
    ) -> None:
        self.dataset = dataset
        self.buckets: tuple[Bucket, ...] = tuple(buckets.bucket(i) for i in range(len(buckets.sizes)))
        self._filters = _all_filters(dataset)
        notes = dict.fromkeys(each.on_streams for each in self._filters if each.on_streams)
        self.report = Report(samples=0, epoch=0, streamed=True, warnings=(SAID, *notes, *buckets.warnings()))
        self._source, self._leaf, self._rule, self._host = source, leaf, buckets, host
        self._shards = ShardCache(cache, host)
        self._store = store
        self._bad = Tally()
        self._dropped = Tally()
        self._good = 0
        self.unused: dict[str, Unused] = {}
        """What is not used of each shard that was read, by its URL."""
        self._lock = threading.RLock()
        self._at: tuple[int, int] | None = None
        self._next = 0
        self._batches: OrderedDict[int, list[int]] = OrderedDict()
        self._samples_of: dict[int, Arrival] = {}
        self._flow: Iterator[list[tuple[int, Arrival]]] = iter(())

    def __len__(self) -> int:
        return 0

    def notes(self, batch_size: int) -> tuple[str, ...]:
        return ()

    def draws(self, seed: int, step: int, batch_size: int) -> tuple[Draw, ...]:
        """What step ``step`` draws; steps in sequence are quick, others replay the stream."""
        with self._lock:
            if self._at != (seed, batch_size) or step < min(self._batches, default=self._next):
                self._at, self._next = (seed, batch_size), 0
                self._batches.clear()
                self._samples_of.clear()
                self._flow = self._batched(seed, batch_size)
            while self._next <= step:
                batch = next(self._flow)
                self._batches[self._next] = [number for number, _ in batch]
                self._samples_of.update(batch)
                self._next += 1
                while len(self._batches) > _KEPT_BATCHES:
                    for number in self._batches.popitem(last=False)[1]:
                        del self._samples_of[number]
            numbers = self._batches[step]
            bucket = self.buckets[self._samples_of[numbers[0]].bucket]
        return draws_of(numbers, bucket.width, bucket.height, self.dataset.buckets, seed, step)

    def _batched(self, seed: int, batch_size: int) -> Iterator[list[tuple[int, Arrival]]]:
        waiting: dict[int, list[tuple[int, Arrival]]] = {}
        for number, sample in enumerate(self._shuffled(seed)):
            batch = waiting.setdefault(sample.bucket, [])
            batch.append((number, sample))
            if len(batch) == batch_size:
                yield waiting.pop(sample.bucket)

    def _shuffled(self, seed: int) -> Iterator[Arrival]:
        buffer: list[Arrival] = []
        size = max(1, self._source.shuffle)
        for number, sample in enumerate(self._epochs(seed)):
            buffer.append(sample)
            if len(buffer) >= size:
                at = mix(mix(seed + 0x51) ^ number) % len(buffer)
                buffer[at], buffer[-1] = buffer[-1], buffer[at]
                yield buffer.pop()

    def _epochs(self, seed: int) -> Iterator[Arrival]:
        shards = self._source.shards
        epoch = 0
        while True:
            sieve = Sieve(self._filters, self._store)
            order = deque(int(i) for i in permutation(len(shards), seed, 7, epoch))
            seen = failed = 0
            while order:
                url = shards[order.popleft()]
                try:
                    path = self._shards.get(url)
                except OSError as error:
                    failed += 1
                    self._note("shard cannot be fetched", f"{url} ({error})")
                    continue
                if order:
                    self._shards.begin(shards[order[0]])
                for sample in self._samples(path, url, sieve):
                    seen += 1
                    yield sample
            if not seen:
                none = failed == len(shards)
                what = "no shard can be fetched" if none else "no sample is left in the shards"
                raise CascadeError(what, where=shards[0], fix=self._left_out() or None)
            epoch += 1

    def _samples(self, path: Path, url: str, sieve: Sieve) -> Iterator[Arrival]:
        try:
            for sample in self._opened(path, url, self._note):
                taken = self._take(path, url, sample, sieve)
                if taken is not None:
                    self._good += 1
                    yield taken
        finally:
            self._store.flush()

    def _opened(self, path: Path, url: str, trouble: Callable[[str, str], None]) -> list[ShardSample]:
        """The samples in a shard, by its headers; ``trouble`` is told (reason, name) of what is wrong."""
        try:
            shard = read_shard(path, self._source.ending)
        except (CascadeError, OSError) as error:
            what = error.what if isinstance(error, CascadeError) else "it cannot be read"
            trouble(_DAMAGED, f"{url} ({what})")
            return []
        cut = [sample for sample in shard.samples if sample.bad == CUT]
        if shard.troubles or cut:
            trouble(_DAMAGED, f"{url} ({(*shard.troubles, CUT)[0]})")
        if url not in self.unused:
            self.unused[url] = shard.unused
            if self._host is not None:
                for line in warnings([(url.rpartition("/")[2], shard.unused)]):
                    self._host.warn(line)
        return [sample for sample in shard.samples if sample.bad != CUT]  # told with the shard

    def once(self, trouble: Callable[[str, str], None]) -> Iterator[Arrival | LeftOut]:
        """Every sample of every shard once, in the order they are named, those that are not used too.

        ``trouble`` is told (reason, name) of what goes wrong with a whole shard.
        """
        sieve = Sieve(self._filters, self._store)
        for url in self._source.shards:
            try:
                path = self._shards.get(url)
            except OSError as error:
                trouble("shard cannot be fetched", f"{url} ({error})")
                continue
            for sample in self._opened(path, url, trouble):
                try:
                    yield arrived(path, sample, self._leaf.captions, sieve, self._rule, len(self.buckets))
                except LeftOut as left:
                    yield left
            self._store.flush()

    def _take(self, path: Path, url: str, sample: ShardSample, sieve: Sieve) -> Arrival | None:
        try:
            return arrived(path, sample, self._leaf.captions, sieve, self._rule, len(self.buckets))
        except LeftOut as left:
            if left.kind == "without caption":
                raise CascadeError(
                    f"the sample {left.name} has no caption",
                    where=url,
                    fix="Name the metadata field that holds it, or choose a fallback in Caption Options",
                ) from None
            if left.kind == "dropped":
                self._dropped.add(left.reason, left.name)
            else:
                self._note(left.reason, left.name)
            return None

    def _note(self, reason: str, name: str) -> None:
        self._bad.add(reason, name)
        if "error" in (self.dataset.on_bad, self._leaf.on_bad):
            raise CascadeError(
                f"bad sample or shard: {reason}", where=name, fix="Mend it, or skip bad samples"
            )
        if self._host is not None and self._bad.total <= _TOLD:
            self._host.warn(f"skipped {name}: {reason}")
        if self._bad.total > 100 and self._bad.total > self.dataset.max_bad * (self._bad.total + self._good):
            raise CascadeError(
                f"more than {self.dataset.max_bad:.0%} of the samples are bad", where=self._left_out()
            )

    def _left_out(self) -> str:
        return "; ".join(count.line() for count in (*self._bad.counts(), *self._dropped.counts()))

    def bad_found(self) -> tuple[Count, ...]:
        return self._bad.counts()

    def view(self, draw: Draw) -> tuple[Any, ...]:
        return draw.sample, draw.width, draw.height, draw.crop

    def caption_spec(self, sample: int) -> CaptionSpec:
        return self._leaf.captions

    def key(self, sample: int) -> str:
        return printable(self._samples_of[sample].entry.name)

    def captions(self, sample: int) -> tuple[str, ...]:
        return self._samples_of[sample].captions

    def caption(self, draw: Draw) -> str:
        return caption_rules.pick(self._leaf.captions, self._samples_of[draw.sample].captions, draw.caption)

    def load(self, draw: Draw) -> Loaded:
        """Pixels and caption of a draw of one of the last steps; damage inside a picture is an error or,
        where bad samples are skipped, another sample of the batch."""
        with self._lock:
            batch = next((numbers for numbers in self._batches.values() if draw.sample in numbers), [])
            tried = [
                self._samples_of[number] for number in (draw.sample, *(n for n in batch if n != draw.sample))
            ]
        spec, background = self.dataset.buckets, self.dataset.background
        for sample in tried:
            need = needed_size(sample.entry.width, sample.entry.height, draw, spec)
            try:
                size = sample.entry.width, sample.entry.height
                pixels = decode(sample.data, background, need, size)
            except BadImage as error:
                self._note(str(error), printable(sample.entry.name))
                continue
            pixels = window(pixels, draw, need, spec, background)
            caption = caption_rules.pick(self._leaf.captions, sample.captions, draw.caption)
            return Loaded(pixels, caption, printable(sample.entry.name))
        raise CascadeError("no sample of this batch can be read")


def _all_filters(dataset: Dataset) -> tuple[Filter, ...]:
    """The filters of the one source in ``dataset``, those of the dataset nearest to it first."""
    inner = dataset.sources[0].source
    return (*(_all_filters(inner) if isinstance(inner, Dataset) else ()), *dataset.filters)
