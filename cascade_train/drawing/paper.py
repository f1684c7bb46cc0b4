"""What every drawing starts from: its colours, its font, pictures as tensors, and laying them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageFont

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Colour = tuple[int, int, int]
INK, PAPER = (30, 30, 30), (250, 250, 250)


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, ``size`` pixels high: the same on every machine."""
    return ImageFont.load_default(size)


def to_pictures(images: Tensor) -> list[Image.Image]:
    """(B, H, W, 3) floats in [0, 1] as RGB pictures, rounded to 8 bits."""
    return [Image.fromarray(picture) for picture in to_bytes(images)]


def to_bytes(images: Tensor) -> np.ndarray:
    """(B, H, W, 3 or more) floats, of which [0, 1] is kept, as RGB in uint8 (B, H, W, 3), rounded."""
    return (images[..., :3].clamp(0, 1) * 255).round().byte().cpu().numpy()


def to_tensor(picture: Image.Image) -> Tensor:
    """An RGB picture as (1, H, W, 3) floats in [0, 1]."""
    import numpy as np
    import torch

    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0).unsqueeze(0)


def tiled(
    pictures: Sequence[Image.Image], columns: int | None = None, gap: int = 0, paper: Colour = PAPER
) -> Image.Image:
    """Pictures row by row in cells of the largest one's size, ``gap`` pixels between and around them.

    As square a block as ``columns`` (None: the root of their number) allows.
    """
    columns = columns or math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    width, height = (max(each) for each in zip(*(picture.size for picture in pictures)))
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + gap) + gap), paper)
    for index, picture in enumerate(pictures):
        row, column = divmod(index, columns)
        sheet.paste(picture, (gap + column * (width + gap), gap + row * (height + gap)))
    return sheet


def stacked(top: Image.Image, bottom: Image.Image) -> Image.Image:
    """``top`` above ``bottom``, both at the left."""
    sheet = Image.new("RGB", (max(top.width, bottom.width), top.height + bottom.height), PAPER)
    sheet.paste(top, (0, 0))
    sheet.paste(bottom, (0, top.height))
    return sheet
