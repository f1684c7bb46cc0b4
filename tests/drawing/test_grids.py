"""Validation sheets and loss plots, looked at as pixels."""

from __future__ import annotations

import torch
from PIL import Image

from cascade_train.jobs.validation import validation_grid
from cascade_train.sampling.grid import labelled_grid, sheet, tiled, to_pictures, to_tensor
from cascade_train.sampling.plot import CURVE, loss_plot, running_mean
from cascade_train.sampling.spec import Prompts, prompts_from_lines


def colours(picture: Image.Image) -> set[tuple[int, int, int]]:
    return {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}  # type: ignore[union-attr, misc]


def test_pictures_and_tensors_are_the_same_thing() -> None:
    images = torch.rand(3, 8, 12, 3)
    there = to_pictures(images)
    assert there[0].size == (12, 8)
    back = torch.cat([to_tensor(picture) for picture in there])
    assert (back - images).abs().max() <= 0.5 / 255 + 1e-6


def test_every_picture_is_on_the_sheet_under_its_prompt() -> None:
    prompts = Prompts(texts=("one", "two"), pictures=3)
    shades = [(40 * i, 255 - 40 * i, 17) for i in range(6)]
    images = torch.stack([torch.tensor(shade).float().div(255).expand(64, 64, 3) for shade in shades])
    grid = validation_grid(prompts, images, "step 100")
    found = colours(grid)
    assert set(shades) <= found
    upper = colours(grid.crop((0, 0, grid.width, grid.height // 2)))
    assert set(shades[:3]) <= upper and not set(shades[3:]) & upper, "a row for each prompt"


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
    both = sheet([("before", before), ("after", after)], True)
    assert both.shape[0] == 1 and both.shape[2] > 180
    assert sheet([("before", before), ("after", after)], False).shape[1] > 190
    assert sheet([], True).shape[0] == 1


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


def test_prompts_one_a_line() -> None:
    assert prompts_from_lines("a cat\n\n# not this\n  a dog  \n") == ("a cat", "a dog")
