"""Seeing a dataset: a grid of what the network will really be shown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cascade_train.data.dataset import Draw, Loaded, OpenDataset
from cascade_train.errors import CascadeError

_INK, _FAINT, _PAPER = (30, 30, 30), (110, 110, 110), (250, 250, 250)
_LINE = 15
_CAPTION_LINES = 3


def shown_samples(dataset: OpenDataset, count: int, seed: int) -> Iterator[tuple[Draw, Loaded]]:
    """``count`` samples as training from ``seed`` in batches of one would show them, each once."""
    seen: set[int] = set()
    for step in range(20 * count):
        draw = dataset.draws(seed, step, 1)[0]
        if draw.sample not in seen:
            seen.add(draw.sample)
            yield draw, dataset.load(draw)
        if len(seen) >= min(count, len(dataset) or count):
            return


def preview(
    dataset: OpenDataset, count: int = 16, seed: int = 0, cell: int = 192, columns: int | None = None
) -> Image.Image:
    """A grid of cropped pictures, each with its bucket, its latent grid, its key and its caption.

    Raises:
        CascadeError: the dataset has nothing to show.
    """
    factor = dataset.buckets[0].factor
    cells = []
    for draw, loaded in shown_samples(dataset, count, seed):
        note = f"{draw.width}x{draw.height} ({draw.width // factor}x{draw.height // factor} latents)"
        cells.append(_cell(loaded.pixels, note, loaded.key, loaded.caption, cell))
    if not cells:
        raise CascadeError("the dataset has nothing to show")
    return _tiled(cells, columns or min(len(cells), max(1, round(len(cells) ** 0.5 * 1.2))))


def _cell(pixels: np.ndarray, note: str, key: str, caption: str, side: int) -> Image.Image:
    picture = Image.fromarray(pixels)
    longest = max(picture.size)
    if longest * 2 <= side:
        factor = side // longest
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    else:
        scale = side / longest
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.BICUBIC)
    font = ImageFont.load_default(12)
    letters = max(8, int(side / 6.2))
    lines = textwrap.wrap(caption, letters)
    if len(lines) > _CAPTION_LINES:
        lines = [*lines[: _CAPTION_LINES - 1], lines[_CAPTION_LINES - 1][: letters - 1] + "…"]
    out = Image.new("RGB", (side, side + _LINE * (2 + _CAPTION_LINES)), _PAPER)
    out.paste(picture, ((side - picture.width) // 2, (side - picture.height) // 2))
    draw = ImageDraw.Draw(out)
    draw.text((0, side), note, fill=_FAINT, font=font)
    short = key if len(key) <= letters else "…" + key[-letters + 1 :]
    draw.text((0, side + _LINE), short, fill=_FAINT, font=font)
    for number, text in enumerate(lines or ["(no words)"]):
        draw.text((0, side + _LINE * (2 + number)), text, fill=_INK if lines else _FAINT, font=font)
    return out


def _tiled(cells: Sequence[Image.Image], columns: int, gap: int = 8) -> Image.Image:
    width, height = cells[0].size
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + gap) + gap), _PAPER)
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        sheet.paste(cell, (gap + column * (width + gap), gap + row * (height + gap)))
    return sheet
