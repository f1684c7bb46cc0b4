"""Small pictures of how a run is doing while it trains: what Stage C draws now, and the loss so far.

The jobs of `train` show them, for the nodes Train Steps and Train and Validate. What was shown last is kept,
and is what a node goes on showing (`node_picture`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from cascade_train.diffusion.samplers import SamplerSettings
from cascade_train.drawing.paper import stacked, tiled, to_pictures
from cascade_train.drawing.plot import loss_plot
from cascade_train.host.base import Host, shown_file
from cascade_train.jobs.drawn import keep_picture
from cascade_train.models import library
from cascade_train.sampling.conditioning import of_states
from cascade_train.sampling.sizes import picture_size
from cascade_train.sampling.stages import preview_latents, sample_network
from cascade_train.training import run as runs
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    from torch import Tensor

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

    The captions are those of the samples at hand after a block's first step; the previewer decodes. Without
    one, and where Stage C is not trained, the curve of the loss alone is shown. ``last`` is what was shown
    last, which is the same wherever the block was trained in one go.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._captions: list[str] = []
        self.last: Image.Image | None = None

    def choose(self, captions: list[str]) -> None:
        self._captions = self._captions or captions[:SHOWN]

    def __call__(self, now: runs.Standing) -> Image.Image | None:
        self.choose(list(now.captions))
        models = now.position.spec.models
        if now.stage_c is None or now.text is None or not self._captions:
            return None
        if not library.has(models, "previewer"):
            return None
        latents = sample_network(
            now.stage_c,
            of_states(now.text(self._captions)),
            of_states(now.text([""] * len(self._captions))),
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


def keep_last(preview: RunPreview, position: Position, host: Host) -> None:
    """Keep what was shown at the end of a block that leads to ``position`` in the run's ``samples``."""
    if preview.last is not None and host.rank == 0:
        keep_picture(_last_of(position), preview.last, host)


def node_picture(position: Position, plot: Tensor, host: Host) -> list[dict[str, str]]:
    """The file that a node shows of a block that leads to ``position``: what was shown last while it was
    trained, or where nobody watched ``plot`` (1, H, W, 3), the loss alone."""
    last = _last_of(position)
    return shown_files([last], host) if last.is_file() else shown_now(to_pictures(plot)[0], "loss", host)


def shown_now(picture: Image.Image, name: str, host: Host) -> list[dict[str, str]]:
    """``picture`` in the temp folder, for the node that made it to show."""
    if host.rank != 0:
        return []
    content = hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).hexdigest()[:16]
    path = host.folders.temp / f"cascade_{name}_{content}.png"
    if not path.is_file():
        keep_picture(path, picture, host)
    return shown_files([path], host)


def shown_files(paths: Iterable[Path], host: Host) -> list[dict[str, str]]:
    """Those of ``paths`` that the browser can fetch, in the form that an output node tells them."""
    found = (shown_file(path, host.folders) for path in paths if path.is_file())
    return [each for each in found if each is not None]


def _last_of(position: Position) -> Path:
    return Path(position.folder) / "samples" / f"{position.step:08d}-{position.name[:12]}-training.png"
