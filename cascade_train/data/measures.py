"""What is measured from a picture's pixels, each picture decoded once for all of it.

Every measure sees the same picture: upright sRGB on white, brought down to a shorter side of `WORKING_SIDE`
pixels by area averaging (a smaller one stays as it is). Imports neither numpy nor OpenCV before it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

WORKING_SIDE = 512
WHITE = (255, 255, 255)


@dataclass(frozen=True)
class Measure:
    """A number that follows from a picture alone. ``of`` takes the pixels, uint8 (H, W, 3), at the working
    size; ``version`` grows when it comes to give other numbers, so that old ones are not taken for new."""

    name: str
    of: Callable[[np.ndarray], float] = field(compare=False)
    version: int = 1

    @property
    def key(self) -> str:
        """Names the measure where its results are kept."""
        return f"{self.name} {self.version}"


def luma(pixels: np.ndarray) -> np.ndarray:
    """0.299 R + 0.587 G + 0.114 B (BT.601), uint8 (H, W)."""
    import cv2

    return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)


def difference_hash(pixels: np.ndarray) -> int:
    """64 bits of an RGB picture (H, W, 3): whether each cell of a 9×8 reduction is brighter than its right
    neighbour (Krawetz, "Kind of Like That", 2013)."""
    import cv2
    import numpy as np

    small = cv2.resize(luma(pixels), (9, 8), interpolation=cv2.INTER_AREA)
    bits = (small[:, :-1] > small[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def sharpness(pixels: np.ndarray) -> float:
    """The variance of the Laplacian of the luma (0 … 255): some 10 for a blurred photograph, hundreds for a
    sharp one (Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", 2000)."""
    import cv2

    return float(cv2.Laplacian(luma(pixels), cv2.CV_64F).var())


def brightness(pixels: np.ndarray) -> float:
    """The mean luma, 0 (black) … 1 (white)."""
    return float(luma(pixels).mean() / 255)


DIFFERENCE_HASH = Measure("difference_hash", difference_hash)
SHARPNESS = Measure("sharpness", sharpness)
BRIGHTNESS = Measure("brightness", brightness)

CHEAP = (DIFFERENCE_HASH, SHARPNESS, BRIGHTNESS)
"""Measured of every picture that is decoded for any measure, so that the next filter need not decode."""

NAMED = {measure.name: measure for measure in (SHARPNESS, BRIGHTNESS)}
"""What an expression may call by name."""


def working_size(width: int, height: int) -> tuple[int, int]:
    """(width, height) of a picture as it is measured."""
    scale = min(1.0, WORKING_SIDE / max(1, min(width, height)))
    return max(1, round(width * scale)), max(1, round(height * scale))


def measured(pixels: np.ndarray, measures: Iterable[Measure]) -> dict[str, float]:
    """The results by key, of a picture uint8 (H, W, 3) at its working size or larger."""
    import cv2

    size = working_size(pixels.shape[1], pixels.shape[0])
    if size != (pixels.shape[1], pixels.shape[0]):
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return {measure.key: measure.of(pixels) for measure in measures}
