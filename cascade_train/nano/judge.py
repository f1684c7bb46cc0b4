"""What a picture of nano's world shows, read off its pixels by comparing them with drawn shapes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from cascade_train.nano.canvas import SIDE, SUPERSAMPLING, fill, shrink
from cascade_train.nano.world import BACKGROUNDS, COLOURS, PLACES, RING_HOLE, SHAPES, Wanted, outline

if TYPE_CHECKING:
    import numpy as np

SMALLEST = 40.0
"""Pixels that a thing must cover to be counted; a small shape covers 150 and more."""

SIZE_LIMITS = (12.75, 18.5)
"""Radii between small and medium, and medium and large."""

SIDEWAYS = 3.0
"""Pixels from the middle beyond which a lone shape is to one side."""


@dataclass(frozen=True)
class Seen:
    """What the judge sees. ``shapes`` has one entry a thing; ``place`` is that of the first."""

    background: str
    colour: str
    shapes: tuple[str, ...]
    size: str
    place: str

    @property
    def count(self) -> int:
        return len(self.shapes)


def judge(picture: np.ndarray) -> Seen:
    """What is seen in ``picture`` (64, 64, 3) uint8."""
    import cv2
    import numpy as np

    pixels = picture.astype(np.float64)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    ground = np.median(border, axis=0)
    background = _nearest(ground, BACKGROUNDS)
    far = np.linalg.norm(pixels - ground, axis=2)
    reach = np.quantile(far, 0.995)
    if reach < 30:
        return Seen(background, "", (), "", "")
    core = pixels[far > 0.75 * reach]
    inside = np.median(core, axis=0)
    colour = _nearest(inside, COLOURS)
    axis = inside - ground
    cover = np.clip((pixels - ground) @ axis / max(float(axis @ axis), 1.0), 0.0, 1.0)
    _, labels = cv2.connectedComponents((cover > 0.45).astype(np.uint8), connectivity=4)
    things = []
    for label in range(1, int(labels.max()) + 1):
        # a thing owns its soft edge too
        near = cv2.dilate((labels == label).astype(np.uint8), np.ones((3, 3), np.uint8))
        others = (labels > 0) & (labels != label)
        mask = cover * near * ~others
        if mask.sum() >= SMALLEST:
            things.append(mask)
    if not things:
        return Seen(background, colour, (), "", "")
    named = [_shape(mask) for mask in things]
    radius = float(np.mean([size for _, size in named]))
    size = "small" if radius < SIZE_LIMITS[0] else "medium" if radius < SIZE_LIMITS[1] else "large"
    return Seen(background, colour, tuple(shape for shape, _ in named), size, _place(things[0]))


def verdict(seen: Seen, wanted: Wanted) -> dict[str, bool]:
    """Which attributes are as wanted. One that the caption leaves open counts as right; ``shape`` asks that
    every thing has it, and that there is one."""
    answer = {
        "background": seen.background == wanted.background,
        "colour": seen.colour == wanted.colour,
        "shape": bool(seen.shapes) and all(shape == wanted.shape for shape in seen.shapes),
        "count": seen.count == wanted.count,
        "size": wanted.size is None or seen.size == wanted.size,
        "place": wanted.place is None or (seen.count == 1 and seen.place == wanted.place),
    }
    return answer | {"all": all(answer.values())}


def _nearest(colour: np.ndarray, palette: dict[str, tuple[int, int, int]]) -> str:
    import numpy as np

    return min(palette, key=lambda name: float(np.linalg.norm(colour - np.array(palette[name]))))


@lru_cache(maxsize=len(SHAPES))
def _unit(shape: str) -> tuple[float, float, float]:
    """Area, and the centroid's offset, of ``shape`` at radius 1 with its centre at the origin."""
    import numpy as np

    corners = outline(shape, 1.0)
    x, y = corners[:, 0], corners[:, 1]
    nx, ny = np.roll(x, -1), np.roll(y, -1)
    cross = x * ny - nx * y
    area = float(cross.sum() / 2)
    centroid = ((x + nx) * cross).sum() / (6 * area), ((y + ny) * cross).sum() / (6 * area)
    share = 1 - RING_HOLE**2 if shape == "ring" else 1.0
    return abs(area) * share, float(centroid[0]), float(centroid[1])


def _shape(mask: np.ndarray) -> tuple[str, float]:
    """The shape whose drawing, of the same area and centroid, overlaps ``mask`` most, and its radius."""
    import numpy as np

    total = float(mask.sum())
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] + 0.5
    middle = np.array([float((mask * columns).sum()), float((mask * rows).sum())]) / total
    best = ("", -1.0, 0.0)
    for shape in SHAPES:
        area, dx, dy = _unit(shape)
        for stretch in (0.95, 1.0, 1.05):
            radius = (total / area) ** 0.5 * stretch
            template = _drawn(shape, radius, middle - radius * np.array([dx, dy]))
            overlap = float(np.minimum(mask, template).sum() / np.maximum(mask, template).sum())
            if overlap > best[1]:
                best = (shape, overlap, radius)
    return best[0], best[2]


def _drawn(shape: str, radius: float, centre: np.ndarray) -> np.ndarray:
    import numpy as np

    canvas = np.zeros((SIDE * SUPERSAMPLING, SIDE * SUPERSAMPLING), np.uint8)
    fill(canvas, outline(shape, radius) + centre, (255,))
    if shape == "ring":
        fill(canvas, outline("ring", radius * RING_HOLE) + centre, (0,))
    return shrink(canvas).astype(np.float64) / 255


def _place(mask: np.ndarray) -> str:
    import numpy as np

    rows, columns = np.nonzero(mask > 0.5)
    if not len(rows):
        return ""
    x = (columns.min() + columns.max() + 1) / 2 - SIDE / 2
    y = (rows.min() + rows.max() + 1) / 2 - SIDE / 2
    direction = tuple(0 if abs(value) < SIDEWAYS else (1 if value > 0 else -1) for value in (x, y))
    return next(name for name, steps in PLACES.items() if steps == direction)
