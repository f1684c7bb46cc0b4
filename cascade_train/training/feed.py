"""From draws to what a network is fed: pixels, latents and text states, each remembered where it can be.

Frozen encoders see one sample at a time, so that a remembered value and a fresh one are the same bits,
however a batch is put together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch import nn

    from cascade_train.data.dataset import Draw, OpenDataset
    from cascade_train.models.text import TextStates

MEMO_BYTES = 1 << 30
"""How much each kind of remembered value may take."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers values up to a number of bytes; what was used longest ago goes first."""

    def __init__(self, size: Callable[[V], int], limit: int = MEMO_BYTES) -> None:
        self._size, self._limit, self._bytes = size, limit, 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of ``key``, made when it is not there."""
        found = self._values.get(key)
        if found is None:
            found = make()
            self._values[key] = found
            self._bytes += self._size(found)
            while self._bytes > self._limit and len(self._values) > 1:
                self._bytes -= self._size(self._values.popitem(last=False)[1])
        else:
            self._values.move_to_end(key)
        return found


def tensor_bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


class PixelFeed:
    """Pictures as uint8 CHW tensors, decoded by a few threads."""

    def __init__(self, dataset: OpenDataset) -> None:
        self.dataset = dataset
        self._memo: Memo[Hashable, Tensor] = Memo(tensor_bytes)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="cascade-load")

    def one(self, draw: Draw) -> Tensor:
        """The picture of ``draw``, uint8 (3, H, W)."""
        return self._memo.get(self.dataset.view(draw), partial(self._load, draw))

    def batch(self, draws: Sequence[Draw], device: torch.device) -> Tensor:
        """fp32 (B, 3, H, W) in [0, 1] on ``device``."""
        pictures = torch.stack([self.one(draw) for draw in draws])
        return pictures.to(device).float().div_(255)

    def _load(self, draw: Draw) -> Tensor:
        pixels = self.dataset.load(draw).pixels
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class LatentFeed:
    """Latents of a frozen encoder, (C, h, w) fp32 each, remembered on the CPU.

    ``encode`` takes pictures (1, 3, H, W) in [0, 1] and returns latents (1, C, h, w).
    """

    def __init__(self, pixels: PixelFeed, encode: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self._pixels, self._encode, self._device = pixels, encode, device
        self._memo: Memo[Hashable, Tensor] = Memo(tensor_bytes)

    def one(self, draw: Draw) -> Tensor:
        return self._memo.get(self._pixels.dataset.view(draw), partial(self._make, draw))

    def batch(self, draws: Sequence[Draw]) -> Tensor:
        """fp32 (B, C, h, w) on the device."""
        return torch.stack([self.one(draw) for draw in draws]).to(self._device)

    def _make(self, draw: Draw) -> Tensor:
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            return self._encode(self._pixels.batch([draw], self._device))[0].float().cpu()


class TextFeed:
    """Text states of a frozen text model (with its ``tokenizer``), remembered for each caption."""

    def __init__(self, text: nn.Module, device: torch.device) -> None:
        self._text, self._device = text, device
        self._memo: Memo[str, TextStates] = Memo(_states_bytes)

    def batch(self, captions: Iterable[str]) -> TextStates:
        """States of ``captions``: hidden (B, 77, D), pooled (B, 1, D), mask (B, 77), on the device."""
        from cascade_train.models.text import TextStates

        each = [self._memo.get(caption, partial(self._make, caption)) for caption in captions]
        return TextStates(
            torch.cat([one.hidden for one in each]).to(self._device),
            torch.cat([one.pooled for one in each]).to(self._device),
            torch.cat([one.mask for one in each]).to(self._device),
        )

    def _make(self, caption: str) -> TextStates:
        from cascade_train.models.text import TextStates, encode_text

        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            states = encode_text(self._text, self._text.tokenizer, [caption], self._device)
        return TextStates(states.hidden.float().cpu(), states.pooled.float().cpu(), states.mask.cpu())


def _states_bytes(states: TextStates) -> int:
    return sum(tensor_bytes(value) for value in (states.hidden, states.pooled, states.mask))


class TokenFeed:
    """Token ids of captions, remembered, for a text model that is being trained."""

    def __init__(self, tokenizer: Any, device: torch.device) -> None:
        self._tokenizer, self._device = tokenizer, device
        self._memo: Memo[str, tuple[Tensor, Tensor]] = Memo(lambda pair: 2 * tensor_bytes(pair[0]))

    def states(self, text: nn.Module, captions: Iterable[str]) -> TextStates:
        """States of ``captions`` under ``text`` as it is now, with gradients where they are on."""
        from cascade_train.models.text import encode_tokens

        each = [self._memo.get(caption, partial(self._make, caption)) for caption in captions]
        ids = torch.cat([pair[0] for pair in each]).to(self._device)
        mask = torch.cat([pair[1] for pair in each]).to(self._device)
        return encode_tokens(text, ids, mask, int(self._tokenizer.eos_token_id))

    def _make(self, caption: str) -> tuple[Tensor, Tensor]:
        from cascade_train.models.text import tokenize

        return tokenize(self._tokenizer, [caption])
