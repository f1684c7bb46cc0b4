"""Training Stage A: a picture through the encoder, the codebook and the decoder, and back."""

from __future__ import annotations

import torch

from cascade_train.diffusion.targets import per_sample_mse
from cascade_train.models.stage_a import psnr
from cascade_train.training.objectives.base import MicroBatch, Scored
from cascade_train.training.objectives.pictures import PictureObjective


class StageAObjective(PictureObjective):
    """Squared and absolute error, with and without the codebook, plus the VQ loss. Stage B gives latents that
    were never quantised, so the decoder has to do well on both."""

    trained = ("stage_a",)

    def score(self, batch: MicroBatch) -> Scored:
        pictures = self.pixels.batch(batch.draws, self.device)
        through, straight, book = self.modules["stage_a"](pictures)
        loss = torch.zeros(len(pictures), device=self.device)
        for answer in (through, straight):
            absolute = (answer - pictures).abs().flatten(1).mean(1)
            loss = loss + 0.5 * (per_sample_mse(answer, pictures) + 0.1 * absolute)
        raw = per_sample_mse(straight, pictures).detach()
        with torch.no_grad():
            parts = {"psnr": float(psnr(straight, pictures).mean()),
                     "psnr_quantised": float(psnr(through, pictures).mean()), "codebook": float(book.mean())}
        return Scored(loss + book, raw, parts=parts)
