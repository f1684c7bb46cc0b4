"""What the stages are conditioned on, one row a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.models import library
from cascade_train.models.captions import too_long
from cascade_train.models.finite import given, made
from cascade_train.models.image import encode_image
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.text import TextStates, encode_text, filled, together


@dataclass(frozen=True)
class Conditioning:
    """The conditions of B pictures.

    Args:
        hidden: text states (B, L, width), fp32, before CLIP's final layer norm.
        pooled: pooled text (B, 1, width).
        image: CLIP image embedding (B, 1, width), None for none (the network then sees zeros).
        own: (B, L), which of ``hidden`` is each text's own; None: all (`models.text.TextStates`).
    """

    hidden: Tensor
    pooled: Tensor
    image: Tensor | None = None
    own: Tensor | None = None

    def __len__(self) -> int:
        return int(self.pooled.shape[0])

    def rows(self, start: int, stop: int) -> Conditioning:
        """The conditions of pictures ``start`` to ``stop`` − 1."""
        return self._each(lambda values: values[start:stop])

    def to(self, device: str) -> Conditioning:
        return self._each(lambda values: values.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Conditioning:
        image, own = (None if values is None else change(values) for values in (self.image, self.own))
        return Conditioning(change(self.hidden), change(self.pooled), image, own)

    def check(self, taker: str) -> None:
        """Raise CascadeError where the conditions given to ``taker`` hold numbers that are none."""
        for values in (self.hidden, self.pooled, self.image):
            if values is not None:
                given(values, f"the texts' states given to {taker}")

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
        return self._each(lambda values: values.expand(count, *values.shape[1:]))


def as_long(first: Conditioning, second: Conditioning) -> tuple[Conditioning, Conditioning]:
    """Both with states of equal length, so that they can pass a network together."""
    lengths = first.hidden.shape[1], second.hidden.shape[1]
    if lengths[0] == lengths[1] and first.own is None and second.own is None:
        return first, second
    one, other = (_filled(each, max(lengths)) for each in (first, second))
    return one, other


def _filled(condition: Conditioning, length: int) -> Conditioning:
    own = condition.own
    if own is None:
        own = torch.ones(condition.hidden.shape[:2], dtype=torch.bool, device=condition.hidden.device)
    return replace(condition, hidden=filled(condition.hidden, length), own=filled(own, length))


def encode_prompts(models: ModelsSpec, prompts: Sequence[str], device: str = "cpu") -> Conditioning:
    """The text conditions of ``prompts``. Each distinct text is encoded by itself, so that its states do
    not depend on its neighbours."""
    if not prompts:
        raise CascadeError("there is no prompt", fix="Write at least one line of text")
    with library.use(models, "text", device) as encoder:
        states = {
            text: encode_text(encoder, encoder.tokenizer, [text], device, models.captions)
            for text in dict.fromkeys(prompts)
        }
    all_of = together([states[text] for text in prompts])
    made(all_of.hidden, "the text encoder", "states", models)
    made(all_of.pooled, "the text encoder", "states", models)
    return of_states(all_of)


def of_states(states: TextStates) -> Conditioning:
    """The conditions that ``states`` are."""
    return Conditioning(states.hidden, states.pooled, own=states.own)


def say_too_long(models: ModelsSpec, prompts: Sequence[str], host: Host) -> None:
    """Warn of prompts whose ends are not read."""
    library.ask_for_room(models, ("text",), host)
    with library.use(models, "text", host.device) as encoder:
        line = too_long(encoder.tokenizer, dict.fromkeys(prompts), models.captions).line(models.captions)
    if line and host.rank == 0:
        host.warn(line)


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
        given(images, "the pictures given to the image encoder")
        embedding = encode_image(encoder, images.permute(0, 3, 1, 2).to(device))
    made(embedding, "the image encoder", "embeddings", models)
    if embedding.shape[0] == 1:
        embedding = embedding.expand(len(condition), -1, -1)
    return replace(condition, image=embedding)
