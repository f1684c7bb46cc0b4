"""A LoRA file as what a run makes: tensors and settings to lay over models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.models import weights
from cascade_train.models.loras.fit import Fit, fitted, tensors_file
from cascade_train.models.loras.networks import Network, network_of

if TYPE_CHECKING:
    from torch import Tensor

    from cascade_train.models.loras.reading import Changes
    from cascade_train.models.spec import AppliedFile, ModelsSpec


def networks_of(models: ModelsSpec) -> tuple[Network, ...]:
    """The networks of ``models`` that a LoRA file can change."""
    return tuple(network_of(file) for file in models.parts if file.part in ("stage_c", "text"))


def settings_of(applied: AppliedFile) -> dict[str, Any]:
    """The settings of a LoRA file's state (see `models.trained`), from its header alone.

    Raises:
        CascadeError: it is gone, has changed, or does not fit.
    """
    return _settings(_fit(applied), applied)


def state_of_file(applied: AppliedFile) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and settings of a LoRA file's state: alpha / rank is in the up matrices. Raises as
    `settings_of` does, and where values are not finite."""
    from cascade_train.models.loras.reading import read

    settings = _settings(_fit(applied), applied)
    changes = read(Path(applied.path), [network_of(file) for file in applied.parts])
    tensors = layers_as_trained(changes)
    if applied.tokens and changes.words is not None:
        tensors["tokens.rows"] = changes.words.rows[[token.row for token in applied.tokens]]
    if any(change.over_base for change in changes.layers.values()):
        settings["magnitude"] = "base"
    return tensors, settings


def layers_as_trained(changes: Changes) -> dict[str, Tensor]:
    """The layers of ``changes`` under the names that a run's state has, scaled by 1."""
    out: dict[str, Tensor] = {}
    for (part, module), change in changes.layers.items():
        stem = f"{part}.{module}"
        if change.dense is not None:
            out[f"{stem}.delta"] = change.dense
        else:
            assert change.down is not None and change.up is not None
            out[f"{stem}.lora_A.weight"] = change.down
            out[f"{stem}.lora_B.weight"] = change.scale * change.up.float()
        if change.magnitude is not None:
            out[f"{stem}.lora_magnitude_vector.weight"] = change.magnitude
    return out


def _settings(fit: Fit, applied: AppliedFile) -> dict[str, Any]:
    parts = [part for part in fit.parts if applied.strength_of(part) != 0]
    if applied.tokens and "text" not in parts:
        parts.append("text")
    settings: dict[str, Any] = {"parts": parts, "rank": 1, "alpha": 1.0, "variant": "lora"}
    if applied.tokens:
        settings["tokens"] = [
            {"name": each.name, "new": each.new, "id": each.id, "start": list(each.start)}
            for each in applied.tokens
        ]
    return settings


def _fit(applied: AppliedFile) -> Fit:
    path = Path(applied.path)
    if content_of(path) != applied.content:
        raise CascadeError(
            "the LoRA file is another one than when it was chosen", where=str(path), fix="Choose it again"
        )
    return fitted(path, [network_of(file) for file in applied.parts])


def content_of(path: Path) -> str:
    """What identifies the LoRA at ``path`` wherever it lies.

    Raises:
        CascadeError: there is none.
    """
    tensors_file(path)
    return weights.content_id(path)
