"""Taking what a run has learned away as a file and as a LoRA on a link: the node Export Run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.data.spec import Source
from cascade_train.digest import digest
from cascade_train.formats.export import CHECKPOINT, core_lora, export_path, export_trained
from cascade_train.formats.names import cut, dashed
from cascade_train.host.base import Host
from cascade_train.migrations import current
from cascade_train.models.spec import AppliedRun
from cascade_train.models.trained import TrainedState
from cascade_train.models.weights import PREDICTION
from cascade_train.training import run as runs
from cascade_train.training.folders import described
from cascade_train.training.spec import KeptSpec, Position

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
    models = position.spec.models
    laid = runs.apply_trained(models, position) if format == CHECKPOINT and state.kind != "full" else None
    return tuple(
        export_trained(
            state.kind,
            state.tensors,
            state.settings,
            path,
            format=format,
            precision=precision,
            models=models,
            metadata=provenance(position, state),
            check=host.check_interrupt,
            laid=laid,
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


def provenance(position: Position, state: TrainedState) -> dict[str, str]:
    """What an exported file says of itself: the run, what it trained, on which models and which pictures.

    Files and folders are named without where they lie.
    """
    spec = position.spec
    base = {file.part: {"file": Path(file.path).name, "content": file.content} for file in spec.models.parts}
    laid = [each.position if isinstance(each, AppliedRun) else each.content for each in spec.models.applied]
    return {
        **({} if spec.objective == "epsilon" else {PREDICTION: spec.objective}),
        **({"modelspec.title": spec.label} if spec.label else {}),
        "cascade_train.format": str(current("export")),
        "cascade_train.run": spec.digest,
        "cascade_train.position": position.name,
        "cascade_train.step": str(position.step),
        "cascade_train.models": spec.models.digest,
        "cascade_train.trained": _what(state),
        "cascade_train.base": json.dumps(base, sort_keys=True),
        "cascade_train.applied": json.dumps(laid),
        "cascade_train.dataset": json.dumps(_pictures(position)),
    }


def _what(state: TrainedState) -> str:
    """``all weights of stage_c``, ``lora of rank 8, alpha 8 on stage_c``, ``tokens [zorp]``."""
    if state.kind == "full":
        return f"all weights of {', '.join(state.settings['parts'])}"
    words = " ".join(token["name"] for token in state.settings.get("tokens", ()))
    said = [f"tokens {words}"] if words else []
    if state.kind == "lora":
        about = state.settings
        rank, alpha = about["rank"], about["alpha"]
        said.insert(0, f"{about.get('variant', 'lora')} of rank {rank}, alpha {alpha:g} on stage_c")
    return "; ".join(said)


def _pictures(position: Position) -> dict[str, Any]:
    """The dataset by its digest and its sources' names; a run loaded from its folder knows the first."""
    if isinstance(position.spec, KeptSpec):
        return {"digest": digest(described(Path(position.folder)).get("dataset"))}
    dataset = position.spec.dataset
    return {"digest": dataset.digest, "sources": [_named(leaf) for leaf, _ in dataset.leaves()]}


def _named(source: Source) -> str:
    """What a source is called where it lies, without the way there."""
    shards = getattr(source, "shards", ())
    place = getattr(source, "path", "") or (shards[0] if shards else "")
    return place.rstrip("/\\").replace("\\", "/").rpartition("/")[2] or type(source).__name__
