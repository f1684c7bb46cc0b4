"""Changes of another rank: the nearest ones (Eckart and Young 1936), and how much of each is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cascade_train.models.loras.change import Change

OVERSAMPLED, ROUNDS = 16, 4
"""Of large matrices the leading part is found by random projections with power iterations (Halko, Martinsson
and Tropp 2011, arXiv:0909.4061); these are more columns than asked for, and rounds."""

EXACT = 1024
"""Up to this shorter side a matrix is taken apart whole."""


@dataclass(frozen=True)
class EnergyKept:
    """Of changes brought to another rank: the squared norms before, and of what is left."""

    before: float = 0.0
    after: float = 0.0

    @property
    def share(self) -> float:
        """From 0 to 1: how much of the changes' energy (squared norm) is kept."""
        return min(1.0, self.after / self.before) if self.before else 1.0

    def joined(self, other: EnergyKept) -> EnergyKept:
        return EnergyKept(self.before + other.before, self.after + other.after)


def resized(change: Change, rank: int) -> tuple[Change, EnergyKept]:
    """The change of at most ``rank`` nearest to ``change``; its alpha is its rank. A magnitude stays.

    Exact for a LoRA: its factors are brought to an orthogonal form first, so that the product is never made.
    """
    if change.dense is not None:
        found, kept = nearest(change.dense.float().flatten(1), rank, change.dense.shape[1:])
        return replace(found, magnitude=change.magnitude, over_base=change.over_base), kept
    assert change.down is not None and change.up is not None
    up, small_up = torch.linalg.qr(change.up.float().flatten(1))
    down, small_down = torch.linalg.qr(change.down.float().flatten(1).t())
    left, values, right = torch.linalg.svd(change.scale * (small_up @ small_down.t()))
    cut = min(rank, len(values))
    root = values[:cut].sqrt()
    made = replace(
        change,
        alpha=float(cut),
        up=up @ left[:, :cut] * root,
        down=(root[:, None] * right[:cut] @ down.t()).reshape(cut, *change.down.shape[1:]),
    )
    return made, EnergyKept(float(values.square().sum()), float(values[:cut].square().sum()))


def nearest(matrix: Tensor, rank: int, shape: Sequence[int]) -> tuple[Change, EnergyKept]:
    """The change of at most ``rank`` nearest to ``matrix`` (out, in·…); ``shape`` is that of its columns."""
    small = min(matrix.shape)
    cut = min(rank, small)
    if small <= EXACT or 4 * (cut + OVERSAMPLED) > small:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same file makes the same file
            left, values, v = torch.svd_lowrank(matrix, q=cut + OVERSAMPLED, niter=ROUNDS)
        right = v.t()
    root = values[:cut].sqrt()
    made = Change(
        float(cut), up=left[:, :cut] * root, down=(root[:, None] * right[:cut]).reshape(cut, *shape)
    )
    return made, EnergyKept(float(matrix.square().sum()), float(values[:cut].square().sum()))
