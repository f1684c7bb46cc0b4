"""A dataset opened for training: which samples a step draws, and their pixels and captions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cascade_train.data import captions as caption_rules
from cascade_train.data.buckets import Bucket, Buckets
from cascade_train.data.draws import CENTRE, CORNERS, Draw, Loaded, draws_of, needed_size, window
from cascade_train.data.entry import Entry, printable
from cascade_train.data.filters.sieve import trouble_of
from cascade_train.data.measured import MEASURES, MeasureStore
from cascade_train.data.order import Order, mix, together
from cascade_train.data.pixels import BadImage, cover_size, crop_corner, reducer
from cascade_train.data.report import Report, Tally
from cascade_train.data.select import select
from cascade_train.data.selection import Selection
from cascade_train.data.spec import CaptionSpec, Dataset, StreamSource
from cascade_train.data.stream import OpenStream
from cascade_train.digest import digest
from cascade_train.errors import CascadeError
from cascade_train.host.progress import progress_of, silent

if TYPE_CHECKING:
    from cascade_train.host.base import Host

FORMAT = 3
"""Part of every cache key; grows when the same file comes out as other pixels."""


class OpenDataset:
    """Samples that can be drawn at random. Made by `open_dataset`; safe from many threads, spawn-safe."""

    def __init__(self, dataset: Dataset, selection: Selection, host: Host | None, factor: int) -> None:
        self.dataset = dataset
        self.report: Report = selection.report
        self._selection = selection
        self._host = host
        self._bad = Tally()
        self._bad_samples: set[int] = set()
        self.buckets: tuple[Bucket, ...] = tuple(Bucket(w, h, factor) for w, h in selection.sizes)
        self._remember()

    def _remember(self) -> None:
        self.order = lru_cache(maxsize=8)(self._order)
        self._known_captions = lru_cache(maxsize=1 << 16)(self.captions)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "order": None, "_known_captions": None, "_host": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._remember()

    def __len__(self) -> int:
        return len(self._selection.row_of)

    @property
    def crop_is_fixed(self) -> bool:
        """Whether a sample always shows the same pixels."""
        return self.dataset.buckets.crop != "random" or self.dataset.buckets.resize in ("stretch", "pad")

    def _order(self, batch_size: int) -> Order:
        chosen = self._selection
        order = Order(
            chosen.bucket_of,
            chosen.sizes,
            batch_size,
            whole=chosen.whole,
            fraction=chosen.fraction,
            group=chosen.part_of,
            leftovers=self.dataset.buckets.leftovers,
        )
        if self._host is not None and self._host.rank == 0 and order.notes:
            self._host.warn(together(order.notes))
        return order

    def notes(self, batch_size: int) -> tuple[str, ...]:
        """What becomes of buckets smaller than the batch, one line each."""
        return self.order(batch_size).notes

    def draws(self, seed: int, step: int, batch_size: int) -> tuple[Draw, ...]:
        """What step ``step`` (from 0) draws: a pure function of the dataset and the arguments."""
        order = self.order(batch_size)
        bucket, samples = order.at(seed, step)
        width, height = order.sizes[bucket]
        return draws_of(samples.tolist(), width, height, self.dataset.buckets, seed, step, self.fixed_crops)

    def fixed_crops(self, sample: int) -> tuple[tuple[float, float], ...]:
        """The crops that a sample is ever shown with, where their number is fixed."""
        spec = self.dataset.buckets
        if self.crop_is_fixed:
            return (CORNERS.get(spec.crop, CENTRE),)
        chance = int(self._selection.chances[sample])
        return tuple(
            (mix(chance + 2 * k) / 2.0**64, mix(chance + 2 * k + 1) / 2.0**64) for k in range(spec.crops)
        )

    def view(self, draw: Draw) -> tuple[int, ...]:
        """What names the pixels of ``draw``: draws that show the same pixels of a sample have equal views."""
        if self.crop_is_fixed:
            return draw.sample, draw.width, draw.height
        width, height = int(self._selection.widths[draw.sample]), int(self._selection.heights[draw.sample])
        spec = self.dataset.buckets
        need = needed_size(width, height, draw, spec) or (width, height)
        if need[0] < draw.width or need[1] < draw.height:
            need = cover_size(*need, draw.width, draw.height)
        return (draw.sample, draw.width, draw.height, *crop_corner(*need, draw.width, draw.height, draw.crop))

    def cache_key(self, draw: Draw) -> str:
        """Names the pixels of ``draw`` by what they follow from: content, window, and how it is resized.

        Raises:
            CascadeError: the picture is no longer what the dataset was named with.
        """
        part = self._selection.parts[int(self._selection.part_of[draw.sample])]
        spec = self.dataset.buckets
        try:
            content = part.reader.whole(self.entry(draw.sample))
        except OSError:  # gone: another picture is shown, and nothing kept
            content = f"unread {self.key(draw.sample)}"
        window = [*self.view(draw)[1:], spec.crop if self.crop_is_fixed else ""]
        return digest(
            [
                FORMAT,
                reducer(),
                content,
                window,
                spec.resize,
                spec.max_side,
                spec.downsample,
                list(self.dataset.background),
            ]
        )

    def caption_spec(self, sample: int) -> CaptionSpec:
        """Where the captions of ``sample`` come from."""
        return self._selection.parts[int(self._selection.part_of[sample])].dataset.captions

    def by_turns(self) -> np.ndarray:
        """All samples (n,), each source's first one, then each one's second, and so on."""
        part_of = np.asarray(self._selection.part_of)
        by_part = np.argsort(part_of, kind="stable")
        sizes = np.bincount(part_of)
        turn = np.empty(len(part_of), dtype=np.int64)
        turn[by_part] = np.concatenate([np.arange(size) for size in sizes])
        return np.argsort(turn, kind="stable")

    def bucket_of(self, sample: int) -> Bucket:
        return self.buckets[int(self._selection.bucket_of[sample])]

    def entry(self, sample: int) -> Entry:
        part = self._selection.parts[int(self._selection.part_of[sample])]
        return part.reader.row(int(self._selection.row_of[sample]))

    def label(self, sample: int) -> str:
        """What people know the sample's source by."""
        return self._selection.parts[int(self._selection.part_of[sample])].reader.label

    def unchosen(self) -> Iterator[tuple[str, Entry, tuple[str, ...] | None]]:
        """(source, row, captions) of what is in the sources and was not chosen; bad ones without captions."""
        for part in self._selection.parts:
            chosen = set(part.left.rows.tolist())
            for entry in part.reader.rows():
                if entry.row not in chosen:
                    captions = None if entry.bad else part.reader.captions(entry, part.dataset.captions)
                    yield part.reader.label, entry, captions

    def key(self, sample: int) -> str:
        """The sample's name for people: source and path in it."""
        part = self._selection.parts[int(self._selection.part_of[sample])]
        return f"{part.reader.label}/{printable(self.entry(sample).name)}"

    def captions(self, sample: int) -> tuple[str, ...]:
        """All captions of a sample, before one is drawn and varied."""
        part = self._selection.parts[int(self._selection.part_of[sample])]
        return part.reader.captions(self.entry(sample), part.dataset.captions) or ("",)

    def caption(self, draw: Draw) -> str:
        """The caption that ``draw`` picks."""
        part = self._selection.parts[int(self._selection.part_of[draw.sample])]
        return caption_rules.pick(part.dataset.captions, self._known_captions(draw.sample), draw.caption)

    def load(self, draw: Draw) -> Loaded:
        """The pixels and the caption of ``draw``.

        A sample that turns out to be bad is told once and replaced by the next of its bucket, or is an error,
        as the dataset says.

        Raises:
            CascadeError: it is bad and may not be skipped, or too many are.
        """
        sample = draw.sample
        for _ in range(1000):
            try:
                return self._load(draw, sample)
            except (BadImage, OSError) as error:
                self._note_bad(sample, error)
                sample = self._next(sample)
                if sample == draw.sample:
                    break
        raise CascadeError("no sample of this bucket can be read", where=f"{draw.width}×{draw.height}")

    def trouble(self, sample: int) -> str:
        """Why the sample's picture cannot be decoded; "" when it can."""
        part = self._selection.parts[int(self._selection.part_of[sample])]
        try:
            part.reader.pixels(self.entry(sample), self.dataset.background, None)
        except (BadImage, OSError) as error:
            return trouble_of(error)
        return ""

    def _load(self, draw: Draw, sample: int) -> Loaded:
        part = self._selection.parts[int(self._selection.part_of[sample])]
        entry = part.reader.row(int(self._selection.row_of[sample]))
        spec, background = self.dataset.buckets, self.dataset.background
        need = needed_size(entry.width, entry.height, draw, spec)
        pixels, captions = part.reader.load(entry, background, need, part.dataset.captions)
        pixels = window(pixels, draw, need, spec, background)
        caption = caption_rules.pick(part.dataset.captions, captions, draw.caption)
        return Loaded(pixels, caption, f"{part.reader.label}/{printable(entry.name)}")

    def _next(self, sample: int) -> int:
        same = np.flatnonzero(self._selection.bucket_of == self._selection.bucket_of[sample])
        return int(same[(np.searchsorted(same, sample) + 1) % len(same)])

    def _note_bad(self, sample: int, error: Exception) -> None:
        key = self.key(sample)
        reason = trouble_of(error)
        part = self._selection.parts[int(self._selection.part_of[sample])]
        if "error" in (part.dataset.on_bad, self.dataset.on_bad):
            raise CascadeError(
                f"the sample {key} is bad: {reason}", fix="Mend or remove it, or skip bad samples"
            ) from error
        if sample in self._bad_samples:
            return
        self._bad_samples.add(sample)
        self._bad.add(reason, key)
        if self._host is not None and len(self._bad_samples) <= 10:
            self._host.warn(f"skipped the bad sample {key}: {reason}")
        total = len(self) + self.report.bad_count
        if (len(self._bad_samples) + self.report.bad_count) / total > self.dataset.max_bad:
            raise CascadeError(
                f"more than {self.dataset.max_bad:.0%} of the samples are bad",
                where="; ".join(count.line() for count in self.bad_found()),
                fix="Mend or remove these files, or allow more bad samples",
            )

    def replaced(self, sample: int) -> bool:
        """Whether another picture is shown for ``sample``, which turned out to be bad."""
        return sample in self._bad_samples

    def bad_found(self) -> tuple[Any, ...]:
        """Samples that turned out to be bad when they were read (`report.Count`)."""
        return self._bad.counts()


