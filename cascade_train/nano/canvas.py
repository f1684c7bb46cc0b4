"""The canvas that nano's world is drawn on: pictures at four times their size, averaged down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SIDE = 64
"""Side of every picture in pixels."""

SUPERSAMPLING = 4


def fill(canvas: np.ndarray, corners: np.ndarray, colour: Any) -> None:
    """Fill a polygon, given in picture pixels, on a supersampled canvas."""
    import cv2
    import numpy as np

    # fillPoly's coordinates name pixel centres; four fractional bits keep sub-pixel places
    points = np.round((corners * SUPERSAMPLING - 0.5) * 16).astype(np.int32)
    cv2.fillPoly(canvas, [points], tuple(int(v) for v in colour), lineType=cv2.LINE_8, shift=4)


def shrink(canvas: np.ndarray) -> np.ndarray:
    """A supersampled canvas averaged down to picture size."""
    import cv2

    side = canvas.shape[0] // SUPERSAMPLING
    return cv2.resize(canvas, (side, side), interpolation=cv2.INTER_AREA)
