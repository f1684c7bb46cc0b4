"""Laying a trained run over models: the link that `models.library` follows when a part is asked for."""

from __future__ import annotations

from dataclasses import replace

from cascade_train.errors import CascadeError
from cascade_train.models.spec import AppliedRun, ModelsSpec
from cascade_train.training.run import checkpoint_of
from cascade_train.training.spec import Position


def apply_trained(models: ModelsSpec, position: Position, strength: float = 1.0) -> ModelsSpec:
    """``models`` with what ``position`` has trained laid over them; nothing is loaded yet.

    At step 0, or with strength 0, they are the models as they are. Runs that were applied before stay.

    Raises:
        CascadeError: the position has not been trained.
    """
    if strength == 0 or position.step == 0:
        return models
    if strength != strength or abs(strength) == float("inf"):
        raise CascadeError(f"a strength of {strength}", fix="Use a number such as 1")
    applied = AppliedRun(position.name, strength, str(checkpoint_of(position)))
    return replace(models, applied=(*models.applied, applied))
