"""Taking what a run has learned away as a file and as a LoRA on a link: the node Export Run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.formats.export import core_lora, export_path, export_trained
from cascade_train.formats.names import cut, dashed
from cascade_train.host.base import Host
from cascade_train.migrations import current
from cascade_train.models.trained import TrainedState
from cascade_train.models.weights import PREDICTION
from cascade_train.training import run as runs
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    from torch import Tensor


LABEL = 100
"""UTF-8 bytes of a run's label that a file's name takes."""


def export(
    position: Position, format: str, filename: str, precision: str, host: Host
) -> tuple[str, Any, tuple[Path, ...]]:
    """Write the run's result at ``position`` in ``format``.

    Returns:
        the path of what was written first, the LoRA for ComfyUI's loaders (where the run trains something
        else, what the host hands on in its place), and everything that was written.

    Raises:
        CascadeError: nothing has been trained, or the name leaves the output folder.
    """
    state = runs.trained(runs.reached(position, host))
    files = written(position, state, format, filename, precision, host)
    lora = lora_of(position, state, precision)
    if lora is None:
        lora = host.blocked("this run trains no LoRA: load the exported file instead")
    return str(files[0]), lora, files


def written(
    position: Position, state: TrainedState, format: str, filename: str, precision: str, host: Host
) -> tuple[Path, ...]:
    """Write ``state``, what the run has made at ``position``; the files, the main one first. Raises as
    `export` does."""
    path = export_path(host.folders, filename, Path(position.folder), default_name(position))
    if host.rank != 0:
        return (path,)
    if position.spec.objective != "epsilon":
        host.warn(
            f"the run predicts {position.spec.objective}; other programs read Stable Cascade as predicting "
            "epsilon and draw noise with this file, unless they are told"
        )
    return tuple(
        export_trained(
            state.kind,
            state.tensors,
            state.settings,
            path,
            format=format,
            precision=precision,
            models=position.spec.models,
            metadata=_provenance(position),
            check=host.check_interrupt,
        )
    )


def lora_of(position: Position, state: TrainedState, precision: str) -> dict[str, Tensor] | None:
    """The run's LoRA at ``position`` as ComfyUI's nodes hand it on; None where it trains something else."""
    if state.kind != "lora":
        return None
    return core_lora(state.tensors, state.settings, precision=precision, models=position.spec.models)


def default_name(position: Position) -> str:
    """A file name (without ending) for what ``position`` holds: its label, its step, its own short name."""
    label = cut(dashed(position.spec.label).strip("-"), LABEL) or "run"
    return f"{label}-{position.step:06d}-{position.name[:8]}"


def _provenance(position: Position) -> dict[str, str]:
    return {
        **({} if position.spec.objective == "epsilon" else {PREDICTION: position.spec.objective}),
        "cascade_train.format": str(current("export")),
        "cascade_train.run": position.spec.digest,
        "cascade_train.position": position.name,
        "cascade_train.step": str(position.step),
        "cascade_train.models": position.spec.models.digest,
    }
