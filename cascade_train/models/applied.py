"""Laying what a run has trained over modules. Imported by model loading, so it knows nothing of training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cascade_train.errors import CascadeError
from cascade_train.models.spec import AppliedRun
from cascade_train.models.trained import settings_of, state_of
from cascade_train.models.weights import PREDICTS


def touches(applied: AppliedRun, part: str) -> bool:
    """Whether the applied run changes ``part``."""
    return part in settings_of(applied)["parts"]


def lay_over(module: nn.Module, part: str, applied: AppliedRun) -> nn.Module:
    """``module`` with the applied run's training at its strength; a new module where the run changes it.

    Raises:
        CascadeError: the run was trained on other models than these, or its checkpoint is gone.
    """
    if not touches(applied, part):
        return module
    trained = state_of(applied)
    settings, tensors = trained.settings, trained.tensors
    module = copy.deepcopy(module)
    own = {name[len(part) + 1 :]: value for name, value in tensors.items() if name.startswith(part + ".")}
    with torch.no_grad():
        if trained.kind == "full":
            _full(module, own, applied.strength, applied.checkpoint)
        else:
            _lora(module, own, settings, applied.strength, applied.checkpoint)
            if part == "text" and "tokens.rows" in tensors:
                module = _tokens(module, settings["tokens"], tensors["tokens.rows"], applied.strength)
    if part in ("stage_b", "stage_c"):
        setattr(module, PREDICTS, settings.get("objective", "epsilon"))
    return module.requires_grad_(False).eval()


def _full(module: nn.Module, tensors: Mapping[str, Tensor], strength: float, where: str) -> None:
    """Move every tensor from the module's own value towards the trained one; 1 is the trained one exactly."""
    state = module.state_dict()
    if state.keys() != tensors.keys() or any(state[name].shape != tensors[name].shape for name in state):
        raise CascadeError(
            "this run was trained on models of another size",
            where=where,
            fix="Apply it to the models it was trained on",
        )
    for name, value in state.items():
        new = tensors[name].to(value)
        if strength != 1 and value.is_floating_point():
            new = torch.lerp(value.float(), new.float(), strength).to(value)
        value.copy_(new)


def _lora(
    module: nn.Module, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], strength: float, where: str
) -> None:
    """Merge adapters into the weights: W + strength · (alpha/rank) · B·A, or DoRA's renormalised form
    (Liu et al. 2024, arXiv:2402.09353, eq. 5)."""
    for name in sorted({key.rsplit(".lora_", 1)[0] for key in tensors}):
        try:
            layer = module.get_submodule(name)
        except AttributeError:
            layer = None
        weight = getattr(layer, "weight", None)
        down, up = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
        if not isinstance(weight, Tensor) or weight.numel() != up.shape[0] * down[0].numel():
            raise CascadeError(
                f"the run's adapter for '{name}' does not fit these models",
                where=where,
                fix="Apply it to the models it was trained on",
            )
        weight.copy_(
            merged_weight(
                weight,
                down,
                up,
                settings["alpha"] / settings["rank"],
                strength,
                tensors.get(f"{name}.lora_magnitude_vector.weight"),
            )
        )


def merged_weight(
    weight: Tensor, down: Tensor, up: Tensor, scale: float, strength: float, magnitude: Tensor | None = None
) -> Tensor:
    """``weight`` (out, in, …) with the adapter ``up`` (out, r, …) · ``down`` (r, in, …) merged, in its dtype.

    Worked out in fp32 on the weight's device. ``magnitude`` (out,) makes it DoRA: rows of W + scale·B·A are
    brought to that length; strength then goes from W to the result.
    """
    base = weight.float().flatten(1)
    delta = scale * (up.to(base).flatten(1) @ down.to(base).flatten(1))
    if magnitude is None:
        new = base + strength * delta
    else:
        whole = base + delta
        lengths = whole.norm(dim=1, keepdim=True)
        new = torch.lerp(base, magnitude.to(base).view(-1, 1) / lengths * whole, strength)
    return new.view(weight.shape).to(weight.dtype)


def _tokens(
    module: nn.Module, tokens: Sequence[Mapping[str, Any]], rows: Tensor, strength: float
) -> nn.Module:
    """``module`` with new words at their trained rows, and existing words' rows moved towards theirs.

    A new word has no value before training, so strength does not weaken it.
    """
    from cascade_train.models.text import with_new_tokens

    new = [index for index, token in enumerate(tokens) if token["new"]]
    table = module.text_model.embeddings.token_embedding.weight  # type: ignore[union-attr]
    for index, token in enumerate(tokens):
        if not token["new"]:
            row = table[token["id"]]  # type: ignore[index]
            row.copy_(torch.lerp(row.float(), rows[index].to(row.device), strength).to(row))
    names = [tokens[index]["name"].strip("[]") for index in new]
    return with_new_tokens(module, names, rows[new]) if new else module
