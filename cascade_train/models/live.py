"""How many bytes of tensors live: of real ones, or of fake ones that have shapes and no memory.

Both give the same number to the byte, so that what a network needs can be counted with no weights there. What
kernels take inside themselves and what allocators round up is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Within the block ``now`` is the bytes of all storages made in it (or given to `add`) that still live,
    and ``peak`` the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count ``tensors`` that were there before, each storage once."""
        for tensor in tensors:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return out

    def _note(self, tensor: Tensor) -> None:
        for inner in _plain(tensor):
            storage = inner.untyped_storage()
            key = id(storage)
            known = self._seen.get(key)
            if known is not None and known() is storage:
                continue
            size = storage.nbytes()
            self._seen[key] = weakref.ref(storage, self._gone(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _gone(self, key: int, size: int) -> Any:
        def gone(ref: Any) -> None:
            self.now -= size
            if self._seen.get(key) is ref:
                del self._seen[key]

        return gone


def _plain(tensor: Tensor) -> list[Tensor]:
    """The tensors that hold the memory of ``tensor``, which may be a wrapper such as a quantised weight."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    return [leaf for name in flatten()[0] for leaf in _plain(getattr(tensor, name))]


def tensors_of(module: nn.Module) -> list[Tensor]:
    """The parameters and buffers of ``module``."""
    return [*module.parameters(), *module.buffers()]


def held(tensors: Iterable[Tensor]) -> int:
    """Bytes of ``tensors``, each storage once."""
    storages = {id(s): s for tensor in tensors for s in (each.untyped_storage() for each in _plain(tensor))}
    return sum(storage.nbytes() for storage in storages.values())


def materialised(
    module: nn.Module, dtype: torch.dtype, device: str, trained: Callable[[str], bool] = lambda name: False
) -> nn.Module:
    """``module`` from ``meta``, in place, with tensors of ``device`` whose values mean nothing.

    Floating-point ones are of ``dtype``; parameters called so that they are ``trained`` are fp32 and need
    gradients. Called under fake tensors nothing is taken.
    """
    for prefix, part in module.named_modules():
        for name, value in part._parameters.items():
            if value is not None:
                own = trained(f"{prefix}.{name}")
                made = _like(value, torch.float32 if own else dtype, device)
                part._parameters[name] = nn.Parameter(made, requires_grad=own)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = _like(buffer, dtype, device)
    return module


def _like(value: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    return torch.empty(value.shape, dtype=dtype if value.is_floating_point() else value.dtype, device=device)
