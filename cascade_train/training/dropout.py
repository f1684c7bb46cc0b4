"""Dropout whose masks belong to samples, not to batches.

A mask is a pure function of (seed, step, index in the global batch, which call of a dropout layer in the
forward pass, shape). So a sample is masked alike alone or among others, on one process or on several, and a
run may be split to fit into memory without becoming another run. Masks differ between kinds of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cascade_train.diffusion.noise import DROPOUT, generator
from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from cascade_train.training.objectives.base import MicroBatch

_MASK = (1 << 64) - 1


class Masks:
    """Takes over the dropout of ``modules``: every `nn.Dropout` there that drops becomes a `SampleDropout`.

    Where none does, nothing is changed and `begin` does nothing.

    Which call of a layer this is, is told by torch's own random state on the CPU: each call draws one number
    from it, and it starts anew with each pass. Gradient checkpointing puts that state back before it computes
    a block again (``preserve_rng_state``), so that both passes of a block see the same masks.
    """

    def __init__(self, modules: nn.Module) -> None:
        self._keys: list[int] = []
        self._generators: dict[torch.device, torch.Generator] = {}
        self._tickets = 0
        self._checked = False
        self.layers = 0
        for owner in list(modules.modules()):
            for name, layer in list(owner.named_children()):
                if type(layer) is nn.Dropout and layer.training and layer.p > 0:
                    setattr(owner, name, SampleDropout(layer.p, self))
                    self.layers += 1

    def begin(self, batch: MicroBatch) -> None:
        """From now on, for a forward and a backward pass, masks are those of ``batch``."""
        if self.layers:
            self._keys = [
                int(generator(batch.seed, batch.step, index, DROPOUT).integers(0, 2**63 - 1))
                for index in batch.indices
            ]
            self._tickets = 0
            torch.default_generator.manual_seed(0)

    @contextmanager
    def alone(self, device: torch.device) -> Iterator[None]:
        """Within the block, which holds the first forward pass alone, nothing else may be random.

        Raises:
            CascadeError: something drew from torch's random state, by which results would depend on how a
                batch is split. Later passes are not looked at.
        """
        if self._checked:
            yield
            return
        expected = torch.Generator().manual_seed(0)
        if not self.layers:
            expected.set_state(torch.get_rng_state())
        before = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        yield
        for _ in range(self._tickets):
            _ticket(expected)
        same = torch.equal(expected.get_state(), torch.get_rng_state())
        if before is not None:
            same = same and torch.equal(before, torch.cuda.get_rng_state(device))
        if not same:
            raise CascadeError(
                "a layer of these models drops at random in a way that would depend on how a batch is split",
                fix="Set its dropout to 0 in the models' configuration (attention_dropout of a text encoder)",
            )
        self._checked = True

    def drop(self, x: Tensor, p: float) -> Tensor:
        """``x`` (B, …) with a share ``p`` of each sample's numbers set to 0 and the rest scaled up."""
        ticket = _ticket(torch.default_generator)
        self._tickets += 1
        if len(x) != len(self._keys):
            raise RuntimeError(f"dropout of {len(x)} rows for {len(self._keys)} samples")
        if x.device not in self._generators:
            self._generators[x.device] = torch.Generator(x.device)
        source = self._generators[x.device]
        keep = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        for row, key in zip(keep, self._keys):
            row.bernoulli_(1 - p, generator=source.manual_seed(_mixed(key, ticket)))
        return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device)) * (1 / (1 - p or 1))

    def __deepcopy__(self, memo: dict[int, Any]) -> Masks:
        return self


class SampleDropout(nn.Dropout):
    """`nn.Dropout` under `Masks`: in training each sample's own mask, else the input as it is."""

    def __init__(self, p: float, masks: Masks) -> None:
        super().__init__(p)
        self._masks = masks

    def forward(self, x: Tensor) -> Tensor:
        return self._masks.drop(x, self.p) if self.training and self.p > 0 else x


def batch_norms(modules: nn.Module) -> Sequence[str]:
    """The names of the batch norms that are trained: they make samples that pass together depend on each
    other, so that no way of splitting a batch leaves its result alone."""
    return [
        name
        for name, module in modules.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training
    ]


def _ticket(source: torch.Generator) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=source))


def _mixed(key: int, ticket: int) -> int:
    """A seed of 63 bits from two numbers (the finaliser of SplitMix64, Steele et al. 2014)."""
    z = (key + ticket * 0x9E37_79B9_7F4A_7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return (z ^ (z >> 31)) >> 1
