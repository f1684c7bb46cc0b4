"""Aspect buckets: which picture size a sample is trained at."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cascade_train.data.spec import BucketSpec
from cascade_train.errors import CascadeError


@dataclass(frozen=True)
class Bucket:
    """A picture size in pixels, and the side of one latent cell in pixels."""

    width: int
    height: int
    factor: int = 1

    @property
    def grid(self) -> tuple[int, int]:
        """Latent columns and rows."""
        return self.width // self.factor, self.height // self.factor


def parse_ratio(text: str) -> float:
    """``"3/4"``, ``"3:4"`` or ``"0.75"`` as width/height; CascadeError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:[/:]\s*(\d+(?:\.\d+)?))?\s*", text)
    if match and float(match[1]) > 0 and float(match[2] or 1) > 0:
        return float(match[1]) / float(match[2] or 1)
    raise CascadeError(f"'{text}' is no aspect ratio", fix="Write width/height, such as 3/4 or 16/9")


def parse_ratios(text: str) -> tuple[str, ...]:
    """``"1/1, 3/4; 16:9"`` as texts that `parse_ratio` reads; CascadeError where one is no ratio."""
    listed = tuple(item.strip() for item in text.replace(";", ",").split(",") if item.strip())
    for item in listed:
        parse_ratio(item)
    return listed


def parse_resolutions(text: str) -> tuple[tuple[int, int], ...]:
    """``"768x768, 896 x 640"`` as (width, height) pairs; CascadeError for anything else."""
    out = []
    for item in filter(None, (part.strip() for part in re.split(r"[,;\n]", text))):
        match = re.fullmatch(r"(\d+)\s*[x×*]\s*(\d+)", item, re.IGNORECASE)
        if not match:
            raise CascadeError(f"'{item}' is no resolution", fix="Write WIDTHxHEIGHT, such as 768x768")
        out.append((int(match[1]), int(match[2])))
    return tuple(out)


