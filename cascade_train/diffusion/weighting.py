"""How much each sample's loss counts, as a function of its logSNR.

Every function takes ``log_snr`` (B,) and returns weights (B,) of the same dtype, ≥ 0, without gradient.
A further weight is a function here, its name in `LossWeight` and a line in `FIXED`; run settings and nodes
follow. torch is imported only where it computes, since nodes read the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

LossWeight = Literal["p2", "adaptive", "min_snr_inverse", "none"]
"""How times are weighted: one of `FIXED`, or ``adaptive``, which follows the losses (`AdaptiveWeights`)."""

BUCKETS = 300
"""Number of logSNR buckets of the adaptive weight."""

RANGE = 10.0
"""The edges between buckets span logSNR −10 … 10."""

BETA = 0.99
WEIGHT_MIN, WEIGHT_MAX = 1e-7, 1e7
INVERSE_CAP = 20.0
"""Measured on nano: with 200, the hardly predictable first tenth of the noise takes most of the gradient, and
shapes, which are decided later, are learnt a third slower."""


def p2(log_snr: Tensor) -> Tensor:
    """1 / (1 + SNR): P2 weighting with k = 1, γ = 1 (Choi et al. 2022, arXiv:2204.00227, eq. 8)."""
    return 1 / (1 + log_snr.exp())


def min_snr_inverse(log_snr: Tensor, cap: float = INVERSE_CAP) -> Tensor:
    """min(1/ᾱ, ``cap``) with ᾱ = a² = sigmoid(logSNR).

    With an epsilon loss it counts errors of the implied x₀ at high noise, where a network that copies its
    input badly drowns what the text has to say. The weight of small models trained from nothing.
    """
    return (1 / log_snr.sigmoid()).clamp(max=cap)


def none(log_snr: Tensor) -> Tensor:
    """1 for every sample."""
    return log_snr.new_ones(log_snr.shape)


def bucket_of(log_snr: Tensor) -> Tensor:
    """The index (B,) in 0 … 299 of the bucket that each ``log_snr`` falls in.

    299 edges, evenly spaced from −10 to 10, part 300 buckets; what lies on an edge belongs to the one below,
    as in the official trainer.
    """
    import torch

    edges = torch.linspace(-RANGE, RANGE, BUCKETS - 1, device=log_snr.device)
    return torch.searchsorted(edges, log_snr.detach().float().contiguous())


@dataclass(frozen=True)
class AdaptiveWeights:
    """The running mean loss of each logSNR bucket, (300,) fp32. Part of a checkpoint.

    An update returns a new value; the weights of a step are those from before its own losses.
    """

    losses: Tensor

    @staticmethod
    def fresh() -> AdaptiveWeights:
        """Buckets at the start of a run: all 1."""
        import torch

        return AdaptiveWeights(torch.ones(BUCKETS))

    def weights(self, log_snr: Tensor) -> Tensor:
        """1 / running loss of each sample's bucket, clamped to [1e-7, 1e7]."""
        losses = self.losses.to(log_snr.device)[bucket_of(log_snr)]
        return (1 / losses).clamp(WEIGHT_MIN, WEIGHT_MAX).to(log_snr.dtype)

    def updated(self, log_snr: Tensor, loss: Tensor, beta: float = BETA) -> AdaptiveWeights:
        """The buckets after a step that saw unweighted ``loss`` (B,) at ``log_snr`` (B,).

        Each bucket hit moves by the exponential mean once, towards the mean of the losses that fell in it,
        so that the order of samples does not matter.
        """
        import torch

        index = bucket_of(log_snr).cpu()
        total = torch.zeros(BUCKETS, dtype=torch.float64)
        count = torch.zeros(BUCKETS, dtype=torch.float64)
        total.index_add_(0, index, loss.detach().double().cpu())
        count.index_add_(0, index, torch.ones(len(index), dtype=torch.float64))
        hit = count > 0
        moved = self.losses.double() * beta + total / count.clamp(min=1) * (1 - beta)
        return AdaptiveWeights(torch.where(hit, moved, self.losses.double()).float())


FIXED: Mapping[LossWeight, Callable[[Tensor], Tensor]] = {
    "p2": p2,
    "min_snr_inverse": min_snr_inverse,
    "none": none,
}
"""The weights that depend on nothing but logSNR, by name."""
