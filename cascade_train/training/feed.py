"""From draws to what a network is fed: pixels, latents and text states, each remembered where it can be.

Frozen encoders see one sample at a time, so that a remembered value and a fresh one are the same bits,
however a batch is put together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from cascade_train.data.caches import text_key
from cascade_train.host.progress import nothing
from cascade_train.models import finite

if TYPE_CHECKING:
    from torch import nn

    from cascade_train.data.caches import Store
    from cascade_train.data.dataset import Draw, OpenDataset
    from cascade_train.models.spec import Captions
    from cascade_train.models.text import TextStates, Tokens

MEMO_BYTES = 1 << 30
"""How much each kind of remembered value may take."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers values up to a number of bytes; what was used longest ago goes first."""

    def __init__(self, size: Callable[[V], int], limit: int = MEMO_BYTES) -> None:
        self._size, self._limit, self._bytes = size, limit, 0
        self._values: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of ``key``, made when it is not there."""
        found = self._values.get(key)
        if found is None:
            found = make()
            self._values[key] = found
            self._bytes += self._size(found)
            while self._bytes > self._limit and self._values:
                self._bytes -= self._size(self._values.popitem(last=False)[1])
        else:
            self._values.move_to_end(key)
        return found


def tensor_bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


class PixelFeed:
    """Pictures as uint8 CHW tensors, decoded ahead by a few threads.

    Args:
        remember: keep decoded pictures; off where what is made of them is remembered instead.
    """

    THREADS = 4

    def __init__(self, dataset: OpenDataset, remember: bool = True) -> None:
        self.dataset = dataset
        self._memo: Memo[Hashable, Tensor] = Memo(tensor_bytes, MEMO_BYTES if remember else 0)
        self._threads: ThreadPoolExecutor | None = None
        self._coming: dict[Hashable, Future[Tensor]] = {}

    def one(self, draw: Draw) -> Tensor:
        """The picture of ``draw``, uint8 (3, H, W)."""
        return self._memo.get(self.dataset.view(draw), partial(self._arrived, draw))

    def batch(self, draws: Sequence[Draw], device: torch.device) -> Tensor:
        """fp32 (B, 3, H, W) in [0, 1] on ``device``."""
        pictures = torch.stack([self.one(draw) for draw in draws])
        return pictures.to(device).float().div_(255)

    def ahead(self, draws: Sequence[Draw]) -> None:
        """Begin to decode ``draws``, soon asked for; what was begun and not asked for is let go."""
        wanted = {self.dataset.view(draw): draw for draw in draws}
        for view in [view for view in self._coming if view not in wanted]:
            self._coming.pop(view).cancel()
        for view, draw in wanted.items():
            if view not in self._coming and view not in self._memo:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(self.THREADS, thread_name_prefix="cascade-load")
                self._coming[view] = self._threads.submit(self._load, draw)

    def _arrived(self, draw: Draw) -> Tensor:
        coming = self._coming.pop(self.dataset.view(draw), None)
        return coming.result() if coming is not None else self._load(draw)

    def _load(self, draw: Draw) -> Tensor:
        pixels = self.dataset.load(draw).pixels
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class LatentFeed:
    """What a frozen encoder makes of pictures, (C, h, w) fp32 each, remembered on the CPU and, with
    ``store``, on disk.

    ``encode`` takes pictures (1, 3, H, W) in [0, 1] and returns (1, C, h, w), or (1, …) of any other shape.
    ``check`` is called before each, and may raise to stop.
    """

    def __init__(
        self,
        pixels: PixelFeed,
        encode: Callable[[Tensor], Tensor],
        device: torch.device,
        store: Store | None = None,
        check: Callable[[], object] = nothing,
    ) -> None:
        self._pixels, self._encode, self._device, self._store = pixels, encode, device, store
        self._check = check
        self._memo: Memo[Hashable, Tensor] = Memo(tensor_bytes)
        self.made = 0
        """How often it has encoded."""

    def one(self, draw: Draw) -> Tensor:
        return self._memo.get(self._pixels.dataset.view(draw), partial(self._read_or_make, draw))

    def ahead(self, draws: Sequence[Draw]) -> None:
        """Begin to decode those of ``draws`` whose latents are not remembered."""
        dataset, store = self._pixels.dataset, self._store
        self._pixels.ahead(
            [
                draw
                for draw in draws
                if dataset.view(draw) not in self._memo
                and (store is None or dataset.cache_key(draw) not in store)
            ]
        )

    def batch(self, draws: Sequence[Draw]) -> Tensor:
        """fp32 (B, C, h, w) on the device."""
        return torch.stack([self.one(draw) for draw in draws]).to(self._device)

    def make(self, draw: Draw) -> Tensor:
        """Encode afresh, and keep in the store."""
        self._check()
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            made = self._encode(self._pixels.batch([draw], self._device))[0].float().cpu()
        self.made += 1
        if self._store is not None and not self._pixels.dataset.replaced(draw.sample):
            self._store.put(self._pixels.dataset.cache_key(draw), {"latent": made.numpy()})
        return made

    def _read_or_make(self, draw: Draw) -> Tensor:
        if self._store is not None:
            found = self._store.get(self._pixels.dataset.cache_key(draw))
            if found is not None:
                return torch.from_numpy(found["latent"].copy())
        return self.make(draw)


STATES = ("hidden", "pooled", "mask")
"""What is kept of a caption, by name."""


class TextFeed:
    """States of a frozen text model (with its ``tokenizer``), remembered for each caption and, with
    ``store``, on disk. ``text`` gives the model for as long as it is needed; ``captions`` says what becomes
    of long ones; ``check`` as for `LatentFeed`."""

    def __init__(
        self,
        text: Callable[[], AbstractContextManager[Any]],
        device: torch.device,
        store: Store | None = None,
        check: Callable[[], object] = nothing,
        captions: Captions = "cut",
    ) -> None:
        self.made = 0
        self._text, self._device, self._store = text, device, store
        self._check, self._captions = check, captions
        self._memo: Memo[str, TextStates] = Memo(_states_bytes)

    def batch(self, captions: Iterable[str]) -> TextStates:
        """States of ``captions``: hidden (B, L, D), pooled (B, 1, P), mask (B, L), on the device."""
        from cascade_train.models.text import TextStates, together

        all_of = together(
            [self._memo.get(caption, partial(self._read_or_make, caption)) for caption in captions]
        )
        return TextStates(
            all_of.hidden.to(self._device),
            all_of.pooled.to(self._device),
            all_of.mask.to(self._device),
            None if all_of.own is None else all_of.own.to(self._device),
        )

    def make(self, caption: str) -> TextStates:
        """Encode afresh, and keep in the store."""
        from cascade_train.models.text import TextStates, encode_text

        self._check()
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False), self._text() as text:
            states = encode_text(text, text.tokenizer, [caption], self._device, self._captions)
        for values in (states.hidden, states.pooled):
            finite.made(values, "the text encoder", "states")
        self.made += 1
        made = TextStates(states.hidden.float().cpu(), states.pooled.float().cpu(), states.mask.cpu())
        if self._store is not None:
            self._store.put(
                text_key(caption),
                {"hidden": made.hidden.numpy(), "pooled": made.pooled.numpy(), "mask": made.mask.numpy()},
            )
        return made

    def _read_or_make(self, caption: str) -> TextStates:
        from cascade_train.models.text import TextStates

        if self._store is not None:
            found = self._store.get(text_key(caption))
            if found is not None:
                hidden, pooled, mask = (torch.from_numpy(found[name].copy()) for name in STATES)
                return TextStates(hidden, pooled, mask)
        return self.make(caption)


def _states_bytes(states: TextStates) -> int:
    return sum(tensor_bytes(value) for value in (states.hidden, states.pooled, states.mask))


class TokenFeed:
    """Token ids of captions, remembered, for a text model that is being trained."""

    def __init__(self, tokenizer: Any, device: torch.device, captions: Captions = "cut") -> None:
        self._tokenizer, self._device, self._captions = tokenizer, device, captions
        self._memo: Memo[str, Tokens] = Memo(lambda tokens: 2 * tensor_bytes(tokens.ids))

    def states(self, text: nn.Module, captions: Iterable[str]) -> TextStates:
        """States of ``captions`` under ``text`` as it is now, with gradients where they are on."""
        from cascade_train.models.text import Tokens, encode_chunks

        each = [self._memo.get(caption, partial(self._make, caption)) for caption in captions]
        tokens = Tokens(
            torch.cat([one.ids for one in each]),
            torch.cat([one.mask for one in each]),
            tuple(count for one in each for count in one.chunks),
        )
        return encode_chunks(text, self._tokenizer, tokens, self._device)

    def _make(self, caption: str) -> Tokens:
        from cascade_train.models.text import tokenize

        return tokenize(self._tokenizer, [caption], self._captions)
