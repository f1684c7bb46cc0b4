"""What the stages are conditioned on, one row a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.models import library
from cascade_train.models.image import encode_image
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.text import encode_text


@dataclass(frozen=True)
class Conditioning:
    """The conditions of B pictures.

    Args:
        hidden: text states (B, L, width), fp32, before CLIP's final layer norm.
        pooled: pooled text (B, 1, width).
        image: CLIP image embedding (B, 1, width), None for none (the network then sees zeros).
    """

    hidden: Tensor
    pooled: Tensor
    image: Tensor | None = None

    def __len__(self) -> int:
        return int(self.pooled.shape[0])

    def rows(self, start: int, stop: int) -> Conditioning:
        """The conditions of pictures ``start`` to ``stop`` − 1."""
        image = None if self.image is None else self.image[start:stop]
        return Conditioning(self.hidden[start:stop], self.pooled[start:stop], image)

    def to(self, device: str) -> Conditioning:
        image = None if self.image is None else self.image.to(device)
        return Conditioning(self.hidden.to(device), self.pooled.to(device), image)

    def repeated(self, count: int) -> Conditioning:
        """One picture's conditions for ``count`` pictures, or ``count`` pictures' own.

        Raises:
            CascadeError: for any other number of rows.
        """
        if len(self) == count:
            return self
        if len(self) != 1:
            raise CascadeError(
                f"{len(self)} texts for {count} pictures", fix="Give one text, or as many texts as pictures"
            )
        image = None if self.image is None else self.image.expand(count, -1, -1)
        return Conditioning(self.hidden.expand(count, -1, -1), self.pooled.expand(count, -1, -1), image)


def encode_prompts(models: ModelsSpec, prompts: Sequence[str], device: str = "cpu") -> Conditioning:
    """The text conditions of ``prompts``. Each distinct text is encoded by itself, so that its states do
    not depend on its neighbours."""
    if not prompts:
        raise CascadeError("there is no prompt", fix="Write at least one line of text")
    with library.use(models, "text", device) as encoder:
        states = {
            text: encode_text(encoder, encoder.tokenizer, [text], device) for text in dict.fromkeys(prompts)
        }
    return Conditioning(
        hidden=torch.cat([states[text].hidden for text in prompts]),
        pooled=torch.cat([states[text].pooled for text in prompts]),
    )


def with_image(
    models: ModelsSpec, condition: Conditioning, images: Tensor, device: str = "cpu"
) -> Conditioning:
    """``condition`` with the CLIP image embedding of ``images`` (B or 1, H, W, 3 in [0, 1]) added.

    Raises:
        CascadeError: the models have no image encoder.
    """
    if not library.has(models, "image"):
        raise CascadeError(
            f"'{models.name}' has no image encoder, so it cannot make variations of a picture",
            fix="Load a CLIP vision model with it, or use image to image (a latent and a strength)",
        )
    with library.use(models, "image", device) as encoder:
        embedding = encode_image(encoder, images.permute(0, 3, 1, 2).to(device))
    if embedding.shape[0] == 1:
        embedding = embedding.expand(len(condition), -1, -1)
    return replace(condition, image=embedding)
