"""Which grids the three stages work on for a picture of some size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from cascade_train.errors import CascadeError
from cascade_train.models.library import Geometry


@dataclass(frozen=True)
class PictureSize:
    """A picture's size in pixels and the grids that go with it, all (height, width).

    ``encoded`` is the size in pixels whose semantic latents have the grid ``stage_c``.
    """

    picture: tuple[int, int]
    stage_c: tuple[int, int]
    stage_b: tuple[int, int]
    encoded: tuple[int, int]


def sampling_factor(geometry: Geometry) -> Fraction:
    """Pixels of a sampled picture for one Stage C latent: 128/3 for full-size models (1024 ↔ 24), whose
    Stage B enlarges by a third; the compressor's own factor for smaller ones."""
    return Fraction(128, 3) if geometry.latent_factor == 32 else Fraction(geometry.latent_factor)


def picture_size(geometry: Geometry, width: int = 0, height: int = 0) -> PictureSize:
    """The grids for a picture of ``width`` × ``height`` pixels; 0 is the models' native side.

    Raises:
        CascadeError: a side that Stage A and Stage B cannot draw; the nearest that they can is told.
    """
    factor = sampling_factor(geometry)
    native = math.ceil(geometry.native_side / geometry.latent_factor) * factor
    sides = tuple(side or math.floor(native) for side in (height, width))
    multiple = 2 * geometry.stage_a_factor
    for name, side in zip(("height", "width"), sides):
        if side < geometry.smallest_side:
            raise CascadeError(
                f"a {name} of {side} pixels is too small for these models",
                fix=f"The smallest that they draw is {geometry.smallest_side}",
                typed=(name, str(side)),
            )
        if side % multiple:
            raise CascadeError(
                f"a {name} of {side} pixels",
                fix=f"Use a multiple of {multiple}, such as {round(side / multiple) * multiple}",
                typed=(name, str(side)),
            )
    grid = tuple(math.ceil(side / factor) for side in sides)
    return PictureSize(
        picture=(sides[0], sides[1]),
        stage_c=(grid[0], grid[1]),
        stage_b=(sides[0] // geometry.stage_a_factor, sides[1] // geometry.stage_a_factor),
        encoded=(grid[0] * geometry.latent_factor, grid[1] * geometry.latent_factor),
    )


SMALLEST, MULTIPLE = 16, 8
"""Of a drawn side in pixels, with any models there are: `picture_size` knows what given ones need."""


def check_side(side: int, largest: int) -> None:
    """Raise CascadeError where no models draw a picture with this side; 0 is their native one."""
    if side < 0 or 0 < side < SMALLEST:
        raise CascadeError(
            f"{side} pixels are too few", fix=f"Use {SMALLEST} or more, or 0 for the models' own"
        )
    if side > largest:
        raise CascadeError(f"{side} pixels are too many", fix=f"Use {largest} or less")
    if side % MULTIPLE:
        raise CascadeError(
            f"{side} pixels", fix=f"Use a multiple of {MULTIPLE}, such as {round(side / MULTIPLE) * MULTIPLE}"
        )
