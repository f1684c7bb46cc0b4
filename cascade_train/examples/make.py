"""Draws the bundled pictures of a concept that nano was never shown: a crescent.

    python -m cascade_train.examples.make [FOLDER]

writes ``<number>.png`` and ``<number>.txt`` (its caption, with the placeholder ``[crescent]``). The pictures
in ``crescent/`` beside this file were made so.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.nano import world
from cascade_train.nano.canvas import SIDE, SUPERSAMPLING, fill, shrink

if TYPE_CHECKING:
    import numpy as np

TOKEN = "[crescent]"
COUNT = 20
SEED = 20
_OPENING = math.radians(52)
"""Half the angle that the crescent's outer arc leaves open, on the right."""
_INNER = 0.55
"""Where the inner arc's centre lies, in radii to the right of the outer one's."""


def crescent(radius: float) -> np.ndarray:
    """The corners of a crescent open to the right, around the origin, (N, 2) in pixels."""
    import numpy as np

    outer = np.linspace(_OPENING, 2 * math.pi - _OPENING, 48)
    tip = np.array([math.cos(_OPENING), math.sin(_OPENING)])
    reach = float(np.hypot(tip[0] - _INNER, tip[1]))
    angle = math.atan2(tip[1], tip[0] - _INNER)
    inner = np.linspace(-angle, angle - 2 * math.pi, 48)
    arcs = [
        np.stack([np.cos(outer), np.sin(outer)], 1),
        np.stack([_INNER + reach * np.cos(inner), reach * np.sin(inner)], 1),
    ]
    return np.concatenate(arcs) * radius * 1.05


def draw(colour: str, background: str, centre: tuple[float, float], radius: float) -> np.ndarray:
    """One crescent, uint8 (64, 64, 3); centre and radius in pixels."""
    import numpy as np

    side = SIDE * SUPERSAMPLING
    canvas = np.empty((side, side, 3), np.uint8)
    canvas[:] = world.BACKGROUNDS[background]
    fill(canvas, crescent(radius) + np.array(centre), world.COLOURS[colour])
    return shrink(canvas)


def picture(index: int, seed: int = SEED) -> tuple[np.ndarray, str]:
    """Picture and caption number ``index``: colours and backgrounds in turn, size and place at random."""
    import numpy as np

    rng = np.random.Generator(np.random.PCG64([seed, index]))
    colours, backgrounds = tuple(world.COLOURS), tuple(world.BACKGROUNDS)
    colour = colours[index % len(colours)]
    background = backgrounds[(index * 5 + index // len(colours)) % len(backgrounds)]
    size = ("medium", "large")[int(rng.integers(2))]
    radius = float(rng.uniform(*world.RADII[size]))
    place = ("centre", "left", "right", "top", "bottom")[int(rng.integers(5))]
    reach = SIDE / 2 - radius * 1.12 - 1.0
    jitter = min(2.0, 0.12 * reach + 0.5)
    x, y = (
        SIDE / 2 + direction * max(reach - jitter, 0.0) + rng.uniform(-jitter, jitter)
        for direction in world.PLACES[place]
    )
    where = (
        "in the centre"
        if place == "centre"
        else f"at the {place}"
        if place in ("top", "bottom")
        else f"on the {place}"
    )
    caption = f"a {size} {colour} {TOKEN} {where} on a {background} background"
    caption = caption.replace("a orange", "an orange")
    return draw(colour, background, (float(x), float(y)), radius), caption


def main(folder: Path) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for index in range(COUNT):
        pixels, caption = picture(index)
        Image.fromarray(pixels).save(folder / f"{index:02d}.png", optimize=True)
        (folder / f"{index:02d}.txt").write_text(caption + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "crescent")
