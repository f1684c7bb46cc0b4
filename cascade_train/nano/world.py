"""The procedural world of the nano models: captioned pictures of simple shapes, free of rights.

Every picture is a pure function of (kind, seed, index). Six kinds:

- ``captioned``: one to three equal shapes with a caption that names them. One in ten combinations of
  (shape, colour, background) is never drawn, so that models can be tested on what they were not shown.
- ``held-out``: the same, drawn from exactly those combinations.
- ``several``: what ``captioned`` draws when it is two or three shapes, which take longest to learn.
- ``threes``: the same, and two in three show three.
- ``fours``: four shapes, and no caption: what no caption asks for, so that guidance leads away from it.
- ``rich``: half captioned scenes, half gradients, patterns, overlapping polygons, thin strokes and
  text-like marks, so that the picture decoders can draw what Stage C was never told of.

Sizes follow from ÷8 latents: a shape of less than about 10 px radius is lost in them, and shapes that touch
cannot be counted, so small is 10.5 to 11.5 px and several shapes keep a gap of 3 px.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.nano import world_rich
from cascade_train.nano.canvas import SIDE, SUPERSAMPLING, fill, shrink

if TYPE_CHECKING:
    import numpy as np

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "ring")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 35, 40),
    "green": (45, 190, 65),
    "blue": (50, 100, 240),
    "yellow": (252, 225, 50),
    "purple": (165, 60, 205),
    "orange": (250, 130, 20),
    "white": (252, 252, 252),
    "cyan": (80, 225, 235),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "black": (15, 15, 20),
    "grey": (125, 125, 125),
    "navy": (25, 35, 100),
    "tan": (205, 178, 135),
    "pink": (245, 175, 195),
    "brown": (95, 60, 35),
}
RADII: dict[str, tuple[float, float]] = {"small": (10.5, 11.5), "medium": (14.0, 17.0), "large": (20.0, 23.0)}
PLACES: dict[str, tuple[int, int]] = {
    "centre": (0, 0),
    "left": (-1, 0),
    "right": (1, 0),
    "top": (0, -1),
    "bottom": (0, 1),
    "top left": (-1, -1),
    "top right": (1, -1),
    "bottom left": (-1, 1),
    "bottom right": (1, 1),
}
COUNTS = {1: "a", 2: "two", 3: "three"}
KINDS = ("captioned", "held-out", "rich", "several", "threes", "fours")
SCENES = ("captioned", "held-out", "several", "threes")
"""The kinds of which every picture is a captioned scene."""
COUNT_CHANCES: dict[str, tuple[float, float, float]] = {
    "several": (0.0, 0.5, 0.5),
    "threes": (0.0, 1 / 3, 2 / 3),
}
"""How often one, two and three shapes are drawn, by kind, where it is not `USUAL_COUNTS`."""
USUAL_COUNTS = (0.6, 0.2, 0.2)
HELD_OUT_SHARE = 10
"""One combination in this many is held out of training."""

_PLURALS = {"cross": "crosses"} | {shape: shape + "s" for shape in SHAPES if shape != "cross"}
_PLACE_PHRASES: dict[str, tuple[str, ...]] = {
    "centre": ("in the centre", "in the middle"),
    "left": ("on the left", "at the left"),
    "right": ("on the right", "at the right"),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
    "top left": ("at the top left", "in the top left corner"),
    "top right": ("at the top right", "in the top right corner"),
    "bottom left": ("at the bottom left", "in the bottom left corner"),
    "bottom right": ("at the bottom right", "in the bottom right corner"),
}
_TEMPLATES = (
    "{things}{place} on a {background} background",
    "on a {background} background, {things}{place}",
    "{things}{place}, {background} background",
    "a picture of {things}{place} on {background}",
)


@dataclass(frozen=True)
class Scene:
    """What a captioned picture shows. ``place`` is empty when there are several shapes. Centres and the
    radius are in pixels, origin at the top left corner of the picture."""

    shape: str
    colour: str
    background: str
    count: int
    size: str
    place: str
    radius: float
    centres: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Wanted:
    """What a caption asks for; an attribute it leaves open is None."""

    shape: str
    colour: str
    background: str
    count: int
    size: str | None
    place: str | None


def held_out(shape: str, colour: str, background: str) -> bool:
    """Whether no kind but ``held-out`` and ``rich`` draws this combination. The same on every machine."""
    name = f"{shape}|{colour}|{background}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:4], "big") % HELD_OUT_SHARE == 0


def render(kind: str, seed: int, index: int) -> tuple[np.ndarray, str]:
    """The picture (uint8, 64×64×3, RGB) and caption number ``index`` ≥ 0 of ``kind`` under ``seed``.

    A picture of kind ``fours``, or of kind ``rich`` that is no captioned scene, has the caption ``""``.

    Raises:
        CascadeError: an unknown kind or a negative index.
    """
    if kind not in KINDS:
        raise CascadeError(f"the world has no kind '{kind}'", fix=f"One of {', '.join(KINDS)}")
    if index < 0:
        raise CascadeError(f"the sample index {index} is negative")
    rng = _rng(kind, seed, index)
    if kind == "rich" and rng.random() < 0.5:
        return world_rich.draw(rng), ""
    chosen = _draw_scene(rng, kind)
    return draw_scene(chosen), "" if kind == "fours" else _caption(rng, chosen)


def scene(kind: str, seed: int, index: int) -> tuple[Scene, str]:
    """The scene and the caption that `render` draws for a kind of `SCENES`."""
    if kind not in SCENES:
        raise CascadeError(f"pictures of kind '{kind}' need not be scenes", fix=f"One of {', '.join(SCENES)}")
    rng = _rng(kind, seed, index)
    chosen = _draw_scene(rng, kind)
    return chosen, _caption(rng, chosen)


def vocabulary() -> tuple[str, ...]:
    """Every word that captions of the world use, and a few that people will try, sorted."""
    text = " ".join(
        [*SHAPES, *_PLURALS.values(), *COLOURS, *BACKGROUNDS, *RADII, *PLACES, *COUNTS.values(), *_TEMPLATES]
        + [phrase for phrases in _PLACE_PHRASES.values() for phrase in phrases]
        + ["one big little tiny and with above below of an image photo style new concept thing heart moon"]
        + ["arrow flower leaf shape shapes colour center gray"]
    )
    words = set(re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", text)))
    return tuple(sorted(words))


def parse(caption: str) -> Wanted:
    """What ``caption``, written by this grammar, asks for.

    Raises:
        CascadeError: it names no shape, colour or background of this world.
    """
    words = re.findall(r"[a-z]+", caption.lower())
    singular = {plural: shape for shape, plural in _PLURALS.items()}
    shapes = [singular.get(word, word) for word in words if singular.get(word, word) in SHAPES]
    colours = [word for word in words if word in COLOURS]
    backgrounds = [word for word in words if word in BACKGROUNDS]
    if not (shapes and colours and backgrounds):
        raise CascadeError(
            f"'{caption}' is no caption of the world", fix="Name a shape, a colour and a background"
        )
    count = next((number for number, word in COUNTS.items() if number > 1 and word in words), 1)
    vertical = next((word for word in ("top", "bottom") if word in words), "")
    horizontal = next((word for word in ("left", "right") if word in words), "")
    place = f"{vertical} {horizontal}".strip()
    if not place and ("centre" in words or "middle" in words):
        place = "centre"
    return Wanted(
        shape=shapes[0],
        colour=colours[0],
        background=backgrounds[0],
        count=count,
        size=next((word for word in RADII if word in words), None),
        place=place or None,
    )


def outline(shape: str, radius: float) -> np.ndarray:
    """The corners of ``shape`` around the origin, (N, 2) float64 in pixels; for a ring the outer edge.

    The factors give all shapes about the same visual weight at one radius.
    """
    import numpy as np

    if shape in ("circle", "ring"):
        angles = np.arange(48) * (2 * math.pi / 48)
        return np.stack([np.cos(angles), np.sin(angles)], 1) * radius * (0.95 if shape == "circle" else 1.0)
    if shape == "square":
        return np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * radius * 0.8
    if shape == "diamond":
        return np.array([[0, -1.08], [0.85, 0], [0, 1.08], [-0.85, 0]]) * radius
    if shape == "triangle":
        return np.array([[0, -1.0], [1.05, 0.82], [-1.05, 0.82]]) * radius
    if shape == "star":
        angles = np.arange(10) * (2 * math.pi / 10) - math.pi / 2
        lengths = np.where(np.arange(10) % 2 == 0, 1.12, 0.46)
        return np.stack([np.cos(angles), np.sin(angles)], 1) * (lengths * radius)[:, None]
    if shape == "cross":
        w = 0.34
        corners = [
            [-w, -1],
            [w, -1],
            [w, -w],
            [1, -w],
            [1, w],
            [w, w],
            [w, 1],
            [-w, 1],
            [-w, w],
            [-1, w],
            [-1, -w],
            [-w, -w],
        ]
        return np.array(corners) * radius
    raise CascadeError(f"the world has no shape '{shape}'", fix=f"One of {', '.join(SHAPES)}")


RING_HOLE = 0.55
"""Radius of a ring's hole, as a share of its outer radius."""


