"""Before a run: encoders' results worked out ahead, and what a network will be shown.

The nodes Cache Latents and Dataset Preview call it, and the command ``dataset inspect``. torch is imported
only where it is put to work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cascade_train.data.caches import Store, text_key
from cascade_train.data.dataset import Draw, Loaded, OpenDataset, open_dataset
from cascade_train.data.measured import flush_all as flush_contents
from cascade_train.data.spec import CacheSpec, Dataset
from cascade_train.drawing.cards import sample_card
from cascade_train.drawing.paper import tiled, to_tensor
from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec
from cascade_train.training.stores import store_for

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from cascade_train.host.base import Host

STABLE_CASCADE = (32, 768)
"""Size multiple and native side where no models say otherwise."""

_MOST_VARIANTS = 64
"""Captions of one sample that are worked out ahead."""


def with_caches(
    dataset: Dataset, models: ModelsSpec, *, latents: bool, texts: bool, crops: int, ahead: bool, host: Host
) -> Dataset:
    """``dataset`` with caches on disk, worked out now where ``ahead``.

    Raises:
        CascadeError: the dataset is streamed, or cannot be opened.
    """
    if dataset.streamed:
        raise CascadeError("streamed shards cannot be cached", fix="Copy the shards to this machine first")
    random_crop = dataset.buckets.crop == "random" and dataset.buckets.resize in ("cover", "none")
    buckets = replace(dataset.buckets, crops=crops) if random_crop else dataset.buckets
    views_are_few = crops > 0 or not random_crop
    spec = CacheSpec(latents=latents and views_are_few, text=texts, images=latents and views_are_few)
    cached = replace(dataset, buckets=buckets, cache=spec)
    if ahead:
        _fill(cached, models, host)
    return cached


def _fill(dataset: Dataset, models: ModelsSpec, host: Host) -> None:
    import torch

    from cascade_train.models import library, owner
    from cascade_train.models.compressor import encode
    from cascade_train.models.image import encode_image
    from cascade_train.training.feed import LatentFeed, PixelFeed, TextFeed
    from cascade_train.training.objectives.base import encoder

    sizes = library.geometry(models)
    opened = open_dataset(dataset, multiple=sizes.size_multiple, native_side=sizes.native_side, host=host)
    device = torch.device(host.device)
    latents, texts = store_for(dataset, models, "compressor", host), store_for(dataset, models, "text", host)
    images = store_for(dataset, models, "image", host) if library.has(models, "image") else None
    stores = [store for store in (latents, texts, images) if store is not None]
    pixels = PixelFeed(opened, remember=False)
    with torch.inference_mode(False), torch.no_grad():
        text_feed = None
        feeds: list[tuple[LatentFeed, Store]] = []
        if latents is not None:
            frozen = partial(library.use, models, "compressor", host.device)
            feed = LatentFeed(pixels, encoder(frozen, encode), device, latents)
            feeds.append((feed, latents))
        if images is not None:
            frozen = partial(library.use, models, "image", host.device)
            feed = LatentFeed(pixels, encoder(frozen, encode_image, "the image encoder"), device, images)
            feeds.append((feed, images))
        if texts is not None:
            frozen = partial(library.use, models, "text", host.device)
            text_feed = TextFeed(frozen, device, texts, captions=models.captions)
            if line := _too_long(opened, models, host):
                host.warn(line)
        library.ask_for_room(models, ("compressor", "text", "image"), host)
        try:
            for sample in range(host.rank, len(opened), host.world_size):
                if all(store.trouble for store in stores):
                    break
                for feed, store in feeds:
                    for draw in () if store.trouble else views(opened, sample):
                        if opened.cache_key(draw) not in store:
                            host.check_interrupt()
                            feed.make(draw)
                if text_feed is not None and texts is not None and not texts.trouble:
                    for caption in ("", *caption_variants(opened, sample)):
                        if text_key(caption) not in texts:
                            host.check_interrupt()
                            text_feed.make(caption)
                host.progress(sample + 1, len(opened), f"cached {sample + 1} of {len(opened)} samples")
        finally:
            for store in stores:
                store.flush()
            flush_contents()
            owner.leave(host.device)
    size = sum(path.stat().st_size for store in stores for path in store.folder.glob("*.safetensors"))
    troubled = [store for store in stores if store.trouble]
    if len(troubled) < len(stores) or not stores:
        host.progress(len(opened), len(opened), f"cached {len(opened)} samples, {size / 1e6:.1f} MB on disk")
    for store in troubled:
        host.warn(
            f"the {store.folder.parent.name} cache ends here, it cannot be written: {store.trouble}; what is "
            "missing is worked out while training"
        )


def views(dataset: OpenDataset, sample: int) -> list[Draw]:
    """A draw for every crop that ``sample`` may be shown with."""
    bucket = dataset.bucket_of(sample)
    return [Draw(0, sample, bucket.width, bucket.height, crop, 0.0) for crop in dataset.fixed_crops(sample)]


def caption_variants(dataset: OpenDataset, sample: int) -> list[str]:
    """The captions that ``sample`` may be drawn with, where they are few; [] where tags are varied."""
    spec = dataset.caption_spec(sample)
    if spec.shuffle_tags or spec.tag_dropout > 0:
        return []
    captions = dataset.captions(sample)[:_MOST_VARIANTS]
    chances = [(index + 0.5) / len(captions) for index in range(len(captions))]
    return [dataset.caption(Draw(0, sample, 0, 0, (0.5, 0.5), chance)) for chance in chances]


def dataset_preview(
    dataset: Dataset, models: ModelsSpec | None, *, count: int, seed: int, batch_size: int, host: Host
) -> tuple[Tensor, str]:
    """A grid (1, H, W, 3) of pictures as a run with ``seed`` shows them, and the dataset's report.

    ``models`` may be None: then sizes are those of Stable Cascade.

    Raises:
        CascadeError: the dataset cannot be opened, or has nothing to show.
    """
    from cascade_train.models.library import geometry, has

    multiple, side = STABLE_CASCADE
    factor = multiple
    if models is not None:
        sizes = geometry(models)
        multiple, side, factor = sizes.size_multiple, sizes.native_side, sizes.latent_factor
    opened = open_dataset(dataset, multiple=multiple, native_side=side, factor=factor, host=host)
    grid = samples_grid(opened, count, seed)
    lines = [opened.report.text(), *opened.notes(batch_size)]
    if models is not None and has(models, "text") and not dataset.streamed:
        line = _too_long(opened, models, host)
        lines += [f"warning: {line}"] if line else []
    report = "\n".join(lines)
    return to_tensor(grid), report


def _too_long(dataset: OpenDataset, models: ModelsSpec, host: Host) -> str:
    """What is to be said of captions that are not read to their end; empty for nothing."""
    from cascade_train.training.too_long import in_dataset, tokenizer_of

    return in_dataset(tokenizer_of(models), dataset, models.captions, host).line(models.captions)


def samples_grid(
    dataset: OpenDataset, count: int = 16, seed: int = 0, cell: int = 192, columns: int | None = None
) -> Image.Image:
    """A grid of cropped pictures, each with its bucket, its latent grid, its key and its caption.

    Raises:
        CascadeError: the dataset has nothing to show.
    """
    factor = dataset.buckets[0].factor
    cards = []
    for draw, loaded in _shown(dataset, count, seed):
        note = f"{draw.width}x{draw.height} ({draw.width // factor}x{draw.height // factor} latents)"
        cards.append(sample_card(loaded.pixels, note, loaded.key, loaded.caption, cell))
    if not cards:
        raise CascadeError("the dataset has nothing to show")
    return tiled(cards, columns or min(len(cards), max(1, round(len(cards) ** 0.5 * 1.2))), gap=8)


def _shown(dataset: OpenDataset, count: int, seed: int) -> Iterator[tuple[Draw, Loaded]]:
    """``count`` samples as training from ``seed`` in batches of one would show them, each once."""
    seen: set[int] = set()
    for step in range(20 * count):
        draw = dataset.draws(seed, step, 1)[0]
        if draw.sample not in seen:
            seen.add(draw.sample)
            yield draw, dataset.load(draw)
        if len(seen) >= min(count, len(dataset) or count):
            return
