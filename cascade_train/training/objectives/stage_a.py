"""Training Stage A: a picture through the encoder, the codebook and the decoder, and back."""

from __future__ import annotations

import torch

from cascade_train.diffusion.targets import per_sample_mse
from cascade_train.models.stage_a import psnr
from cascade_train.training.objectives.base import MicroBatch, Scored
from cascade_train.training.objectives.pictures import PictureObjective


class StageAObjective(PictureObjective):
    """Squared and absolute error, plus the VQ loss. Every other sample is decoded from its nearest codes, the
    others from the latents as they are: Stage B gives latents that were never quantised, so the decoder has
    to do well on both."""

    trained = ("stage_a",)

    def score(self, batch: MicroBatch) -> Scored:
        pictures = self.pixels.batch(batch.draws, self.device)
        quantised = torch.tensor([index % 2 == 1 for index in batch.indices], device=self.device)
        decoded, book = self.modules["stage_a"](pictures, quantised)
        raw = per_sample_mse(decoded.float(), pictures)
        absolute = (decoded.float() - pictures).abs().flatten(1).mean(1)
        with torch.no_grad():
            parts = {"psnr": float(psnr(decoded.float(), pictures).mean()), "codebook": float(book.mean())}
        return Scored(raw + 0.1 * absolute + 0.25 * book, raw.detach(), parts=parts)
