"""The protocol between the loop and what is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cascade_train.models import finite
from cascade_train.models.compact import numbers
from cascade_train.models.trained import TrainedState
from cascade_train.training.spec import Checkpointing, FullTarget, RunSpec

if TYPE_CHECKING:
    from cascade_train.data.dataset import Draw, OpenDataset
    from cascade_train.host.base import Host
    from cascade_train.models.text import TextStates
    from cascade_train.training.feed import LatentFeed, TextFeed


@dataclass(frozen=True)
class MicroBatch:
    """The samples that one forward pass sees. ``step`` counts from 0; each draw knows its index in the
    global batch, and everything random is a function of (seed, step, that index)."""

    seed: int
    step: int
    draws: tuple[Draw, ...]

    @property
    def indices(self) -> list[int]:
        return [draw.index for draw in self.draws]


@dataclass(frozen=True)
class Scored:
    """The losses of a micro-batch, one a sample.

    Args:
        loss: (n,) weighted, with gradient; the loop minimises its mean over the global batch.
        raw: (n,) unweighted, without gradient; what the metrics show.
        log_snr: (n,) for diffusion objectives.
        parts: further numbers for the metrics, each a mean over the micro-batch.
    """

    loss: Tensor
    raw: Tensor
    log_snr: Tensor | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate. ``learning_rate`` None takes the run's."""

    parameters: Mapping[str, nn.Parameter]
    learning_rate: float | None = None
    decay: bool = True


class TrainingObjective(ABC):
    """What is trained and how samples are scored.

    A subclass fills ``modules`` (parts that are trained, copies or twins of their own), reads samples from
    ``dataset`` and scores them. Its whole state is the parameters that require gradients, the persistent
    buffers of ``modules``, and ``extra_state``.
    """

    modules: nn.ModuleDict
    dataset: OpenDataset

    def __init__(self, spec: RunSpec, host: Host) -> None:
        self.spec = spec
        self.host = host
        self.device = torch.device(host.device)
        self.autocast = spec.precision == "bf16"

    def check_stop(self) -> None:
        """Raises the host's own exception where a person stops in the middle of a step; several processes
        stop between steps alone, together."""
        if self.host.world_size == 1:
            self.host.check_interrupt()

    @abstractmethod
    def score(self, batch: MicroBatch) -> Scored:
        """The losses of ``batch``; called in the loop's autocast, with gradients on."""

    def groups(self) -> list[ParameterGroup]:
        """What the optimizer is given: one group unless a subclass says otherwise."""
        return [ParameterGroup(self.parameters())]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Every trained parameter by its name in the checkpoint."""
        return {name: value for name, value in self.modules.named_parameters() if value.requires_grad}

    def buffers(self) -> dict[str, Tensor]:
        """Every persistent buffer of the trained parts (running statistics) by name."""
        return {
            f"{owner}.{name}": value
            for owner, module in self.modules.named_modules()
            for name, value in module._buffers.items()
            if value is not None and name not in module._non_persistent_buffers_set
        }

    def in_place(self) -> AbstractContextManager[Any]:
        """Keeps frozen parts that the modules share on the device while a step or a preview is made."""
        return nullcontext()

    def feeds(self) -> Sequence[LatentFeed | TextFeed]:
        """What encodes for it."""
        return ()

    def ahead(self, draws: Sequence[Draw]) -> None:  # noqa: B027
        """Told what the next step will draw, so that loading can begin."""

    def shown(self) -> tuple[nn.Module | None, Callable[[list[str]], TextStates] | None]:
        """Stage C as it is now, and what makes text states for it; (None, None) where it is not trained."""
        return None, None

    def remark(self) -> None:  # noqa: B027
        """Warn of what a person has to know of the samples, each thing once; asked around each block."""

    def remarks(self) -> list[str]:
        """What `remark` has warned of."""
        return []

    def after_step(self, raw: Tensor, log_snr: Tensor | None) -> None:  # noqa: B027
        """Told the unweighted losses and logSNRs of the whole global batch once a step, in order."""

    def extra_state(self) -> dict[str, Tensor]:
        """State that is neither a parameter nor a buffer."""
        return {}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Take up what `extra_state` gave."""

    @abstractmethod
    def result(self, weights: Mapping[str, Tensor]) -> TrainedState:
        """What training has made.

        ``weights`` holds a value for each of `parameters` (their EMA where one is kept) and `buffers`.
        """


def full_result(
    spec: RunSpec, modules: nn.ModuleDict, weights: Mapping[str, Tensor], parts: tuple[str, ...]
) -> TrainedState:
    """The result of training all weights of ``parts``: tensors named ``part.name in the module``."""
    target = spec.target
    assert isinstance(target, FullTarget)
    wanted = {name for part in parts for name in (f"{part}.{key}" for key in modules[part].state_dict())}
    tensors = {name: value for name, value in weights.items() if name in wanted}
    fixed = modules.state_dict()
    tensors.update({name: fixed[name].detach() for name in wanted - tensors.keys()})
    settings = {"parts": list(parts), "init": target.init, "config": target.config, "seed": spec.seed}
    return TrainedState("full", tensors, settings)


def trainable_part(spec: RunSpec, part: str, host: Host) -> nn.Module:
    """A copy of ``part`` of one's own to train, fp32 on the host's device, as the target's ``init`` says."""
    target = spec.target
    init = target.init if isinstance(target, FullTarget) else "models"
    module: nn.Module
    if init == "models":
        from cascade_train.models.library import own_copy

        module = own_copy(spec.models, part)  # type: ignore[arg-type]
    else:
        from cascade_train.models.starts import initial

        assert isinstance(target, FullTarget)
        config = target.config or (_own_config(spec, part) if init == "random" else "")
        module = initial(part, init, config, spec.seed, spec.models)  # type: ignore[arg-type]
    module = module.float().to(host.device).requires_grad_(True).train()
    save_memory(module, spec.checkpointing)
    return module


LARGE = 300_000_000
"""From so many parameters on, activations are computed again on the way back rather than kept."""


def save_memory(module: nn.Module, mode: Checkpointing = "auto") -> None:
    """Switch on gradient checkpointing where ``mode`` says so or the network is large. No result changes."""
    if mode == "on" or (mode == "auto" and numbers(module) >= LARGE):
        enable = getattr(module, "enable_gradient_checkpointing", None)
        if enable is not None:
            enable()


def _own_config(spec: RunSpec, part: str) -> str:
    """The models' own configuration of ``part`` as JSON; empty where they have none."""
    import json

    from cascade_train.models import build, library

    if not library.has(spec.models, part):  # type: ignore[arg-type]
        return ""
    return json.dumps(build.module_config(part, library.part(spec.models, part)))  # type: ignore[arg-type]


def frozen_part(spec: RunSpec, part: str, host: Host) -> Callable[[], AbstractContextManager[Any]]:
    """What gives ``part`` for as long as it is needed: shared, eval, without gradients, not to be changed. It
    is loaded when it is first asked for."""
    from cascade_train.models import library

    return partial(library.use, spec.models, part, host.device)  # type: ignore[arg-type]


def encoder(
    frozen: Callable[[], AbstractContextManager[Any]],
    encode: Callable[[Any, Tensor], Tensor],
    what: str = "the semantic compressor",
) -> Callable[[Tensor], Tensor]:
    """``encode(module, pictures)`` as a function of pictures alone; ``what`` people call the part.

    It raises CascadeError where the part makes numbers that are none: they are neither kept nor trained on.
    """

    def encoded(pictures: Tensor) -> Tensor:
        with frozen() as module:
            return finite.made(encode(module, pictures), what, "latents")

    return encoded
