"""Validation pictures: the same prompts and seeds at different moments of a run, as labelled grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import torch
from PIL import Image
from torch import Tensor

from cascade_train.host.base import Host
from cascade_train.host.progress import Progress, silent
from cascade_train.models.spec import ModelsSpec
from cascade_train.ranks.talk import shared_out
from cascade_train.sampling.grid import labelled_grid, to_pictures
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.sampling.spec import Prompts

_SHARED = (
    "negative",
    "width",
    "height",
    "steps_c",
    "cfg_c",
    "rescale",
    "steps_b",
    "cfg_b",
    "sampler",
    "shift",
)


def draw_prompts(
    models: ModelsSpec,
    prompts: Prompts,
    *,
    device: str = "cpu",
    progress: Progress = silent,
    host: Host | None = None,
) -> Tensor:
    """All pictures of ``prompts``, (texts × pictures, H, W, 3) in [0, 1], prompt by prompt.

    Where ``host`` is one of several processes each draws its share, and all get all pictures.
    """
    settings = {name: value for name, value in asdict(prompts).items() if name in _SHARED}
    texts = [text for text in prompts.texts for _ in range(prompts.pictures)]
    seeds = [prompts.seed + picture for _ in prompts.texts for picture in range(prompts.pictures)]

    def drawn(first: int, last: int) -> Tensor:
        return text_to_image(
            models, texts[first:last], seeds=seeds[first:last], device=device, progress=progress, **settings
        )

    if host is None or not texts:
        return drawn(0, len(texts))
    return torch.cat(shared_out(drawn, len(texts), host))


def validation_grid(prompts: Prompts, images: Tensor, title: str = "") -> Image.Image:
    """The grid of `draw_prompts`'s pictures: a row for each prompt, a column for each seed."""
    pictures = to_pictures(images)
    count = prompts.pictures
    rows = [(text, pictures[row * count : (row + 1) * count]) for row, text in enumerate(prompts.texts)]
    if title:
        rows[0] = (f"{title} · {rows[0][0]}", rows[0][1])
    return labelled_grid(rows, headings=[f"seed {prompts.seed + column}" for column in range(count)])


def comparison_grid(moments: Sequence[tuple[str, Tensor]], prompts: Prompts) -> Image.Image:
    """Several moments of a run under each other, prompt by prompt; each moment is (label, pictures)."""
    count = prompts.pictures
    rows = []
    for row, text in enumerate(prompts.texts):
        for label, images in moments:
            rows.append((f"{label} · {text}", to_pictures(images[row * count : (row + 1) * count])))
    return labelled_grid(rows, headings=[f"seed {prompts.seed + column}" for column in range(count)])
