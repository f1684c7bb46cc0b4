"""Edges by Canny's detector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cascade_train.control.base import NO_CHANCE, Chance, Control

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class CannyControl(Control):
    """Edges, 1 channel, 0 or 1 (between them where they are resized), at the picture's own size.

    They are found as the official code does: in the picture brought to ``resize`` × ``resize`` (bilinear, 0:
    left as it is) and to 8 bits by cutting, then brought back. ``low`` and ``high`` are the thresholds of the
    gradient, 0 to 1020, between which an edge goes on and above which it begins (Canny 1986).
    """

    resize: int = 224
    low: int = 100
    high: int = 200

    @property
    def channels(self) -> int:
        return 1

    def apply(
        self, picture: np.ndarray, chance: Chance = NO_CHANCE, given: np.ndarray | None = None
    ) -> np.ndarray:
        import cv2
        import numpy as np
        import torch
        from torch.nn.functional import interpolate

        height, width = picture.shape[:2]
        seen = picture
        if self.resize:
            whole = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
            small = interpolate(whole, size=(self.resize, self.resize), mode="bilinear")
            seen = small.mul(255)[0].permute(1, 2, 0).numpy().astype(np.uint8)
        edges = torch.from_numpy(cv2.Canny(np.ascontiguousarray(seen), self.low, self.high)).float() / 255
        if self.resize:
            edges = interpolate(edges[None, None], size=(height, width), mode="bilinear")[0, 0]
        return edges[None].numpy()
