"""Labelled grids of pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from cascade_train.drawing.paper import INK, PAPER, font, tiled, to_pictures, to_tensor

if TYPE_CHECKING:
    from torch import Tensor


def labelled_grid(
    rows: Sequence[tuple[str, Sequence[Image.Image]]],
    *,
    headings: Sequence[str] = (),
    cell: int = 128,
    gap: int = 6,
) -> Image.Image:
    """One row of pictures under each label.

    Args:
        rows: (label, pictures); rows may differ in length.
        headings: a text over each column, or none.
        cell: the longer side of a picture in the grid, in pixels. Smaller pictures are enlarged by whole
            factors without smoothing, larger ones reduced.
    """
    shown = [(label, [_fitted(picture, cell) for picture in pictures]) for label, pictures in rows]
    columns = max((len(pictures) for _, pictures in shown), default=1) or 1
    every = [picture.size for _, pictures in shown for picture in pictures] or [(cell, cell)]
    width, height = max(w for w, _ in every), max(h for _, h in every)
    plain, line = font(13), 16
    per_line = max(12, int(columns * (width + gap) / 7))
    head = line + gap if headings else 0
    labels = [textwrap.wrap(label, per_line)[:4] or [""] for label, _ in shown]
    tops, y = [], gap + head
    for lines in labels:
        tops.append(y)
        y += len(lines) * line + height + 2 * gap
    sheet = Image.new("RGB", (columns * (width + gap) + gap, max(y, height)), PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, heading in enumerate(headings[:columns]):
        draw.text((gap + column * (width + gap), gap), heading, fill=INK, font=plain)
    for top, lines, (_, pictures) in zip(tops, labels, shown):
        for number, text in enumerate(lines):
            draw.text((gap, top + number * line), text, fill=INK, font=plain)
        for column, picture in enumerate(pictures):
            sheet.paste(picture, (gap + column * (width + gap), top + len(lines) * line + gap // 2))
    return sheet


def _fitted(picture: Image.Image, cell: int) -> Image.Image:
    longest = max(picture.size)
    if longest <= cell:
        factor = max(1, cell // longest)
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    scale = cell / longest
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def compared(images: Sequence[tuple[str, Tensor | None]], beside: bool, gap: int = 8) -> Tensor:
    """Labelled pictures on one sheet, (1, H, W, 3), at their own size, next to or under each other.

    Args:
        images: (label, pictures (B, H, W, 3)); the pictures of one batch stand in a block of their own,
            and None is left out.
    """
    large = font(18)
    blocks = [(label, tiled(to_pictures(batch))) for label, batch in images if batch is not None]
    if not blocks:
        return to_tensor(Image.new("RGB", (64, 64), PAPER))
    line = 26
    sizes = [(max(block.width, int(large.getlength(label))), block.height + line) for label, block in blocks]
    if beside:
        width = sum(w for w, _ in sizes) + gap * (len(sizes) + 1)
        height = max(h for _, h in sizes) + 2 * gap
    else:
        width = max(w for w, _ in sizes) + 2 * gap
        height = sum(h for _, h in sizes) + gap * (len(sizes) + 1)
    picture = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(picture)
    x = y = gap
    for (label, block), (block_width, block_height) in zip(blocks, sizes):
        draw.text((x, y), label, fill=INK, font=large)
        picture.paste(block, (x, y + line))
        x, y = (x + block_width + gap, y) if beside else (x, y + block_height + gap)
    return to_tensor(picture)
