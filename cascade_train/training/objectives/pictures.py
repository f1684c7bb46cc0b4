"""What the objectives of Stage A, the compressor and the previewer share: pictures in, pictures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from cascade_train.errors import CascadeError
from cascade_train.training.feed import PixelFeed
from cascade_train.training.objectives.base import TrainingObjective, full_result, trainable_part
from cascade_train.training.spec import FullTarget

if TYPE_CHECKING:
    from cascade_train.data.dataset import Draw
    from cascade_train.host.base import Host
    from cascade_train.models.trained import TrainedState
    from cascade_train.training.spec import RunSpec


class PictureObjective(TrainingObjective):
    """Trains ``trained`` parts on pictures; ``kept`` of them are the result."""

    trained: tuple[str, ...] = ()
    may_keep: tuple[str, ...] = ()

    def __init__(self, spec: RunSpec, host: Host) -> None:
        super().__init__(spec, host)
        from cascade_train.data.dataset import open_dataset
        from cascade_train.models.library import geometry

        target = spec.target
        assert isinstance(target, FullTarget)
        for part in target.also:
            if part not in self.may_keep:
                raise CascadeError(f"'{part}' cannot be trained together with {target.part}")
        self.kept = (target.part, *target.also)
        sizes = geometry(spec.models)
        self.dataset = open_dataset(
            spec.dataset, multiple=sizes.size_multiple, native_side=sizes.native_side, host=host
        )
        self.pixels = PixelFeed(self.dataset)
        self.modules = nn.ModuleDict({part: trainable_part(spec, part, host) for part in self.trained})

    def ahead(self, draws: Sequence[Draw]) -> None:
        self.pixels.ahead(draws)

    def result(self, weights: Mapping[str, Tensor]) -> TrainedState:
        return full_result(self.spec, self.modules, weights, self.kept)
