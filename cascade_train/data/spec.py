"""What travels on a CASCADE_DATASET link: an immutable description of samples. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cascade_train.digest import digest, local


@dataclass(frozen=True)
class FolderSource:
    """Pictures in a folder. ``content`` identifies the files in it wherever it lies."""

    content: str
    path: str = local()
    recursive: bool = True


@dataclass(frozen=True)
class TarSource:
    """A WebDataset tar on this machine. ``content`` identifies it wherever it lies."""

    content: str
    path: str = local()


@dataclass(frozen=True)
class WorldSource:
    """Pictures drawn by nano's procedural world: samples 0 … count−1 of ``kind`` under ``seed``."""

    kind: str
    seed: int
    count: int


Source = FolderSource | TarSource | WorldSource


@dataclass(frozen=True)
class WeightedSource:
    """A source that is seen ``repeats`` times an epoch."""

    source: Source
    repeats: int = 1


@dataclass(frozen=True)
class CaptionSpec:
    """Where captions come from and how they are varied."""

    extension: str = ".txt"
    fallback: Literal["error", "empty", "file name", "fixed"] = "error"
    fixed: str = ""
    prefix: str = ""
    suffix: str = ""


@dataclass(frozen=True)
class BucketSpec:
    """Aspect buckets by the reference's rule. ``size`` 0 means the models' native picture side."""

    size: int = 0
    ratios: tuple[str, ...] = ("1/1",)
    crop: Literal["center", "random"] = "random"
    random_share: float = 0.0


@dataclass(frozen=True)
class Dataset:
    """An immutable description of samples with a digest. Nothing is read until it is needed."""

    sources: tuple[WeightedSource, ...]
    captions: CaptionSpec = CaptionSpec()
    buckets: BucketSpec = BucketSpec()
    filters: tuple[str, ...] = ()
    on_bad: Literal["skip", "error"] = "skip"

    @property
    def digest(self) -> str:
        return digest(self)
