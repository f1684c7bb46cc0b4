"""Cards: one picture with what there is to say about it, for sheets of many."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from cascade_train.drawing.paper import INK, PAPER, font

if TYPE_CHECKING:
    import numpy as np

_FAINT = (110, 110, 110)
_LINE = 15
_CAPTION_LINES = 3


def sample_card(pixels: np.ndarray, note: str, key: str, caption: str, side: int = 192) -> Image.Image:
    """A sample of a dataset in a square of ``side`` pixels, and under it a note, its key and its caption.

    Pictures (H, W, 3) uint8 of half a side or less are enlarged by whole factors, others fitted. Of a long
    key the end is shown, of a long caption the beginning.
    """
    picture = _fitted(Image.fromarray(pixels), side)
    letters = max(8, int(side / 6.2))
    lines = textwrap.wrap(caption, letters)
    if len(lines) > _CAPTION_LINES:
        lines = [*lines[: _CAPTION_LINES - 1], lines[_CAPTION_LINES - 1][: letters - 1] + "…"]
    card = Image.new("RGB", (side, side + _LINE * (2 + _CAPTION_LINES)), PAPER)
    card.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    draw, small = ImageDraw.Draw(card), font(12)
    draw.text((0, side), note, fill=_FAINT, font=small)
    short = key if len(key) <= letters else "…" + key[-letters + 1 :]
    draw.text((0, side + _LINE), short, fill=_FAINT, font=small)
    for number, text in enumerate(lines or ["(no words)"]):
        draw.text((0, side + _LINE * (2 + number)), text, fill=INK if lines else _FAINT, font=small)
    return card


def caption_card(picture: Image.Image, caption: str, side: int = 128) -> Image.Image:
    """``picture`` as a square of ``side`` pixels, and under it its caption in small print, on white."""
    card = Image.new("RGB", (side, side + 40), "white")
    card.paste(picture.resize((side, side), Image.Resampling.NEAREST), (0, 0))
    lines = textwrap.wrap(caption, 21, break_long_words=False, break_on_hyphens=False)[:3]
    ImageDraw.Draw(card).multiline_text(
        (2, side + 1), "\n".join(lines), fill="black", spacing=1, font=font(10)
    )
    return card


def _fitted(picture: Image.Image, side: int) -> Image.Image:
    longest = max(picture.size)
    if longest * 2 <= side:
        factor = side // longest
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    scale = side / longest
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BICUBIC)
