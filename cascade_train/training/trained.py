"""What a run has made, as tensors and settings: the files others read from a checkpoint.

``trained.safetensors`` and ``trained.json`` (``{"format": 1, "kind": …, "settings": {…}}``):

- kind ``full``: tensors ``<part>.<name in the module>``; settings ``parts``, ``init``, ``config``, ``seed``.
- kind ``lora``: tensors ``<part>.<module>.lora_A.weight`` (r, in), ``….lora_B.weight`` (out, r) and, for
  DoRA, ``….lora_magnitude_vector.weight`` (out,); settings ``rank``, ``alpha``, ``variant``.
- tokens, beside a LoRA or alone (kind ``tokens``): tensor ``tokens.rows`` (n, width); settings ``tokens``,
  a list of ``{"name", "new", "id"}`` in the order of the rows;
- setting ``objective`` where it is not epsilon: what Stage B or C predicts now.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cascade_train.models.applied import TRAINED_JSON, TRAINED_TENSORS, read_trained

__all__ = ["TRAINED_JSON", "TRAINED_TENSORS", "TrainedState", "load_trained"]


@dataclass(frozen=True)
class TrainedState:
    """``kind`` is ``full``, ``lora`` or ``tokens``; tensors lie on the CPU."""

    kind: str
    tensors: dict[str, Tensor]
    settings: dict[str, Any]


def load_trained(checkpoint: Path) -> TrainedState:
    """Read the trained state in the folder ``checkpoint``; CascadeError when there is none."""
    kind, tensors, settings = read_trained(checkpoint)
    return TrainedState(kind, tensors, settings)
