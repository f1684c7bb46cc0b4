"""Laying what a run has trained, or a LoRA file holds, over modules. Imported by model loading, so it knows
nothing of training.

Over a twin of a shared part (`lay_over`), where adapters are worked in whenever a layer's weight is read, so
that nothing of the part is copied; or into the weights of a part that nobody shares (`merged`). Both give the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from cascade_train.errors import CascadeError
from cascade_train.models import owner
from cascade_train.models.compact import CompactLinear
from cascade_train.models.spec import Applied
from cascade_train.models.trained import TrainedState, kind_and_settings, state_of
from cascade_train.models.weights import PREDICTS


def touches(applied: Applied, part: str) -> bool:
    """Whether the applied run changes ``part``."""
    return part in kind_and_settings(applied)[1]["parts"]


def kind_of(applied: Applied) -> str:
    """``full``, ``lora`` or ``tokens``."""
    return kind_and_settings(applied)[0]


def lay_over(module: nn.Module, part: str, applied: Applied) -> nn.Module:
    """``module`` with the applied run's adapters and words at its strength: a twin where the run changes it.

    Raises:
        CascadeError: the run was trained on other models than these, or its checkpoint is gone.
    """
    if not touches(applied, part):
        return module
    trained = state_of(applied)
    return _finished(_with_adapters(owner.twin(module), part, trained, applied, attach), part, trained)


def merged(module: nn.Module, part: str, applied: Applied) -> nn.Module:
    """The same in the weights of ``module`` itself, which nobody else has; also for runs that trained all
    weights. Raises as `lay_over` does."""
    if not touches(applied, part):
        return module
    trained = state_of(applied)
    with torch.no_grad():
        if trained.kind == "full":
            _full(module, _own(trained, part), applied.strength_of(part), applied.where)
        else:
            module = _with_adapters(module, part, trained, applied, _work_in)
    return _finished(module, part, trained)


def _finished(module: nn.Module, part: str, trained: TrainedState) -> nn.Module:
    if part in ("stage_b", "stage_c"):
        setattr(module, PREDICTS, trained.settings.get("objective", "epsilon"))
    return module.requires_grad_(False).eval()


def _own(trained: TrainedState, part: str) -> dict[str, Tensor]:
    return {
        name[len(part) + 1 :]: value for name, value in trained.tensors.items() if name.startswith(part + ".")
    }


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


class Adapter(nn.Module):
    """What a run has trained of one layer, as a function of the layer's weight."""

    def __init__(
        self, tensors: Mapping[str, Tensor], scale: float, strength: float, over_base: bool = False
    ) -> None:
        super().__init__()
        self.scale, self.strength, self.over_base = scale, strength, over_base
        for name in ("A", "B", "delta", "magnitude"):
            self.register_buffer(name, tensors.get(name))

    def forward(self, weight: Tensor) -> Tensor:
        changed: Any = (self.A, self.B, self.scale, self.strength, self.magnitude, self.delta)
        return merged_weight(weight, *changed, over_base=self.over_base)


def attach(layer: nn.Module, adapter: Adapter) -> None:
    """Apply ``adapter`` to the weight of ``layer`` whenever it is read."""
    if isinstance(layer, CompactLinear):
        layer.adapters.append(adapter.to(layer.weight.device))
        return
    parametrize.register_parametrization(layer, "weight", adapter.to(layer.weight.device), unsafe=True)  # type: ignore[arg-type]


def _work_in(layer: nn.Module, adapter: Adapter) -> None:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    weight.copy_(adapter.to(weight.device)(weight))


def _with_adapters(
    module: nn.Module,
    part: str,
    trained: TrainedState,
    applied: Applied,
    put: Callable[[nn.Module, Adapter], None],
) -> nn.Module:
    """``module`` with each layer's adapter put to it: W + strength · (alpha/rank) · B·A, or DoRA's
    renormalised form (Liu et al. 2024, arXiv:2402.09353, eq. 5); and with trained words."""
    settings = trained.settings
    strength, over_base = applied.strength_of(part), settings.get("magnitude") == "base"
    for layer, tensors in _layers(module, _own(trained, part), applied.where):
        put(layer, Adapter(tensors, settings["alpha"] / settings["rank"], strength, over_base))
    if part == "text" and "tokens.rows" in trained.tensors:
        module = _tokens(module, settings["tokens"], trained.tensors["tokens.rows"], strength)
    return module


