"""Full training of Stage C, and of the text model with it where the target asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cascade_train.diffusion import noise as random
from cascade_train.errors import CascadeError
from cascade_train.models.text import marked
from cascade_train.training.feed import LatentFeed, PixelFeed, TextFeed, TokenFeed
from cascade_train.training.objectives.base import (
    MicroBatch,
    Scored,
    encoder,
    frozen_part,
    full_result,
    trainable_part,
)
from cascade_train.training.objectives.diffusion import Denoising, DiffusionObjective
from cascade_train.training.spec import FullTarget
from cascade_train.training.stores import store_for

if TYPE_CHECKING:
    from cascade_train.data.dataset import Draw
    from cascade_train.host.base import Host
    from cascade_train.models.text import TextStates
    from cascade_train.models.trained import TrainedState
    from cascade_train.training.spec import RunSpec


def frozen_text(spec: RunSpec, host: Host, check: Callable[[], None]) -> TextFeed:
    """States of the models' own text encoder; ``check`` as for `TextFeed`."""
    return TextFeed(
        frozen_part(spec, "text", host),
        torch.device(host.device),
        store_for(spec.dataset, spec.models, "text", host),
        check,
        spec.models.captions,
    )


class StageCBase(DiffusionObjective):
    """Latents, text and image conditions of Stage C, whatever of it is trained.

    A subclass sets ``unet`` and, where captions pass a text model that changes, overrides `text`.
    """

    unet: nn.Module

    def __init__(self, spec: RunSpec, host: Host) -> None:
        super().__init__(spec, host)
        from cascade_train.data.dataset import open_dataset
        from cascade_train.models.compressor import encode
        from cascade_train.models.image import encode_image
        from cascade_train.models.library import geometry, has

        sizes = geometry(spec.models)
        self.dataset = open_dataset(
            spec.dataset, multiple=sizes.size_multiple, native_side=sizes.native_side, host=host
        )
        self.pixels = PixelFeed(self.dataset, remember=False)
        self.latents = LatentFeed(
            self.pixels,
            encoder(frozen_part(spec, "compressor", host), encode),
            self.device,
            store_for(spec.dataset, spec.models, "compressor", host),
            self.check_stop,
        )
        self.image_width = sizes.image_width
        self._images: LatentFeed | None = None
        self._frozen: TextFeed | None = None
        if spec.image_share > 0 and has(spec.models, "image"):
            self._images = LatentFeed(
                self.pixels,
                encoder(frozen_part(spec, "image", host), encode_image, "the image encoder"),
                self.device,
                store_for(spec.dataset, spec.models, "image", host),
                self.check_stop,
            )

    def text(self, captions: list[str]) -> TextStates:
        raise NotImplementedError

    def shown(self) -> tuple[nn.Module | None, Callable[[list[str]], TextStates] | None]:
        return self.unet, self.text

    def feeds(self) -> Sequence[LatentFeed | TextFeed]:
        return [each for each in (self.latents, self._images, self._frozen) if each is not None]

    def ahead(self, draws: Sequence[Draw]) -> None:
        self.latents.ahead(draws)

    def score(self, batch: MicroBatch) -> Scored:
        given = self.denoising(batch, self.latents.batch(batch.draws))
        return self.scored(self.predict(given, self.text(self.captions(batch)), self.image(batch)), given)

    def predict(self, given: Denoising, text: TextStates, image: Tensor) -> Tensor:
        return self.unet(
            sample=given.x,
            timestep_ratio=given.time,
            clip_text_pooled=text.pooled,
            clip_text=marked(text.hidden, text.own),
            clip_img=image,
            return_dict=False,
        )[0]

    def image(self, batch: MicroBatch) -> Tensor:
        """Image embeddings (B, 1, width) of ``image_share`` of the samples, drawn independently of captions.

        The others get zeros; all do where the models have no image encoder.
        """
        given = torch.zeros(len(batch.draws), 1, self.image_width, device=self.device)
        if self._images is not None:
            chances = random.uniforms(batch.seed, batch.step, batch.indices, random.IMAGE_DROP).tolist()
            for row, (draw, chance) in enumerate(zip(batch.draws, chances)):
                if chance < self.spec.image_share:
                    given[row] = self._images.one(draw).to(self.device)
        return given


class StageCObjective(StageCBase):
    """All weights of Stage C (dropout on), and of ``text`` when it is in ``target.also``."""

    def __init__(self, spec: RunSpec, host: Host) -> None:
        super().__init__(spec, host)
        target = spec.target
        assert isinstance(target, FullTarget)
        unknown = set(target.also) - {"text"}
        if unknown:
            raise CascadeError(
                f"'{sorted(unknown)[0]}' cannot be trained together with Stage C", fix="Only text can"
            )
        self.parts = ("stage_c", *target.also)
        self.modules = nn.ModuleDict({part: trainable_part(spec, part, host) for part in self.parts})
        self.unet = self.modules["stage_c"]
        if "text" in self.parts:
            self._tokens = TokenFeed(self.modules["text"].tokenizer, self.device, spec.models.captions)
        else:
            self._frozen = frozen_text(spec, host, self.check_stop)

    def text(self, captions: list[str]) -> TextStates:
        if self._frozen is not None:
            return self._frozen.batch(captions)
        return self._tokens.states(self.modules["text"], captions)

    def result(self, weights: Mapping[str, Tensor]) -> TrainedState:
        return full_result(self.spec, self.modules, weights, self.parts)
