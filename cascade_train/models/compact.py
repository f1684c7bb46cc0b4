"""Frozen linear layers that take less memory: weights in int8 or fp8, or kept on the CPU.

Such a layer brings its weight, in the precision that it computes in and on the device of its input, in the
forward pass and again in the backward pass, and holds nothing in between: not even the gradient's way back
keeps a copy, which is what makes quantised training of other libraries larger than bf16. Linear layers hold
99.6 % of Stage C's weights.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from cascade_train.models.spec import Compact, ModelsSpec

SMALLEST = 4096
"""Weights of a layer from which it is worth it."""

FP8_LARGEST = 448.0
"""The largest number of float8_e4m3fn."""


def compacted(module: nn.Module, part: str, spec: ModelsSpec) -> nn.Module:
    """``module``, frozen and nobody else's, with the linear layers that ``spec`` asks for.

    It is done layer by layer, so that at no time two copies of the network are in memory.

    Raises:
        CascadeError: a weight that is not a number, which quantising would hide.
    """
    if not spec.makes_compact(part):
        return module
    # names alone: whoever holds the layers themselves holds all their weights to the end
    for path in [name for name, layer in module.named_modules() if is_worth_it(layer)]:
        above, _, name = path.rpartition(".")
        owner = module.get_submodule(above)
        if spec.compact and not torch.isfinite(getattr(owner, name).weight).all():
            raise CascadeError(
                f"the layer {path} of {part} has weights that are no numbers", fix="Download the file again"
            )
        setattr(owner, name, CompactLinear(getattr(owner, name), spec.compact, spec.offload))
    return module


def numbers(module: nn.Module) -> int:
    """How many numbers the weights of ``module`` are, those that stay on the CPU included."""
    kept = (layer.kept for layer in module.modules() if isinstance(layer, CompactLinear))
    own = sum(value.numel() for value in module.parameters())
    return own + sum(each.tensor.numel() for each in kept if each is not None)


def is_worth_it(layer: nn.Module) -> bool:
    """Whether ``layer`` is one that is made compact."""
    return type(layer) is nn.Linear and layer.weight.numel() >= SMALLEST


class CompactLinear(nn.Linear):
    """A frozen linear layer whose weight is brought when it is needed.

    An ``nn.Linear`` to those that look for one; ``weight`` is worked out at every look, in the precision that
    the layer was made from. ``adapters`` are functions of the weight that are applied to it.
    """

    def __init__(self, layer: nn.Linear, kind: Compact, offload: bool) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = layer.weight.dtype
        self.adapters = nn.ModuleList()
        stored, scale = _quantised(layer.weight.detach(), kind)
        # a layer's own small tensors move with the module; a weight that stays on the CPU must not
        self.kept = _Kept(stored) if offload else None
        self.stored = None if offload else nn.Parameter(stored, requires_grad=False)
        self.scale = None if scale is None else nn.Parameter(scale, requires_grad=False)
        bias = layer.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.brought()

    def brought(self) -> Tensor:
        """The weight (out, in) where the layer's small tensors lie, with the adapters applied."""
        weight = self._stored().to(self.dtype)  # exact: bf16 holds every number of 8 bits
        if self.scale is not None:
            weight.mul_(self.scale)  # worked out in fp32 and rounded once, with no second tensor of this size
        for adapter in self.adapters:
            weight = adapter(weight)
        return weight

    def _stored(self) -> Tensor:
        if self.kept is None:
            return self.stored  # type: ignore[return-value]
        small = self.scale if self.scale is not None else self.bias
        return self.kept.on(self._device if small is None else small.device)

    _device = torch.device("cpu")

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is not None and self.scale is None and self.bias is None:
            self._device = x.device
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return _Brought.apply(x.to(dtype), self)

    def extra_repr(self) -> str:
        stored = self.kept.tensor if self.kept is not None else self.stored
        where = ", on the CPU" if self.kept is not None else ""
        return f"{super().extra_repr()}, {stored.dtype}{where}"  # type: ignore[union-attr]


class _Brought(torch.autograd.Function):
    """x · Wᵀ + b for a layer that brings W twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: CompactLinear) -> Tensor:
        ctx.layer = layer
        with torch.autocast(x.device.type, enabled=False):
            bias = None if layer.bias is None else layer.bias.to(x.dtype)
            return F.linear(x, layer.brought().to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch.autocast(gradient.device.type, enabled=False):
            return gradient @ ctx.layer.brought().to(gradient.dtype), None


class _Kept:
    """A tensor that stays on the CPU and is shared by all twins of its layer."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.to("cpu")
        self.tried = False

    def on(self, device: torch.device) -> Tensor:
        if device.type == "cuda" and not self.tried:
            self.tried = True
            # copied at the bus's full speed from then on; where the system lets no more be pinned, slower
            with contextlib.suppress(RuntimeError):
                self.tensor = self.tensor.pin_memory()
        return self.tensor.to(device, non_blocking=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        return self


def _quantised(weight: Tensor, kind: Compact) -> tuple[Tensor, Tensor | None]:
    """The weight as it is stored, and the factor (out, 1) of each row: absolute maximum over 127, or over
    float8_e4m3fn's largest number."""
    if not kind:
        return weight, None
    largest = 127.0 if kind == "int8" else FP8_LARGEST
    rows = weight.float()
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / largest
    rows = rows / scale
    return (rows.round().to(torch.int8) if kind == "int8" else rows.to(torch.float8_e4m3fn)), scale


__all__ = ["CompactLinear", "compacted", "is_worth_it", "numbers"]
