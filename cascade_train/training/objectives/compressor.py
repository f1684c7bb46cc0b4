"""Training the semantic compressor from nothing: an autoencoder whose decoder is the previewer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cascade_train.diffusion import noise as random
from cascade_train.diffusion.targets import per_sample_mse
from cascade_train.models.compressor import encode
from cascade_train.models.stage_a import psnr
from cascade_train.training.objectives.base import MicroBatch, Scored
from cascade_train.training.objectives.pictures import PictureObjective
from cascade_train.training.spec import FullTarget


class CompressorObjective(PictureObjective):
    """Squared error of pictures decoded from the latents, under noise where the target asks for it (as Wuerstchen
    trains its Stage B: Pernias et al. 2023, arXiv:2306.00637, section 3). The decoder is thrown away unless the target asks
    for ``previewer`` as well."""

    trained = ("compressor", "previewer")
    may_keep = ("previewer",)

    def score(self, batch: MicroBatch) -> Scored:
        pictures = self.pixels.batch(batch.draws, self.device)
        latents = encode(self.modules["compressor"], pictures)
        decoded = self.modules["previewer"](latents + self._noise(batch, latents))
        wanted = nn.functional.interpolate(pictures, size=decoded.shape[-2:], mode="area")
        loss = per_sample_mse(decoded.float(), wanted)
        with torch.no_grad():
            parts = {"psnr": float(psnr(decoded.float(), wanted).mean())}
        return Scored(loss, loss.detach(), parts=parts)

    def _noise(self, batch: MicroBatch, latents: Tensor) -> Tensor | float:
        """White noise like ``latents``, of a deviation drawn for each picture."""
        target = self.spec.target
        assert isinstance(target, FullTarget)
        if not target.latent_noise:
            return 0.0
        key = batch.seed, batch.step, batch.indices
        sizes = target.latent_noise * random.uniforms(*key, random.LATENT_SIZE)
        white = random.normals(*key, latents.shape[1:], random.LATENT)
        return (white * sizes[:, None, None, None]).to(latents)
