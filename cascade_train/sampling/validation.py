"""Validation prompts drawn, and their pictures on a labelled grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from cascade_train.drawing.grids import labelled_grid
from cascade_train.drawing.paper import to_pictures
from cascade_train.host.progress import Progress, silent
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.sampling.spec import Prompts

if TYPE_CHECKING:
    from PIL import Image


def draw_some(
    models: ModelsSpec,
    prompts: Prompts,
    first: int,
    last: int,
    *,
    device: str = "cpu",
    progress: Progress = silent,
) -> Tensor:
    """Pictures ``first`` to ``last`` − 1 of ``prompts``, counted prompt by prompt: (N, H, W, 3) in [0, 1]."""
    texts = [text for text in prompts.texts for _ in range(prompts.pictures)]
    seeds = [prompts.seed + picture for _ in prompts.texts for picture in range(prompts.pictures)]
    return text_to_image(
        models,
        texts[first:last],
        seeds=seeds[first:last],
        width=prompts.width,
        height=prompts.height,
        negative=prompts.negative,
        steps_c=prompts.steps_c,
        cfg_c=prompts.cfg_c,
        rescale=prompts.rescale,
        steps_b=prompts.steps_b,
        cfg_b=prompts.cfg_b,
        sampler=prompts.sampler,
        shift=prompts.shift,
        rescale_of=prompts.rescale_of,
        device=device,
        progress=progress,
    )


def validation_grid(prompts: Prompts, images: Tensor, title: str = "") -> Image.Image:
    """The grid of all pictures of ``prompts`` (N, H, W, 3): a row for each prompt, a column for each seed."""
    pictures = to_pictures(images)
    count = prompts.pictures
    rows = [(text, pictures[row * count : (row + 1) * count]) for row, text in enumerate(prompts.texts)]
    if title:
        rows[0] = (f"{title} · {rows[0][0]}", rows[0][1])
    return labelled_grid(rows, headings=[f"seed {prompts.seed + column}" for column in range(count)])
