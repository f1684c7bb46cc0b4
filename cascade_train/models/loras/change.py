"""What a LoRA does to a layer's weight, and the forms that give the same: exact, without the weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cascade_train.errors import CascadeError


@dataclass(frozen=True)
class Change:
    """What is added to a weight (out, in, …): ``alpha`` / rank · ``up`` (out, r) · ``down`` (r, in, …), or
    ``dense``.

    With a ``magnitude`` it is DoRA: (out,) brings rows of the changed weight to these lengths, (1, in) its
    columns. ``over_base``: lengths are measured on the weight before the change, as ComfyUI does for rows.
    """

    alpha: float = 1.0
    down: Tensor | None = None
    up: Tensor | None = None
    dense: Tensor | None = None
    magnitude: Tensor | None = None
    over_base: bool = False

    @property
    def rank(self) -> int:
        """0 where the change is dense."""
        return 0 if self.down is None else self.down.shape[0]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank if self.rank else 1.0

    def delta(self) -> Tensor:
        """What is added to the weight, (out, in·…) fp32, before a magnitude is applied."""
        if self.dense is not None:
            return self.dense.float().flatten(1)
        assert self.down is not None and self.up is not None
        return self.scale * (self.up.float().flatten(1) @ self.down.float().flatten(1))


def kronecker(one: Sequence[Tensor], two: Sequence[Tensor], alpha: float | None) -> Change:
    """A LoKr: W₁ ⊗ W₂, each whole (one tensor) or a product of two (out, r) · (r, in).

    Where both are low-rank, or one is and the other small, that is a LoRA: (A ⊗ B)(C ⊗ D) = AC ⊗ BD. Else the
    product is kept, which then takes less room than factors.
    """
    rank = two[1].shape[0] if len(two) == 2 else one[1].shape[0] if len(one) == 2 else 0
    scale = 1.0 if alpha is None or not rank else alpha / rank
    if any(each.dim() > 2 for each in two):
        whole = one[0] if len(one) == 1 else one[0] @ one[1]
        kernel = whole.float().reshape(*whole.shape, *(1,) * (two[0].dim() - 2))
        return Change(dense=scale * torch.kron(kernel, two[0].float()))
    (a, c), (b, d) = _factors(one), _factors(two)
    rows, columns, ranks = a.shape[0] * b.shape[0], c.shape[1] * d.shape[1], a.shape[1] * b.shape[1]
    if ranks * (rows + columns) >= rows * columns:
        return Change(dense=scale * torch.kron(a @ c, b @ d))
    return Change(scale * ranks, down=torch.kron(c, d), up=torch.kron(a, b))


def _factors(given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Two matrices whose product is that of ``given``, of as small a rank as shapes tell."""
    if len(given) == 2:
        return given[0].float(), given[1].float()
    whole = given[0].float()
    rows, columns = whole.shape
    return (whole, torch.eye(columns)) if columns <= rows else (torch.eye(rows), whole)


def hadamard(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor], alpha: float | None) -> Change:
    """A LoHa: (A₁B₁) ∘ (A₂B₂), which is a LoRA of rank r₁·r₂ by the rows' Kronecker products (Khatri-Rao)."""
    (a, b), (c, d) = ((each.float().flatten(1) for each in pair) for pair in (one, two))
    scale = 1.0 if alpha is None else alpha / b.shape[0]
    up = (a[:, :, None] * c[:, None, :]).flatten(1)
    down = (b[:, None, :] * d[None, :, :]).flatten(0, 1)
    if up.shape[1] * (up.shape[0] + down.shape[1]) >= up.shape[0] * down.shape[1]:
        return Change(dense=scale * (up @ down))
    return Change(scale * up.shape[1], down=down, up=up)


def tucker(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The tensor of a Tucker decomposition: ``core`` (p, j, k, l), ``left`` (p, out), ``right`` (j, in) →
    (out, in, k, l)."""
    return torch.einsum("pjkl,po,ji->oikl", core.float(), left.float(), right.float())


def thirds(change: Change) -> tuple[Change, Change, Change]:
    """A change of a fused q, k and v as one of each: blocks of rows of up, the same down; exact.

    Raises:
        CascadeError: a magnitude of columns, which the three have together.
    """
    if change.magnitude is not None and change.magnitude.dim() > 1:
        raise CascadeError(
            "a DoRA with lengths of columns on a fused attention has no exact split",
            fix="Export it again with lengths of rows (wd_on_output)",
        )

    def cut(value: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, None) if value is None else value.chunk(3)

    parts = zip(cut(change.up), cut(change.dense), cut(change.magnitude))
    q, k, v = (replace(change, up=up, dense=dense, magnitude=length) for up, dense, length in parts)
    return q, k, v


def fused(parts: Sequence[Change | None], rows: int, shape: Sequence[int]) -> Change:
    """Changes of q, k and v (None: unchanged) as one of the fused weight, exactly.

    The rank stays where all have the same down matrix; else it is the sum of theirs, with up in blocks.

    Args:
        rows: of each of the three.
        shape: of the weight of one, without its rows.
    """
    there = [each for each in parts if each is not None]
    if any(each.magnitude is not None for each in there):
        raise CascadeError("a DoRA has no fused form here", fix="Use another form, or extract a LoRA")
    if any(each.dense is not None for each in there):
        zeros = torch.zeros(rows, _product(shape))
        whole = torch.cat([zeros if each is None else each.delta() for each in parts])
        return Change(dense=whole.reshape(-1, *shape))
    downs = [each.down for each in there]
    first = downs[0]
    same = all(down is not None and first is not None and torch.equal(down, first) for down in downs)
    if same and len({each.scale for each in there}) == 1:
        one = there[0]
        assert one.up is not None
        ups = [one.up.new_zeros(rows, one.rank) if each is None else each.up for each in parts]
        return Change(one.alpha, down=one.down, up=torch.cat(ups))  # type: ignore[arg-type]
    rank, at = sum(each.rank for each in there), 0
    up = torch.zeros(3 * rows, rank)
    for number, each in enumerate(parts):
        if each is not None:
            up[number * rows : (number + 1) * rows, at : at + each.rank] = each.scale * each.up.float()  # type: ignore[union-attr]
            at += each.rank
    return Change(float(rank), down=torch.cat([down.float() for down in downs if down is not None]), up=up)


def _product(numbers: Sequence[int]) -> int:
    out = 1
    for number in numbers:
        out *= number
    return out
