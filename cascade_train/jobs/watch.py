"""Small pictures of how a training is doing: what Stage C draws now, and the loss so far."""

from __future__ import annotations

from PIL import Image

from cascade_train.diffusion.samplers import SamplerSettings
from cascade_train.host.base import Host
from cascade_train.models import library
from cascade_train.models.text import TextStates
from cascade_train.sampling.conditioning import Conditioning
from cascade_train.sampling.grid import PAPER, tiled, to_pictures
from cascade_train.sampling.plot import loss_plot
from cascade_train.sampling.sizes import picture_size
from cascade_train.sampling.stages import has_part, preview_latents, sample_network
from cascade_train.training import run as runs

PICTURES = 4
QUICK = SamplerSettings(steps=8, cfg=4.0, rescale=0.7, sampler="ddim")
"""Rough, but enough to see whether a concept is there."""

SIZE = (512, 288)
"""Of the plot, in pixels; the pictures above it have its width."""


class Watch:
    """Draws always the same captions and seeds, so that what changes is what was learned.

    The captions are those of samples at hand when it is first asked; the previewer decodes. Without one, and
    where Stage C is not trained, the loss alone is shown.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._captions: list[str] = []

    def __call__(self, look: runs.Standing) -> Image.Image:
        plot = loss_plot(runs.metrics(look.position), size=SIZE)
        self._captions = self._captions or list(look.captions[:PICTURES])
        if look.stage_c is None or look.text is None or not self._captions:
            return plot
        models = look.position.spec.models
        if not has_part(models, "previewer"):
            return plot
        latents = sample_network(
            look.stage_c,
            _conditioning(look.text(self._captions)),
            _conditioning(look.text([""] * len(self._captions))),
            seeds=range(len(self._captions)),
            size=picture_size(library.geometry(models)).stage_c,
            settings=QUICK,
            objective=look.position.spec.objective,
        )
        drawn = tiled(to_pictures(preview_latents(models, latents, self._host.device)), len(self._captions))
        return _above(drawn.resize((SIZE[0], drawn.height * SIZE[0] // drawn.width)), plot)


def _conditioning(states: TextStates) -> Conditioning:
    return Conditioning(states.hidden, states.pooled)


def _above(top: Image.Image, bottom: Image.Image) -> Image.Image:
    sheet = Image.new("RGB", (max(top.width, bottom.width), top.height + bottom.height), PAPER)
    sheet.paste(top, (0, 0))
    sheet.paste(bottom, (0, top.height))
    return sheet