def size_for(ratio: float, side: int, multiple: int) -> tuple[int, int]:
    """(width, height) for ``ratio`` = width/height at area ``side``², floored to ``multiple``.

    The reference's rule: height = floor(sqrt(side²/ratio)/m)·m, width = floor(sqrt(side²·ratio)/m)·m.
    """
    density = float(side * side)
    height = int(math.sqrt(density / ratio) // multiple * multiple)
    width = int(math.sqrt(density * ratio) // multiple * multiple)
    return width, height


def all_ratios(ratios: Sequence[str]) -> list[float]:
    """The ratios and then their inverses, repeats kept, as the reference lists them."""
    values = [parse_ratio(text) for text in ratios]
    return values + [1 / value for value in values]


class Buckets:
    """The bucket list of a `BucketSpec` for models whose sizes are multiples of ``multiple`` pixels.

    Raises:
        CascadeError: a resolution that is no multiple, a ratio too narrow for the size, or no bucket.
    """

    def __init__(self, spec: BucketSpec, multiple: int, native_side: int, factor: int | None = None) -> None:
        self.spec = spec
        self.multiple = multiple
        self.factor = factor or multiple
        self.side = spec.size or native_side
        self.native_side = native_side
        if spec.resolutions:
            for width, height in spec.resolutions:
                if width % multiple or height % multiple or not width or not height:
                    raise CascadeError(
                        f"the resolution {width}x{height} does not fit these models",
                        fix=f"Use multiples of {multiple} pixels",
                    )
            sizes = list(spec.resolutions)
            self._ratios = [width / height for width, height in sizes]
        else:
            if not spec.ratios:
                raise CascadeError("there are no aspect ratios", fix="Give at least 1/1")
            self._ratios = all_ratios(spec.ratios)
            sizes = [size_for(ratio, self.side, multiple) for ratio in self._ratios]
            if any(not width or not height for width, height in sizes):
                raise CascadeError(
                    f"buckets of size {self.side} are too small for these aspect ratios",
                    fix=f"Use a size of several times {multiple} pixels",
                )
        self.sizes: list[tuple[int, int]] = list(dict.fromkeys(sizes))
        self._of_ratio = np.array([self.sizes.index(size) for size in sizes], dtype=np.int64)
        self._ratio_array = np.array(self._ratios)

    def bucket(self, index: int) -> Bucket:
        width, height = self.sizes[index]
        return Bucket(width, height, self.factor)

    def assign(self, widths: np.ndarray, heights: np.ndarray, chances: np.ndarray) -> np.ndarray:
        """The bucket index of each picture (int32, −1 where it is dropped as too small).

        ``chances`` (uint64, one a picture) decide which ``random_share`` go to a random bucket.
        """
        spec = self.spec
        widths, heights = widths.astype(np.int64), heights.astype(np.int64)
        aspect = widths / np.maximum(heights, 1)
        nearest = np.empty(len(aspect), dtype=np.int64)
        best = np.full(len(aspect), np.inf)
        for index, ratio in enumerate(self._ratios):
            if spec.resolutions:
                distance = np.abs(np.log(np.maximum(aspect, 1e-9) / ratio))
                width, height = self.sizes[self._of_ratio[index]]
                enlarged = (widths < width) | (heights < height)
                # Among resolutions of one aspect: the largest that needs no enlarging, else the smallest.
                area = width * height
                distance = distance + np.where(enlarged, 1e-4 * (1 + area * 1e-9), 1e-5 / (1 + area))
            else:
                distance = np.abs(aspect - ratio)
            closer = distance < best
            nearest[closer] = index
            best[closer] = distance[closer]
        if spec.random_share > 0:
            lucky = (chances >> np.uint64(40)).astype(np.float64) / float(1 << 24) < spec.random_share
            pick = (chances & np.uint64(0xFFFFFFFF)) % np.uint64(len(self._ratios))
            nearest = np.where(lucky, pick.astype(np.int64), nearest)
        out = self._of_ratio[nearest].astype(np.int32)
        if not spec.upscale:
            self._own_sizes(out, widths, heights)
        if spec.min_side:
            out[np.minimum(widths, heights) < spec.min_side] = -1
        return out

    def _own_sizes(self, out: np.ndarray, widths: np.ndarray, heights: np.ndarray) -> None:
        """Send pictures that would be enlarged to buckets of their own size, rounded down."""
        sizes = np.array(self.sizes, dtype=np.int64)
        small = np.flatnonzero((widths < sizes[out, 0]) | (heights < sizes[out, 1]))
        for at in small:
            width, height = self.sizes[out[at]]
            own = (
                min(width, int(widths[at])) // self.multiple * self.multiple,
                min(height, int(heights[at])) // self.multiple * self.multiple,
            )
            if not own[0] or not own[1]:
                out[at] = -1
                continue
            if own not in self.sizes:
                self.sizes.append(own)
            out[at] = self.sizes.index(own)

    def warnings(self) -> tuple[str, ...]:
        """What about these sizes will hurt when sampling (facts §1: train on the grid that is sampled)."""
        cells = math.sqrt(np.mean([w * h for w, h in self.sizes])) / self.factor
        native = self.native_side / self.factor
        if abs(cells - native) > 0.15 * native:
            return (
                f"these buckets train on latents of about {cells:.0f}×{cells:.0f}, but the models sample "
                f"at {native:.0f}×{native:.0f}; size {self.native_side} trains on the sampling grid",
            )
        return ()


def nearest_large(
    sizes: Sequence[tuple[int, int]], counts: Sequence[int], index: int, least: int
) -> int | None:
    """The bucket of at least ``least`` samples whose aspect (in log) is nearest to bucket ``index``."""
    own = math.log(sizes[index][0] / sizes[index][1])
    rest = [i for i in range(len(sizes)) if i != index and counts[i] >= least]
    return min(rest, key=lambda i: (abs(math.log(sizes[i][0] / sizes[i][1]) - own), i), default=None)