def draw_scene(chosen: Scene, side: int = SIDE) -> np.ndarray:
    """The picture of a scene, uint8 (side, side, 3); geometry scales with ``side``."""
    import numpy as np

    scale = side / SIDE
    big = side * SUPERSAMPLING
    canvas = np.empty((big, big, 3), np.uint8)
    canvas[:] = BACKGROUNDS[chosen.background]
    for centre in chosen.centres:
        middle = np.array(centre) * scale
        fill(canvas, outline(chosen.shape, chosen.radius * scale) + middle, COLOURS[chosen.colour])
        if chosen.shape == "ring":
            hole = outline("ring", chosen.radius * scale * RING_HOLE) + middle
            fill(canvas, hole, BACKGROUNDS[chosen.background])
    return shrink(canvas)


def _rng(kind: str, seed: int, index: int) -> np.random.Generator:
    import numpy as np

    return np.random.Generator(np.random.PCG64([KINDS.index(kind), seed & 0xFFFFFFFF, seed >> 32, index]))


def _draw_scene(rng: np.random.Generator, kind: str) -> Scene:
    shapes, colours, backgrounds = SHAPES, tuple(COLOURS), tuple(BACKGROUNDS)
    wanted = kind == "held-out" if kind != "rich" else None
    while True:
        shape = shapes[rng.integers(len(shapes))]
        colour = colours[rng.integers(len(colours))]
        background = backgrounds[rng.integers(len(backgrounds))]
        if wanted is None or held_out(shape, colour, background) == wanted:
            break
    count = 4 if kind == "fours" else int(rng.choice(3, p=COUNT_CHANCES.get(kind, USUAL_COUNTS))) + 1
    sizes = ("small", "medium", "large")[: max(4 - count, 1)]
    size = sizes[rng.integers(len(sizes))]
    low, high = RADII[size]
    radius = float(rng.uniform(low, min(high, {1: high, 2: 15.0, 3: 11.0, 4: 11.0}[count])))
    if count == 1:
        place = tuple(PLACES)[rng.integers(len(PLACES))]
        return Scene(shape, colour, background, 1, size, place, radius, (_centre(rng, place, radius),))
    return Scene(shape, colour, background, count, size, "", radius, _apart(rng, count, radius))


