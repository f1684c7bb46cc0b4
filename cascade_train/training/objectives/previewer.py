"""Training the previewer: small pictures from the latents of a frozen compressor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from cascade_train.diffusion.targets import per_sample_mse
from cascade_train.models.compressor import encode
from cascade_train.training.feed import LatentFeed
from cascade_train.training.objectives.base import MicroBatch, Scored, encoder, frozen_part
from cascade_train.training.objectives.pictures import PictureObjective

if TYPE_CHECKING:
    from cascade_train.host.base import Host
    from cascade_train.training.spec import RunSpec


class PreviewerObjective(PictureObjective):
    """Squared error against the picture at the previewer's own size."""

    trained = ("previewer",)

    def __init__(self, spec: RunSpec, host: Host) -> None:
        super().__init__(spec, host)
        compressor = encoder(frozen_part(spec, "compressor", host), encode)
        self.latents = LatentFeed(self.pixels, compressor, self.device)

    def score(self, batch: MicroBatch) -> Scored:
        decoded = self.modules["previewer"](self.latents.batch(batch.draws)).float()
        pictures = self.pixels.batch(batch.draws, self.device)
        wanted = nn.functional.interpolate(pictures, size=decoded.shape[-2:], mode="area")
        loss = per_sample_mse(decoded, wanted)
        return Scored(loss, loss.detach())
