"""What each target trains and how it is scored. `objective_for` picks by target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.training.spec import FullTarget, LoRATarget

if TYPE_CHECKING:
    from cascade_train.host.base import Host
    from cascade_train.training.objectives.base import TrainingObjective
    from cascade_train.training.spec import RunSpec


def objective_for(spec: RunSpec, host: Host) -> TrainingObjective:
    """A fresh objective at step 0 for ``spec``, on the host's device.

    Raises:
        CascadeError: a part that the target needs is missing, or nothing trains this target.
    """
    target = spec.target
    if isinstance(target, LoRATarget):
        from cascade_train.training.objectives.lora import LoRAObjective

        return LoRAObjective(spec, host)
    if isinstance(target, FullTarget):
        if target.part == "stage_c":
            from cascade_train.training.objectives.stage_c import StageCObjective

            return StageCObjective(spec, host)
        if target.part == "stage_b":
            from cascade_train.training.objectives.stage_b import StageBObjective

            return StageBObjective(spec, host)
        if target.part == "stage_a":
            from cascade_train.training.objectives.stage_a import StageAObjective

            return StageAObjective(spec, host)
        if target.part == "compressor":
            from cascade_train.training.objectives.compressor import CompressorObjective

            return CompressorObjective(spec, host)
        if target.part == "previewer":
            from cascade_train.training.objectives.previewer import PreviewerObjective

            return PreviewerObjective(spec, host)
    raise CascadeError(
        f"nothing trains the target {target!r}",
        fix="Train stage_c, stage_b, stage_a, compressor, previewer, or a LoRA",
    )
