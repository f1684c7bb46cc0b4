"""Small pictures of how a run is doing while it trains: what Stage C draws now, and the loss so far.

The jobs of `train` show them, for the nodes Train Steps and Train and Validate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from cascade_train.diffusion.samplers import SamplerSettings
from cascade_train.drawing.paper import stacked, tiled, to_pictures
from cascade_train.drawing.plot import loss_plot
from cascade_train.host.base import Host
from cascade_train.models import library
from cascade_train.models.text import TextStates
from cascade_train.sampling.conditioning import Conditioning
from cascade_train.sampling.sizes import picture_size
from cascade_train.sampling.stages import preview_latents, sample_network
from cascade_train.training import run as runs

SHOWN = 4
"""Captions that are drawn."""

ROUGH = SamplerSettings(steps=8, cfg=4.0, rescale=0.7, sampler="ddim")
"""Enough to see whether a concept is there."""

SIZE = (512, 288)
"""Of the plot, in pixels; the pictures above it have its width."""


POINTS = 160
"""Of the curve: few enough that it is drawn with every message."""


class RunPreview:
    """Draws always the same captions and seeds, so that what changes is what was learned.

    The captions are those of samples at hand when it is first asked; the previewer decodes. Without one, and
    where Stage C is not trained, the curve of the loss alone is shown. ``last`` is what was shown last.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._captions: list[str] = []
        self.last: Image.Image | None = None

    def __call__(self, now: runs.Standing) -> Image.Image | None:
        self._captions = self._captions or list(now.captions[:SHOWN])
        models = now.position.spec.models
        if now.stage_c is None or now.text is None or not self._captions:
            return None
        if not library.has(models, "previewer"):
            return None
        latents = sample_network(
            now.stage_c,
            _conditioning(now.text(self._captions)),
            _conditioning(now.text([""] * len(self._captions))),
            seeds=range(len(self._captions)),
            size=picture_size(library.geometry(models)).stage_c,
            settings=ROUGH,
            objective=now.position.spec.objective,
        )
        pictures = to_pictures(preview_latents(models, latents, self._host.device))
        row = tiled(pictures, len(pictures))
        return row.resize((SIZE[0], row.height * SIZE[0] // row.width))

    def with_curve(self, rows: Sequence[Mapping[str, Any]], picture: Image.Image | None) -> Image.Image:
        """``picture`` above the curve of the loss in ``rows``."""
        plot = loss_plot(rows, size=SIZE, most=POINTS)
        self.last = plot if picture is None else stacked(picture, plot)
        return self.last


def _conditioning(states: TextStates) -> Conditioning:
    return Conditioning(states.hidden, states.pooled)
