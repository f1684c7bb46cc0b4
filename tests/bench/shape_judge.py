"""Tells the one shape in a picture by fitting outlines: no training, so nothing to overfit.

The background is the border's median colour, the shape what differs from it. Each known outline is drawn at
the same centre of mass and area, at a few sizes and places around that; the largest overlap (intersection
over union) names the shape, unless it is below `FLOOR`.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from cascade_train.examples import make
from cascade_train.nano import world
from cascade_train.nano.canvas import SIDE, SUPERSAMPLING, fill, shrink

CONCEPT = "crescent"
SHAPES = (*world.SHAPES, CONCEPT)
FLOOR = 0.7
"""Overlap below which a picture shows none of the shapes."""


def outline(shape: str, radius: float) -> np.ndarray:
    return make.crescent(radius) if shape == CONCEPT else world.outline(shape, radius)


@lru_cache(maxsize=20000)
def template(shape: str, radius: float, x: float, y: float) -> np.ndarray:
    """The shape's coverage, (64, 64) in [0, 1], with its outline's origin at (x, y)."""
    side = SIDE * SUPERSAMPLING
    canvas = np.zeros((side, side, 3), np.uint8)
    fill(canvas, outline(shape, radius) + np.array([x, y]), (255, 255, 255))
    if shape == "ring":
        fill(canvas, outline(shape, radius * world.RING_HOLE) + np.array([x, y]), (0, 0, 0))
    return shrink(canvas)[..., 0].astype(np.float32) / 255


@cache
def moments(shape: str) -> tuple[float, float, float]:
    """(area, x and y of the centre of mass) at radius 20 around the origin."""
    drawn = template(shape, 20.0, 32.0, 32.0)
    ys, xs = np.mgrid[:SIDE, :SIDE] + 0.5
    area = float(drawn.sum())
    return area, float((drawn * xs).sum() / area - 32), float((drawn * ys).sum() / area - 32)


def coverage(picture: np.ndarray) -> np.ndarray:
    """How much of each pixel (64, 64) is shape, in [0, 1], of a picture uint8 (64, 64, 3)."""
    pixels = picture.astype(np.float32)
    border = np.concatenate(
        [
            pixels[:2].reshape(-1, 3),
            pixels[-2:].reshape(-1, 3),
            pixels[:, :2].reshape(-1, 3),
            pixels[:, -2:].reshape(-1, 3),
        ]
    )
    background = np.median(border, axis=0)
    distance = np.linalg.norm(pixels - background, axis=-1)
    far = distance > 0.6 * np.quantile(distance, 0.98)
    if distance.max() < 40 or not far.any():
        return np.zeros(distance.shape, np.float32)
    colour = np.median(pixels[far], axis=0) - background
    seen = np.clip((pixels - background) @ colour / (colour @ colour), 0, 1)
    return np.where(seen < 0.15, 0, seen)  # grain in the background is no shape


def overlaps(picture: np.ndarray) -> dict[str, float]:
    """The best overlap of every shape with the picture's, 0 to 1."""
    seen = coverage(picture)
    area = float(seen.sum())
    if area < 40:
        return dict.fromkeys(SHAPES, 0.0)
    ys, xs = np.mgrid[:SIDE, :SIDE] + 0.5
    x, y = float((seen * xs).sum() / area), float((seen * ys).sum() / area)
    best = {}
    for shape in SHAPES:
        own, dx, dy = moments(shape)
        fits = []
        for scale in (0.9, 1.0, 1.1):
            radius = 20.0 * (area / own) ** 0.5 * scale
            for sx in (-1.0, 0.0, 1.0):
                for sy in (-1.0, 0.0, 1.0):
                    drawn = template(
                        shape,
                        round(radius * 4) / 4,
                        round((x - dx * radius / 20 + sx) * 2) / 2,
                        round((y - dy * radius / 20 + sy) * 2) / 2,
                    )
                    fits.append(float(np.minimum(seen, drawn).sum() / np.maximum(seen, drawn).sum()))
        best[shape] = max(fits)
    return best


def name(picture: np.ndarray) -> str:
    """The shape in a picture uint8 (64, 64, 3), or ``""`` for none of them."""
    best = overlaps(picture)
    shape = max(best, key=lambda each: best[each])
    return shape if best[shape] >= FLOOR else ""


def real_pictures(count: int = 64, seed: int = 5) -> list[tuple[np.ndarray, str]]:
    """Freshly drawn pictures of one medium or large shape each, and what they show; no two alike."""
    rng = np.random.default_rng(seed)
    colours, backgrounds = tuple(world.COLOURS), tuple(world.BACKGROUNDS)
    out = []
    for index in range(count):
        shape = SHAPES[index % len(SHAPES)]
        colour, background = colours[rng.integers(len(colours))], backgrounds[rng.integers(len(backgrounds))]
        radius = float(rng.uniform(14.0, 22.0))
        reach = SIDE / 2 - radius * 1.15
        centre = tuple(float(v) for v in SIDE / 2 + rng.uniform(-reach, reach, 2))
        if shape == CONCEPT:
            pixels = make.draw(colour, background, centre, radius)  # type: ignore[arg-type]
        else:
            pixels = world.draw_scene(world.Scene(shape, colour, background, 1, "", "", radius, (centre,)))  # type: ignore[arg-type]
        out.append((pixels, shape))
    return out
