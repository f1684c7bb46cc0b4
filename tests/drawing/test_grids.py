"""Grids, cards and loss plots, looked at as pixels."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from cascade_train.drawing.cards import caption_card, sample_card
from cascade_train.drawing.grids import compared, labelled_grid
from cascade_train.drawing.paper import INK, PAPER, stacked, tiled, to_pictures, to_tensor
from cascade_train.drawing.plot import CURVE, loss_plot, running_mean


def colours(picture: Image.Image) -> set[tuple[int, int, int]]:
    return {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}  # type: ignore[union-attr, misc]


def test_pictures_and_tensors_are_the_same_thing() -> None:
    images = torch.rand(3, 8, 12, 3)
    there = to_pictures(images)
    assert there[0].size == (12, 8)
    back = torch.cat([to_tensor(picture) for picture in there])
    assert (back - images).abs().max() <= 0.5 / 255 + 1e-6


def test_labels_are_drawn_and_long_ones_wrapped() -> None:
    picture = [Image.new("RGB", (64, 64), (200, 0, 0))]
    plain, long = labelled_grid([("", picture)]), labelled_grid([("word " * 20, picture)])
    assert long.height > plain.height and (30, 30, 30) in colours(long) - colours(plain)


def test_odd_sizes_fit() -> None:
    mixed = [Image.new("RGB", size) for size in ((64, 64), (300, 100), (10, 200))]
    assert labelled_grid([("mixed", mixed)], cell=96).width > 3 * 90
    assert tiled(mixed).size == (600, 400)


def test_a_comparison_shows_both_sides() -> None:
    before, after = torch.zeros(1, 40, 60, 3), torch.ones(2, 80, 60, 3)
    both = compared([("before", before), ("after", after)], True)
    assert both.shape[0] == 1 and both.shape[2] > 180
    assert compared([("before", before), ("after", after)], False).shape[1] > 190
    assert compared([], True).shape[0] == 1


def test_the_plot_goes_down_when_the_loss_does() -> None:
    rows = [{"step": step, "loss": 1.0 / step, "lr": 1e-3} for step in range(1, 200)]
    picture = loss_plot(rows)
    heights = [
        [y for y in range(picture.height) if picture.getpixel((x, y)) == CURVE] for x in (70, 300, 560)
    ]
    first, middle, last = (max(column) for column in heights)
    assert first < middle < last, "down the picture is down in loss"
    assert loss_plot([]).size == picture.size
    assert loss_plot([{"step": 1, "loss": float("nan"), "lr": 0.0}]).size == picture.size


def test_running_mean_by_hand() -> None:
    assert running_mean([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]


def test_tiles_keep_their_gap_and_their_ground() -> None:
    red = Image.new("RGB", (10, 10), (200, 0, 0))
    block = tiled([red] * 5, 3, gap=4, paper=(0, 0, 9))
    assert block.size == (3 * 14 + 4, 2 * 14 + 4)
    assert block.getpixel((4, 4)) == (200, 0, 0) and block.getpixel((3, 3)) == (0, 0, 9)
    assert block.getpixel((40, 25)) == (0, 0, 9), "the place of the sixth is empty"
    both = stacked(red, Image.new("RGB", (20, 5), (0, 200, 0)))
    assert both.size == (20, 15)
    assert both.getpixel((15, 5)) == PAPER and both.getpixel((15, 12)) == (0, 200, 0)


def test_a_card_shows_the_picture_and_cuts_what_is_too_long() -> None:
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[..., 0] = 200
    short = sample_card(pixels, "64x32", "a.png", "", 128)
    long = sample_card(pixels, "64x32", "a.png", "many words " * 40, 128)
    assert short.size == long.size and short.getpixel((64, 64)) == (200, 0, 0)
    assert INK not in colours(short) and INK in colours(long), "a caption is in ink, a lack of one is faint"
    card = caption_card(Image.fromarray(pixels), "a red thing")
    assert card.size == (128, 168) and min(colours(card.crop((0, 128, 128, 168)))) < (40, 40, 40)
