"""Describing a dataset from what a person typed. Imports no torch.

The nodes Image Folder, WebDataset, Dataset From Images, Caption Options and Aspect Buckets call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from cascade_train.data import sources
from cascade_train.data.buckets import parse_ratios, parse_resolutions
from cascade_train.data.expressions import normalise
from cascade_train.data.spec import BucketSpec, CaptionSpec, Dataset
from cascade_train.host.base import Host

if TYPE_CHECKING:
    from torch import Tensor

OnBad = Literal["skip", "error"]


def image_folder(
    path: str,
    *,
    recursive: bool,
    on_bad: OnBad,
    max_bad: float,
    background: str,
    host: Host,
    ending: str = "",
) -> Dataset:
    """The pictures in a folder; raises CascadeError as `sources.folder_dataset` and `sources.colour` do."""
    dataset = sources.folder_dataset(path, recursive=recursive, host=host, ending=ending)
    return _treated(dataset, on_bad, max_bad, background)


def web_dataset(
    shards: str,
    *,
    shuffle_buffer: int,
    on_bad: OnBad,
    max_bad: float,
    background: str,
    host: Host,
    ending: str = "",
) -> Dataset:
    """The samples in tars; raises CascadeError as `sources.tars_dataset` and `sources.colour` do."""
    dataset = sources.tars_dataset(shards, shuffle=shuffle_buffer, host=host, ending=ending)
    return _treated(dataset, on_bad, max_bad, background)


def from_images(batches: Sequence[Tensor], captions: Sequence[str], host: Host) -> Dataset:
    """Pictures of other nodes, batches (B, H, W, 3) in [0, 1]; one text is taken line by line, more one each.

    Raises:
        CascadeError: there are neither as many captions as pictures nor one.
    """
    pictures = [picture for batch in batches for picture in batch.detach().cpu().numpy()]
    return sources.pictures_dataset(pictures, lines_of(captions), host=host)


def lines_of(captions: Sequence[str]) -> Sequence[str]:
    """One text line by line; more as they are, one each."""
    return captions[0].strip("\n").split("\n") if len(captions) == 1 else captions


def with_caption_options(dataset: Dataset, getter: str, **settings: Any) -> Dataset:
    """``dataset`` with its captions read and varied so; ``settings`` are `CaptionSpec`'s.

    Raises:
        CascadeError: ``getter`` is no expression.
    """
    rule = normalise(getter) if getter.strip() else ""
    return dataset.with_captions(CaptionSpec(getter=rule, **settings))


def with_buckets(dataset: Dataset, ratios: str, resolutions: str, **settings: Any) -> Dataset:
    """``dataset`` with buckets of ``ratios`` (``1/1, 3/4``) and ``resolutions``, and `BucketSpec`'s settings.

    Raises:
        CascadeError: a ratio or a resolution cannot be read.
    """
    spec = BucketSpec(ratios=parse_ratios(ratios), resolutions=parse_resolutions(resolutions), **settings)
    return replace(dataset, buckets=spec)


def _treated(dataset: Dataset, on_bad: OnBad, max_bad: float, background: str) -> Dataset:
    """``dataset`` with what becomes of bad and of transparent pictures."""
    return replace(dataset, on_bad=on_bad, max_bad=float(max_bad), background=sources.colour(background))