def _centre(rng: np.random.Generator, place: str, radius: float) -> tuple[float, float]:
    half = SIDE / 2
    reach = half - radius * 1.12 - 1.0
    jitter = min(2.0, 0.12 * reach + 0.5)
    out = []
    for direction in PLACES[place]:
        middle = half + direction * max(reach - jitter, 0.0)
        out.append(float(middle + rng.uniform(-jitter, jitter)))
    return out[0], out[1]


def _apart(rng: np.random.Generator, count: int, radius: float) -> tuple[tuple[float, float], ...]:
    import numpy as np

    margin = radius * 1.12 + 1.0
    gap = 2 * radius * 1.06 + 3.0
    for _ in range(8):
        centres = rng.uniform(margin, SIDE - margin, size=(256, count, 2))
        first, second = np.triu_indices(count, 1)
        distance = np.linalg.norm(centres[:, first] - centres[:, second], axis=-1).min(axis=1)
        good = np.flatnonzero(distance >= gap)
        if len(good):
            return tuple((float(x), float(y)) for x, y in centres[good[0]])
    far = SIDE - margin
    if count == 4:
        return (margin, margin), (far, margin), (margin, far), (far, far)
    # three that hardly fit: the corners of the largest triangle there is, turned by a quarter at random
    triangle = [(margin, margin), (far, margin), (SIDE / 2, far)][:count]
    turns = int(rng.integers(4))
    for _ in range(turns):
        triangle = [(SIDE - y, x) for x, y in triangle]
    return tuple(triangle)


def _caption(rng: np.random.Generator, chosen: Scene) -> str:
    size = chosen.size if rng.random() < 0.8 else ""
    noun = chosen.shape if chosen.count == 1 else _PLURALS[chosen.shape]
    things = " ".join(word for word in (COUNTS[chosen.count], size, chosen.colour, noun) if word)
    things = re.sub(r"^a (?=[aeiou])", "an ", things)
    place = ""
    if chosen.place and rng.random() < 0.8:
        phrases = _PLACE_PHRASES[chosen.place]
        place = " " + phrases[rng.integers(len(phrases))]
    template = _TEMPLATES[rng.integers(len(_TEMPLATES))]
    return template.format(things=things, place=place, background=chosen.background)
