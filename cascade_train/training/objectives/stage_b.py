"""Full training of Stage B: Stage A's latents from the compressor's and pooled text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cascade_train.diffusion import noise as random
from cascade_train.errors import CascadeError
from cascade_train.models import finite
from cascade_train.training.feed import LatentFeed, Memo, PixelFeed, TextFeed, tensor_bytes
from cascade_train.training.objectives.base import (
    MicroBatch,
    Scored,
    encoder,
    frozen_part,
    full_result,
    trainable_part,
)
from cascade_train.training.objectives.diffusion import DiffusionObjective
from cascade_train.training.spec import FullTarget
from cascade_train.training.stores import store_for

if TYPE_CHECKING:
    from cascade_train.data.dataset import Draw
    from cascade_train.host.base import Host
    from cascade_train.models.trained import TrainedState
    from cascade_train.training.spec import RunSpec

CONDITION_DROP = 0.1
"""Share of samples whose compressor latents are zeroed."""


class StageBObjective(DiffusionObjective):
    """All weights of Stage B; the target says under which noise and with conditions of which sizes."""

    def __init__(self, spec: RunSpec, host: Host) -> None:
        super().__init__(spec, host)
        from cascade_train.data.dataset import open_dataset
        from cascade_train.models.library import geometry

        target = spec.target
        assert isinstance(target, FullTarget)
        if not 0 < target.condition_size <= 1:
            raise CascadeError(
                f"a condition size of {target.condition_size}", fix="Use a number above 0 and at most 1"
            )
        self.target = target
        sizes = geometry(spec.models)
        self.factor = sizes.latent_factor
        self.dataset = open_dataset(
            spec.dataset, multiple=sizes.size_multiple, native_side=sizes.native_side, host=host
        )
        self.compressor = frozen_part(spec, "compressor", host)
        stage_a = encoder(
            frozen_part(spec, "stage_a", host), lambda module, pictures: module.encode(pictures), "Stage A"
        )
        self.pixels = PixelFeed(self.dataset)
        self.latents = LatentFeed(self.pixels, stage_a, self.device, None, self.check_stop)
        self._text = TextFeed(
            frozen_part(spec, "text", host),
            self.device,
            store_for(spec.dataset, spec.models, "text", host),
            self.check_stop,
            spec.models.captions,
        )
        self._conditions: Memo[Hashable, Tensor] = Memo(tensor_bytes)
        self.modules = nn.ModuleDict({"stage_b": trainable_part(spec, "stage_b", host)})
        self.unet = self.modules["stage_b"]

    def feeds(self) -> Sequence[LatentFeed | TextFeed]:
        return self.latents, self._text

    def ahead(self, draws: Sequence[Draw]) -> None:
        self.latents.ahead(draws)

    def score(self, batch: MicroBatch) -> Scored:
        given = self.denoising(batch, self.latents.batch(batch.draws), pyramid=self.target.pyramid_noise)
        text = self._text.batch(self.captions(batch))
        patch = int(self.unet.config.patch_size)  # type: ignore[union-attr, arg-type]
        inside = (given.x.shape[-2] // patch, given.x.shape[-1] // patch)
        prediction = self.unet(
            sample=given.x,
            timestep_ratio=given.time,
            clip_text_pooled=text.pooled,
            effnet=self.condition(batch, inside),
            return_dict=False,
        )[0]
        return self.scored(prediction, given)

    def condition(self, batch: MicroBatch, sides: tuple[int, int]) -> Tensor:
        """Compressor latents (B, 16, *sides): of the picture at a random size, zeros for 10 %.

        The network interpolates its condition itself, to ``sides``; samples of different sizes are brought
        there in the same way here, so that they fit in one batch.
        """
        shrink = random.uniforms(batch.seed, batch.step, batch.indices, random.RESIZE).tolist()
        drop = random.uniforms(batch.seed, batch.step, batch.indices, random.CONDITION).tolist()
        smallest = self.target.condition_size
        rows = []
        for draw, factor, chance in zip(batch.draws, shrink, drop):
            row = self._latent_at(draw, smallest + (1 - smallest) * factor).to(self.device)
            if self.target.latent_noise:
                noise = random.of_random_size(
                    batch.seed, batch.step, [draw.index], row.shape, self.target.latent_noise
                )
                row = row + noise[0].to(row)
            row = nn.functional.interpolate(row[None], size=sides, mode="bilinear", align_corners=True)
            rows.append(row * 0 if chance < CONDITION_DROP else row)
        return torch.cat(rows)

    def _latent_at(self, draw: Draw, factor: float) -> Tensor:
        """The compressor's latents (16, h, w) of the picture shrunk (nearest) by about ``factor``."""
        size = tuple(
            max(self.factor, int(side * factor) // self.factor * self.factor)
            for side in (draw.height, draw.width)
        )
        return self._conditions.get((self.dataset.view(draw), size), lambda: self._encode(draw, size))

    @torch.no_grad()
    def _encode(self, draw: Draw, size: tuple[int, ...]) -> Tensor:
        from cascade_train.models.compressor import encode

        with torch.autocast(self.device.type, enabled=False):
            picture = self.pixels.batch([draw], self.device)
            small = nn.functional.interpolate(picture, size=size, mode="nearest")
            with self.compressor() as compressor:
                made = encode(compressor, small).float().cpu()
            return finite.made(made, "the semantic compressor", "latents")[0]

    def result(self, weights: Mapping[str, Tensor]) -> TrainedState:
        return full_result(self.spec, self.modules, weights, ("stage_b",))
