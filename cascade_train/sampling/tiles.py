"""Decoding a picture tile by tile: the last resort where memory is short."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

OVERLAP = 16
"""Latents on each side that a tile sees beside its own; none further than 14 reaches a pixel of Stage A."""


def tiled(decode: Callable[[Tensor], Tensor], latents: Tensor, factor: int, side: int) -> Tensor:
    """``decode(latents)``, (B, C, factor·h, factor·w), of ``latents`` (B, 4, h, w).

    It is done in tiles of ``side`` latents. Each sees `OVERLAP` more around it, of which nothing is kept, so
    no seam is blended.
    """
    height, width = latents.shape[-2:]
    rows = []
    for top in range(0, height, side):
        row = []
        for left in range(0, width, side):
            up, start = max(0, top - OVERLAP), max(0, left - OVERLAP)
            part = latents[..., up : top + side + OVERLAP, start : left + side + OVERLAP]
            drawn = decode(part)
            y, x = (top - up) * factor, (left - start) * factor
            own = min(side, height - top) * factor, min(side, width - left) * factor
            row.append(drawn[..., y : y + own[0], x : x + own[1]])
        rows.append(torch.cat(row, dim=-1))
    return torch.cat(rows, dim=-2)