def open_dataset(
    dataset: Dataset,
    *,
    multiple: int,
    native_side: int,
    host: Host | None = None,
    factor: int | None = None,
    strict: bool = True,
    cache: Any = None,
) -> OpenDataset:
    """Open ``dataset`` for models whose picture sides are multiples of ``multiple`` pixels.

    ``native_side`` is the picture side the models were made for, ``factor`` the pixels a latent cell spans
    (``multiple`` where not given). Indexes are kept under the host's cache folder (or ``cache``).

    Raises:
        CascadeError: nothing is left to draw, captions are missing, too much is bad, a source is gone.
    """

    if cache is None:
        if host is None:
            raise ValueError("open_dataset needs a host or a cache folder")
        cache = host.folders.cache
    store = MeasureStore(Path(cache) / MEASURES)
    if dataset.streamed:
        return _open_stream(dataset, multiple, native_side, factor, Path(cache), store, host)
    selection = select(
        dataset,
        multiple=multiple,
        native_side=native_side,
        factor=factor,
        index=Path(cache) / "index",
        store=store,
        progress=silent if host is None else progress_of(host),
        strict=strict,
    )
    if host is not None and host.rank == 0:
        for warning in selection.report.warnings:
            host.warn(warning)
        if selection.report.bad:
            host.warn("bad samples skipped: " + "; ".join(count.line() for count in selection.report.bad))
    return OpenDataset(dataset, selection, host, factor or multiple)


def _open_stream(
    dataset: Dataset,
    multiple: int,
    native_side: int,
    factor: int | None,
    cache: Path,
    store: MeasureStore,
    host: Host | None,
) -> OpenDataset:
    leaves = list(dataset.leaves())
    if len(leaves) > 1:
        raise CascadeError(
            "streamed shards cannot be combined with other datasets",
            fix="Name all remote shards in one WebDataset node, or copy them to this machine",
        )
    source, leaf = leaves[0]
    assert isinstance(source, StreamSource)
    buckets = Buckets(dataset.buckets, multiple, native_side, factor)
    opened = OpenStream(dataset, source, leaf, buckets, cache, store, host)
    if host is not None and host.rank == 0:
        for warning in opened.report.warnings:
            host.warn(warning)
    return opened  # type: ignore[return-value]
