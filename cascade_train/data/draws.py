"""What a step draws from a dataset, and how a picture becomes the pixels of a draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cascade_train.data.order import raw, unit
from cascade_train.data.pixels import cover_size, fit
from cascade_train.data.spec import BucketSpec

CENTRE = (0.5, 0.5)
CORNERS = {
    "center": CENTRE,
    "top left": (0.0, 0.0),
    "top right": (1.0, 0.0),
    "bottom left": (0.0, 1.0),
    "bottom right": (1.0, 1.0),
}
"""Where crops that are not random lie, as `Draw.crop` says it."""


@dataclass(frozen=True)
class Draw:
    """One place of a batch. ``index`` counts in the global batch, ``width`` and ``height`` are the bucket's,
    ``crop`` (x, y) in [0, 1] places the window, ``caption`` in [0, 1) picks and varies the caption."""

    index: int
    sample: int
    width: int
    height: int
    crop: tuple[float, float]
    caption: float


@dataclass(frozen=True)
class Loaded:
    """``pixels`` are uint8 (height, width, 3), sRGB; ``key`` names the sample for people."""

    pixels: np.ndarray
    caption: str
    key: str


def draws_of(
    samples: Sequence[int],
    width: int,
    height: int,
    spec: BucketSpec,
    seed: int,
    step: int,
    fixed_crops: Callable[[int], Sequence[tuple[float, float]]] | None = None,
) -> tuple[Draw, ...]:
    """The batch ``samples`` of one bucket with its crops and captions, drawn from (seed, step, index)."""
    chances = unit(raw(3 * len(samples), seed, step, 4)).reshape(len(samples), 3).tolist()
    fixed = CENTRE if spec.resize in ("stretch", "pad") else CORNERS.get(spec.crop)
    out = []
    for index, sample in enumerate(samples):
        x, y, caption = chances[index]
        if fixed is not None:
            crop = fixed
        elif spec.crops and fixed_crops is not None:
            crop = fixed_crops(sample)[int(x * spec.crops)]
        else:
            crop = (x, y)
        out.append(Draw(index, sample, width, height, crop, caption))
    return tuple(out)


def needed_size(width: int, height: int, draw: Draw, spec: BucketSpec) -> tuple[int, int] | None:
    """The size that a (width, height) picture is brought to before cropping; None for its own."""
    if spec.resize == "none":
        shorter = min(width, height)
        if not spec.max_side or shorter <= spec.max_side or not 0 < spec.downsample < shorter:
            return None
        scale = spec.downsample / shorter
        size = max(round(width * scale), draw.width), max(round(height * scale), draw.height)
        return size
    if spec.resize == "pad":
        scale = min(draw.width / width, draw.height / height)
        return max(1, round(width * scale)), max(1, round(height * scale))
    if spec.resize == "stretch":
        return draw.width, draw.height
    return cover_size(width, height, draw.width, draw.height)


def window(
    pixels: np.ndarray,
    draw: Draw,
    need: tuple[int, int] | None,
    spec: BucketSpec,
    background: tuple[int, int, int],
) -> np.ndarray:
    """What ``draw`` shows of a picture (H, W, 3) for which `needed_size` said ``need``."""
    if need and spec.resize == "none":
        pixels = fit(pixels, *need, resize="stretch")
    return fit(pixels, draw.width, draw.height, draw.crop, spec.resize, background)
