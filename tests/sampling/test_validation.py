"""Prompts of a run: how they are typed, and their pictures on a grid."""

from __future__ import annotations

import torch
from PIL import Image

from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.sampling.spec import Prompts, prompts_from_lines
from cascade_train.sampling.validation import draw_some, validation_grid


def colours(picture: Image.Image) -> set[tuple[int, int, int]]:
    return {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}  # type: ignore[union-attr, misc]


def test_every_picture_is_on_the_sheet_under_its_prompt() -> None:
    prompts = Prompts(texts=("one", "two"), pictures=3)
    shades = [(40 * i, 255 - 40 * i, 17) for i in range(6)]
    images = torch.stack([torch.tensor(shade).float().div(255).expand(64, 64, 3) for shade in shades])
    grid = validation_grid(prompts, images, "step 100")
    found = colours(grid)
    assert set(shades) <= found
    upper = colours(grid.crop((0, 0, grid.width, grid.height // 2)))
    assert set(shades[:3]) <= upper and not set(shades[3:]) & upper, "a row for each prompt"


def test_a_share_of_the_pictures_is_that_of_all(tiny: ModelsSpec) -> None:
    """Counted prompt by prompt, each with the seeds from the first on."""
    prompts = Prompts(texts=("a red circle", "a blue square"), pictures=2, seed=5, steps_c=2, steps_b=1)
    share = draw_some(tiny, prompts, 1, 3)
    drawn = text_to_image(
        tiny, ["a red circle", "a blue square"], seeds=[6, 5], steps_c=2, steps_b=1, shift=1.0
    )
    assert torch.equal(share, drawn)


def test_prompts_one_a_line() -> None:
    assert prompts_from_lines("a cat\n\n# not this\n  a dog  \n") == ("a cat", "a dog")
