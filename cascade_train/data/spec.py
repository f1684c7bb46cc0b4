"""What travels on a CASCADE_DATASET link: an immutable description of samples. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from cascade_train.data.filters.base import Filter
from cascade_train.data.links import Roots
from cascade_train.digest import digest, local

REFERENCE_RATIOS = ("1/1", "1/2", "3/4", "3/5", "4/5", "6/9", "9/16")
"""The ratios that the official training code buckets by (their inverses are added)."""


class Source:
    """Where samples come from. Subclasses are frozen dataclasses, and the module that has one says how it is
    opened (`readers.opens`)."""


@dataclass(frozen=True)
class FolderSource(Source):
    """Pictures in a folder. ``content`` identifies the files in it wherever it lies."""

    content: str
    path: str = local()
    recursive: bool = True
    ending: str = local("")
    """Of pictures that share a key the one with this ending is meant (`names.grouped`); ``content`` tells."""
    links: Roots = field(default=None, metadata={"digest": False})
    """Where links in it may lead; None anywhere."""


@dataclass(frozen=True)
class TarSource(Source):
    """A WebDataset tar on this machine. ``content`` identifies it wherever it lies. ``ending`` is as in
    `FolderSource`."""

    content: str
    path: str = local()
    ending: str = local("")


@dataclass(frozen=True)
class StreamSource(Source):
    """Remote WebDataset shards, read in sequence through a local shard cache.

    ``shards`` are URLs for fsspec (``s3://``, ``gs://``, ``hf://``, ``http(s)://``). ``shuffle`` is the
    number of samples held to shuffle within. ``ending`` is as in `FolderSource`.
    """

    shards: tuple[str, ...]
    shuffle: int = 1000
    ending: str = ""


@dataclass(frozen=True)
class WeightedSource:
    """A source, or a whole dataset with its own captions and filters, that is seen ``repeats`` times an
    epoch. A ``share`` above 0 sets how often instead: shares of one dataset's sources are relative to each
    other, and the source that needs it least is seen once an epoch."""

    source: Source | Dataset
    repeats: int = 1
    share: float = 0.0


@dataclass(frozen=True)
class CaptionSpec:
    """Where captions come from and how they are varied.

    With ``source`` ``"beside"`` a caption is the file of the same stem with ``extension``, else ``.txt`` or
    ``.caption``, else the metadata's ``field``. ``getter`` is a plain expression over the metadata that
    gives a string or a list of strings.
    """

    extension: str = ".txt"
    fallback: Literal["error", "empty", "file name", "fixed"] = "error"
    fixed: str = ""
    prefix: str = ""
    suffix: str = ""
    source: Literal["beside", "metadata", "file name", "folder name", "fixed"] = "beside"
    field: str = "caption"
    getter: str = ""
    lines: bool = False
    """Each line of a caption file is a caption of its own; one is drawn per step."""
    separator: str = ","
    """What stands between tags; used when tags are shuffled or dropped."""
    shuffle_tags: bool = False
    keep_first: int = 0
    """So many tags stay in front, in place and undropped."""
    tag_dropout: float = 0.0
    """Probability that each further tag is left out."""


@dataclass(frozen=True)
class BucketSpec:
    """Aspect buckets by the reference's rule. ``size`` 0 means the models' native picture side.

    ``ratios`` are width/height, inverses are added. ``resolutions`` (width, height) replace the rule.
    ``random_share`` of the samples go to a bucket drawn at random. ``min_side`` drops pictures whose shorter
    side is below it. Pictures whose shorter side is above ``max_side`` count as brought down to
    ``downsample`` first (matters for ``resize="none"``). ``upscale`` off trains a picture that is too small
    for its bucket at its own size, rounded down.
    """

    size: int = 0
    ratios: tuple[str, ...] = ("1/1",)
    crop: Literal["random", "center", "top left", "top right", "bottom left", "bottom right"] = "random"
    random_share: float = 0.0
    resolutions: tuple[tuple[int, int], ...] = ()
    min_side: int = 0
    max_side: int = 0
    downsample: int = 0
    upscale: bool = True
    resize: Literal["cover", "none", "stretch", "pad"] = "cover"
    leftovers: Literal["fill", "merge"] = "fill"
    """A bucket smaller than the batch is filled with repeats, or merged into the nearest bucket."""
    crops: int = 0
    """Number of fixed random crops per sample; 0 draws a fresh crop each step."""


@dataclass(frozen=True)
class CacheSpec:
    """What is kept on disk between steps; it changes no result and so is left out of digests."""

    latents: bool = True
    text: bool = True
    images: bool = True


@dataclass(frozen=True)
class Dataset:
    """An immutable description of samples with a digest. Nothing is read until it is needed.

    ``filters`` apply in order; those of a dataset inside another apply to its own samples, before those of
    the outer one. ``background`` is the colour behind transparent pictures and around padded ones. More than
    ``max_bad`` (a share) of bad samples is an error.
    """

    sources: tuple[WeightedSource, ...]
    captions: CaptionSpec = CaptionSpec()
    buckets: BucketSpec = BucketSpec()
    filters: tuple[Filter, ...] = ()
    on_bad: Literal["skip", "error"] = "skip"
    max_bad: float = 0.5
    background: tuple[int, int, int] = (255, 255, 255)
    cache: CacheSpec | None = local(None)  # noqa: RUF009

    @property
    def digest(self) -> str:
        return digest(self)

    @property
    def streamed(self) -> bool:
        """Whether remote shards are read in sequence, so that order is not a function of (seed, step)."""
        return any(isinstance(leaf, StreamSource) for leaf, _ in self.leaves())

    def leaves(self) -> Iterator[tuple[Source, Dataset]]:
        """Every source with the dataset that describes its captions, in order."""
        for weighted in self.sources:
            if isinstance(weighted.source, Dataset):
                yield from weighted.source.leaves()
            else:
                yield weighted.source, self

    def with_filters(self, *filters: Filter) -> Dataset:
        """This dataset with ``filters`` behind those that it has."""
        return replace(self, filters=(*self.filters, *filters))

    def with_captions(self, captions: CaptionSpec) -> Dataset:
        """This dataset with ``captions`` for every source, nested ones too."""
        sources = tuple(
            replace(w, source=w.source.with_captions(captions)) if isinstance(w.source, Dataset) else w
            for w in self.sources
        )
        return replace(self, sources=sources, captions=captions)
