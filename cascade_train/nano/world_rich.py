"""Pictures beyond the captioned scenes: gradients, patterns, overlaps, strokes, text-like marks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cascade_train.nano.canvas import SIDE, SUPERSAMPLING, fill, shrink

if TYPE_CHECKING:
    import numpy as np


def draw(rng: np.random.Generator) -> np.ndarray:
    """One picture, uint8 (64, 64, 3), drawn from ``rng``: a ground and zero to six things on it."""
    canvas = _ground(rng)
    for _ in range(int(rng.integers(0, 7))):
        _THINGS[rng.integers(len(_THINGS))](rng, canvas)
    return shrink(canvas)


def _colour(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, 3)


def _ground(rng: np.random.Generator) -> np.ndarray:
    import numpy as np

    big = SIDE * SUPERSAMPLING
    kind = rng.integers(5)
    first, second = _colour(rng), _colour(rng)
    if kind == 0:
        share = np.zeros((big, big))
    else:
        angle = rng.uniform(0, 2 * math.pi)
        axis = np.linspace(-1, 1, big)
        along = np.cos(angle) * axis[None, :] + np.sin(angle) * axis[:, None]
        if kind == 1:
            share = np.clip(along / 2.8 + 0.5, 0, 1)
        elif kind == 2:
            share = (np.sin(along * rng.uniform(4, 28)) > rng.uniform(-0.6, 0.6)).astype(float)
        elif kind == 3:
            cells = rng.uniform(2, 8)
            share = (np.floor((axis + 1) * cells)[None, :] + np.floor((axis + 1) * cells)[:, None]) % 2
        else:
            centre = rng.uniform(-1, 1, 2)
            distance = np.hypot(axis[None, :] - centre[0], axis[:, None] - centre[1])
            share = np.clip(distance / rng.uniform(0.5, 2.5), 0, 1)
    mixed = first + (second - first) * share[..., None]
    return np.ascontiguousarray(mixed.astype(np.uint8))


def _polygon(rng: np.random.Generator, canvas: np.ndarray) -> None:
    import numpy as np

    corners = int(rng.integers(3, 9))
    angles = np.sort(rng.uniform(0, 2 * math.pi, corners))
    lengths = rng.uniform(0.4, 1.0, corners) * rng.uniform(4, 26)
    middle = rng.uniform(0, SIDE, 2)
    fill(canvas, middle + np.stack([np.cos(angles), np.sin(angles)], 1) * lengths[:, None], _colour(rng))


def _ellipse(rng: np.random.Generator, canvas: np.ndarray) -> None:
    import numpy as np

    angles = np.linspace(0, 2 * math.pi, 40, endpoint=False)
    points = np.stack([np.cos(angles) * rng.uniform(3, 24), np.sin(angles) * rng.uniform(3, 24)], 1)
    turn = rng.uniform(0, math.pi)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    middle = rng.uniform(0, SIDE, 2)
    fill(canvas, points @ rotation.T + middle, _colour(rng))
    if rng.random() < 0.4:
        fill(canvas, points @ rotation.T * rng.uniform(0.3, 0.8) + middle, _colour(rng))


def _curve(rng: np.random.Generator, canvas: np.ndarray) -> None:
    import cv2
    import numpy as np

    points = rng.uniform(0, SIDE, (4, 2))
    t = np.linspace(0, 1, 24)[:, None]
    bezier = (
        (1 - t) ** 3 * points[0]
        + 3 * (1 - t) ** 2 * t * points[1]
        + 3 * (1 - t) * t**2 * points[2]
        + t**3 * points[3]
    )
    thick = int(rng.integers(3, 16))
    colour = tuple(int(v) for v in _colour(rng))
    cv2.polylines(canvas, [np.round(bezier * SUPERSAMPLING).astype(np.int32)], False, colour, thick)


def _marks(rng: np.random.Generator, canvas: np.ndarray) -> None:
    import cv2

    text = "".join(chr(rng.integers(33, 123)) for _ in range(int(rng.integers(1, 6))))
    place = tuple(int(v) for v in rng.uniform(0, SIDE * SUPERSAMPLING * 0.8, 2))
    colour = tuple(int(v) for v in _colour(rng))
    cv2.putText(
        canvas,
        text,
        place,
        int(rng.integers(0, 5)),
        float(rng.uniform(1.2, 5.0)),
        colour,
        int(rng.integers(3, 12)),
    )


def _dots(rng: np.random.Generator, canvas: np.ndarray) -> None:
    import cv2

    colour = tuple(int(v) for v in _colour(rng))
    step = float(rng.uniform(6, 16)) * SUPERSAMPLING
    radius = int(step * rng.uniform(0.15, 0.4))
    left, top = rng.uniform(0, SIDE * SUPERSAMPLING * 0.6, 2)
    for row in range(int(rng.integers(2, 5))):
        for column in range(int(rng.integers(2, 5))):
            cv2.circle(canvas, (int(left + column * step), int(top + row * step)), radius, colour, -1)


_THINGS = (_polygon, _polygon, _ellipse, _curve, _marks, _dots)