def _layers(
    module: nn.Module, tensors: Mapping[str, Tensor], where: str
) -> Iterator[tuple[nn.Module, dict[str, Tensor]]]:
    """Each layer that has an adapter, with its matrices."""
    for name in sorted({key.removesuffix(".delta").rsplit(".lora_", 1)[0] for key in tensors}):
        try:
            layer = module.get_submodule(name)
        except AttributeError:
            layer = None
        weight = getattr(layer, "weight", None)
        found = {
            short: tensors[f"{name}.{long}"]
            for short, long in _TENSORS.items()
            if f"{name}.{long}" in tensors
        }
        delta = found.get("delta")
        size = found["B"].shape[0] * found["A"][0].numel() if delta is None else delta.numel()
        if not isinstance(weight, Tensor) or weight.numel() != size:
            raise CascadeError(
                f"the run's adapter for '{name}' does not fit these models",
                where=where,
                fix="Apply it to the models it was trained on",
            )
        yield layer, found  # type: ignore[misc]


_TENSORS = {
    "A": "lora_A.weight",
    "B": "lora_B.weight",
    "delta": "delta",
    "magnitude": "lora_magnitude_vector.weight",
}


def merged_weight(
    weight: Tensor,
    down: Tensor | None,
    up: Tensor | None,
    scale: float,
    strength: float,
    magnitude: Tensor | None = None,
    delta: Tensor | None = None,
    *,
    over_base: bool = False,
) -> Tensor:
    """``weight`` (out, in, …) with the adapter ``up`` (out, r, …) · ``down`` (r, in, …) merged, or with
    ``delta`` in their place, in its dtype.

    Worked out in fp32 on the weight's device. ``magnitude`` (out,) makes it DoRA: rows of W + scale·B·A are
    brought to that length, of (1, in) columns; strength then goes from W to the result. ``over_base``: they
    are divided by the lengths of W's rows instead, as ComfyUI does.
    """
    base = weight.float().flatten(1)
    if delta is not None:
        change = delta.to(base).flatten(1)
    else:
        assert down is not None and up is not None
        change = scale * (up.to(base).flatten(1) @ down.to(base).flatten(1))
    if magnitude is None:
        new = base + strength * change
    else:
        whole = base + change
        columns = magnitude.dim() > 1
        lengths = (base if over_base else whole).norm(dim=0 if columns else 1, keepdim=True)
        wanted = magnitude.to(base).view(1, -1) if columns else magnitude.to(base).view(-1, 1)
        new = torch.lerp(base, wanted / lengths * whole, strength)
    return new.view(weight.shape).to(weight.dtype)


def _tokens(
    module: nn.Module, tokens: Sequence[Mapping[str, Any]], rows: Tensor, strength: float
) -> nn.Module:
    """``module`` with new words at their trained rows, and existing words' rows moved towards theirs.

    A new word has no value before training, so strength does not weaken it. A token with ``start`` has a row
    that is added to the mean of those rows of the table.
    """
    from cascade_train.models.text import with_new_tokens

    table = module.get_submodule("text_model.embeddings").token_embedding.weight  # type: ignore[union-attr]
    started = [
        row + table[token["start"]].float().mean(dim=0).to(row) if token.get("start") else row  # type: ignore[index]
        for row, token in zip(rows, tokens)
    ]
    rows = torch.stack(started)
    new = [index for index, token in enumerate(tokens) if token["new"]]
    module = with_new_tokens(module, [tokens[index]["name"].strip("[]") for index in new], rows[new])
    embeddings: Any = module.get_submodule("text_model.embeddings")
    if len(new) < len(tokens):  # the table may be shared
        table = embeddings.token_embedding.weight.clone()
        for index, token in enumerate(tokens):
            if not token["new"]:
                row = table[token["id"]]
                row.copy_(torch.lerp(row.float(), rows[index].to(row.device), strength).to(row))
        embeddings.token_embedding = nn.Embedding.from_pretrained(table)
    return module
