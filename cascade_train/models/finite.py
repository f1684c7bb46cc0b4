"""Numbers that are none (NaN, infinity) are noticed where they come from.

A picture of them is black, and says nothing of what is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec

DIVERGED = (
    "What is laid over the models may have diverged: lower its strength, or use an earlier step of the run"
)
OVERFLOWS = (
    "Its weights may be damaged, or too large for their precision: use its bf16 or fp32 file, or less cfg"
)


def given(values: Tensor, what: str) -> Tensor:
    """``values`` (B, …) as they are.

    Raises:
        CascadeError: some that were ``what`` and came from elsewhere are not finite.
    """
    bad = _bad(values)
    if bad:
        raise CascadeError(
            f"{what} hold values that are not numbers (NaN or infinite), {bad} of {len(values)}",
            fix="Look at the node that made them",
        )
    return values


def made(values: Tensor, maker: str, what: str, models: ModelsSpec | None = None) -> Tensor:
    """``values`` (B, …) as they are; ``maker`` is a part of ``models`` as people call it, such as Stage C.

    Raises:
        CascadeError: some of the ``what`` that it made are not finite.
    """
    bad = _bad(values)
    if bad:
        raise CascadeError(
            f"{maker} made {what} that are not numbers (NaN or infinite), {bad} of {len(values)}",
            fix=DIVERGED if models is not None and models.applied else OVERFLOWS,
        )
    return values


def _bad(values: Tensor) -> int:
    return int((~torch.isfinite(values)).flatten(1).any(dim=1).sum())
