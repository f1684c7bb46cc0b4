"""What the diffusion objectives of Stages B and C share: time, noise, target, weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cascade_train.diffusion import noise as random
from cascade_train.diffusion.schedule import draw_time, logsnr, time_input
from cascade_train.diffusion.targets import noised, per_sample_mse, target
from cascade_train.diffusion.weighting import FIXED, AdaptiveWeights
from cascade_train.training.objectives.base import MicroBatch, Scored, TrainingObjective
from cascade_train.training.too_long import Remarks, tokenizer_of

if TYPE_CHECKING:
    from cascade_train.host.base import Host
    from cascade_train.training.spec import RunSpec


@dataclass(frozen=True)
class Denoising:
    """What a network is asked of a micro-batch: noisy input ``x`` and ``wanted`` answer (B, C, H, W);
    ``log_snr`` and ``time`` (B,) fp32."""

    x: Tensor
    wanted: Tensor
    log_snr: Tensor
    time: Tensor


class DiffusionObjective(TrainingObjective):
    """An objective whose loss is the weighted error of a prediction at a random time."""

    def __init__(self, spec: RunSpec, host: Host) -> None:
        super().__init__(spec, host)
        self.adaptive = AdaptiveWeights.fresh() if spec.loss_weight == "adaptive" else None
        self._remarks: Remarks | None = None

    def denoising(self, batch: MicroBatch, clean: Tensor, pyramid: bool = False) -> Denoising:
        """``clean`` (B, C, H, W) at each sample's own time under its own noise."""
        spec, indices = self.spec, batch.indices
        noise = random.normals(batch.seed, batch.step, indices, clean.shape[1:])
        if pyramid:
            noise = random.pyramid(noise, batch.seed, batch.step, indices)
        noise = random.with_offset(noise, batch.seed, batch.step, indices, spec.offset_noise).to(clean)
        # the schedule is worked out on the CPU in fp32, so that every device trains at the same times
        log_snr = logsnr(draw_time(random.uniforms(batch.seed, batch.step, indices, random.TIME)))
        time = time_input(log_snr).to(self.device)
        log_snr = log_snr.to(self.device)
        wanted = target(clean, noise, log_snr, spec.objective)
        return Denoising(noised(clean, noise, log_snr), wanted, log_snr, time)

    def scored(self, prediction: Tensor, given: Denoising) -> Scored:
        """The weighted and unweighted losses of ``prediction`` (B, C, H, W)."""
        raw = per_sample_mse(prediction.float(), given.wanted)
        weigh = self.adaptive.weights if self.adaptive is not None else FIXED[self.spec.loss_weight]
        return Scored(raw * weigh(given.log_snr), raw.detach(), given.log_snr)

    def captions(self, batch: MicroBatch) -> list[str]:
        """The captions of ``batch`` with ``caption_dropout`` of them replaced by the empty one."""
        drop = random.uniforms(batch.seed, batch.step, batch.indices, random.CAPTION_DROP)
        captions = [
            "" if value < self.spec.caption_dropout else self.dataset.caption(draw)
            for draw, value in zip(batch.draws, drop.tolist())
        ]
        if self._remarks is not None and self.spec.dataset.streamed:
            for caption in captions:
                self._remarks.see(caption)
        return captions

    def tokenizer(self) -> Any:
        """What captions are read by; the models' own unless a subclass trains another."""
        return tokenizer_of(self.spec.models)

    def remark(self) -> None:
        if self.host.rank != 0:
            return
        if self._remarks is None:
            self._remarks = Remarks(self.tokenizer(), self.spec.models.captions, self.host)
            if not self.spec.dataset.streamed:
                self._remarks.of_dataset(self.dataset)
        elif self.spec.dataset.streamed:
            self._remarks.of_stream()

    def remarks(self) -> list[str]:
        return [] if self._remarks is None else self._remarks.lines

    def after_step(self, raw: Tensor, log_snr: Tensor | None) -> None:
        if self.adaptive is not None and log_snr is not None:
            self.adaptive = self.adaptive.updated(log_snr, raw)

    def extra_state(self) -> dict[str, Tensor]:
        return {} if self.adaptive is None else {"adaptive_losses": self.adaptive.losses}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if self.adaptive is not None:
            self.adaptive = AdaptiveWeights(torch.as_tensor(state["adaptive_losses"]).clone())
