"""Training the semantic compressor from nothing: an autoencoder whose decoder is the previewer."""

from __future__ import annotations

import torch
from torch import nn

from cascade_train.diffusion.noise import of_random_size
from cascade_train.diffusion.targets import per_sample_mse
from cascade_train.models.compressor import encode
from cascade_train.models.stage_a import psnr
from cascade_train.training.objectives.base import MicroBatch, Scored
from cascade_train.training.objectives.pictures import PictureObjective
from cascade_train.training.spec import FullTarget


class CompressorObjective(PictureObjective):
    """Squared error of pictures decoded from the latents, under noise where the target asks for it.
    The decoder is thrown away unless the target asks
    for ``previewer`` as well."""

    trained = ("compressor", "previewer")
    may_keep = ("previewer",)

    def score(self, batch: MicroBatch) -> Scored:
        pictures = self.pixels.batch(batch.draws, self.device)
        latents = encode(self.modules["compressor"], pictures)
        target = self.spec.target
        assert isinstance(target, FullTarget)
        if target.latent_noise:
            noise = of_random_size(
                batch.seed, batch.step, batch.indices, latents.shape[1:], target.latent_noise
            )
            latents = latents + noise.to(latents)
        decoded = self.modules["previewer"](latents)
        wanted = nn.functional.interpolate(pictures, size=decoded.shape[-2:], mode="area")
        loss = per_sample_mse(decoded.float(), wanted)
        with torch.no_grad():
            parts = {"psnr": float(psnr(decoded.float(), wanted).mean())}
        return Scored(loss, loss.detach(), parts=parts)
