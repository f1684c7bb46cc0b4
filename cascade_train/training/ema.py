"""An exponential moving average of the trained parameters, one update a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Ema:
    """fp32 averages of ``parameters``, by name.

    After step n (from 1) the decay is min(``decay``, (1 + n) / (10 + n)), so that a short run is not still
    mostly its first weights.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.values = {name: value.detach().clone().float() for name, value in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Move towards ``parameters`` after update number ``step`` (from 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        targets = [parameters[name].detach().float() for name in self.values]
        torch._foreach_lerp_(list(self.values.values()), targets, 1 - decay)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        for name, value in self.values.items():
            value.copy_(values[name])
