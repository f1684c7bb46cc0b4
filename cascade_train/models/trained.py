"""What a run has made, as tensors and settings: the two files in a checkpoint that others read.

``trained.safetensors`` and ``trained.json`` (``{"format": …, "kind": …, "settings": {…}}``):

- kind ``full``: tensors ``<part>.<name in the module>``; settings ``parts``, ``init``, ``config``, ``seed``.
- kind ``lora``: tensors ``<part>.<module>.lora_A.weight`` (r, in), ``….lora_B.weight`` (out, r) and, for
  DoRA, ``….lora_magnitude_vector.weight`` (out,); settings ``rank``, ``alpha``, ``variant``.
- tokens, beside a LoRA or alone (kind ``tokens``): tensor ``tokens.rows`` (n, width); settings ``tokens``,
  a list of ``{"name", "new", "id"}`` in the order of the rows;
- setting ``objective`` where it is not epsilon: what Stage B or C predicts now.

A LoRA file laid over models has the same form, with more in it: a change of full rank is a tensor
``<part>.<module>.delta``; a magnitude may be one of columns, (1, in); setting ``magnitude`` is ``base`` where
lengths are those of rows before the change; a token's row may be added to the mean of the rows ``start``.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cascade_train.errors import CascadeError
from cascade_train.migrations import read_forward
from cascade_train.models.loras.state import settings_of, state_of_file
from cascade_train.models.proof import checked
from cascade_train.models.spec import Applied, AppliedFile, AppliedRun
from cascade_train.models.weights import read_tensors

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

TRAINED_TENSORS = "trained.safetensors"
TRAINED_JSON = "trained.json"


@dataclass(frozen=True)
class TrainedState:
    """``kind`` is ``full``, ``lora`` or ``tokens``; as read, tensors lie on the CPU."""

    kind: str
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, Any]


def read_trained(checkpoint: Path) -> TrainedState:
    """What the checkpoint folder holds.

    Raises:
        CascadeError: there is no trained state in it, one that is not what was written, or one written by a
            later version.
    """
    kind, settings = read_settings(checkpoint)
    checked(checkpoint, TRAINED_TENSORS)
    return TrainedState(kind, read_tensors(checkpoint / TRAINED_TENSORS), settings)


def read_settings(checkpoint: Path) -> tuple[str, dict[str, Any]]:
    """(kind, settings) alone, without reading tensors; raises as `read_trained` does."""
    try:
        described = read_forward(checkpoint / TRAINED_JSON, "trained")
        if not isinstance(described.get("kind"), str) or not isinstance(described.get("settings"), dict):
            raise ValueError(f"{TRAINED_JSON} is damaged")
        checked(checkpoint, TRAINED_JSON)
    except (OSError, ValueError) as error:
        raise CascadeError(
            "there is no trained state here",
            where=str(checkpoint),
            fix="The checkpoint may have been deleted: run the training again",
        ) from error
    return described["kind"], described["settings"]


def kind_and_settings(applied: Applied) -> tuple[str, dict[str, Any]]:
    """`read_settings` of a run or a LoRA file that is laid over models; raises as `read_trained` does, or as
    `loras.fit.fitted`."""
    if isinstance(applied, AppliedFile):
        return "lora", settings_of(applied)
    return _or_again(read_settings, applied)


def state_of(applied: Applied) -> TrainedState:
    """What a run that is laid over models has made, or a LoRA file holds; raises as `kind_and_settings`."""
    if isinstance(applied, AppliedFile):
        return TrainedState("lora", *state_of_file(applied))
    return _or_again(read_trained, applied)


def _or_again(read: Callable[[Path], T], applied: AppliedRun) -> T:
    """What ``read`` finds in the checkpoint, which is made anew first where it is gone or damaged."""
    try:
        return read(Path(applied.checkpoint))
    except CascadeError:
        if not callable(applied.again):
            raise
        applied.again()
        return read(Path(applied.checkpoint))
