"""What a LoRA file is, in plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.jobs.lora_files import networks_in
from cascade_train.models.loras import fit, kinds
from cascade_train.models.loras.networks import Network


def described(path: Path, stage_c: Path | None = None) -> dict[str, Any]:
    """What a LoRA is, as plain data: form, kind, for which network, layers by kind, ranks, alphas, words,
    what is unused, metadata. Only its header and its alphas are read.

    Raises:
        CascadeError: it is no LoRA of Stage C, or fits no network that is known.
    """
    if stage_c is not None:
        networks: Sequence[Network] = networks_in(stage_c)
        found_fit = fit.fitted(path, networks)
    else:
        found_fit, networks = fit.guessed(path)
    shapes, metadata = fit.header_of(path)
    alphas = _alphas(path, found_fit)
    return {
        "file": str(path),
        "form": found_fit.form,
        "kind": found_fit.kind,
        "for": kinds.size_named(_width_c(networks)),
        "layers": {part: _by_kind(found_fit, part) for part in found_fit.parts},
        "ranks": _counts(_rank(entry, shapes) for entry in found_fit.entries),
        "alphas": _counts(alphas),
        "words": _word_count(found_fit, shapes),
        "unused": list(found_fit.unused),
        "metadata": dict(metadata),
    }


def _width_c(networks: Sequence[Network]) -> int:
    return next(
        shape[0]
        for each in networks
        for name, shape in each.shapes.items()
        if each.part == "stage_c" and name.endswith("to_q")
    )


def _by_kind(found_fit: fit.Fit, part: str) -> dict[str, int]:
    return _counts(
        fit.kind_of_layer(module) if part == "stage_c" else module.split(".")[-2 if "." in module else 0]
        for entry in found_fit.entries
        if entry.part == part
        for module in entry.layer
    )


def _rank(entry: fit.LayerKeys, shapes: Mapping[str, Sequence[int]]) -> int | str:
    for kind in ("down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b"):
        if kind in entry.keys:
            return int(shapes[entry.keys[kind]][0])
    return "full"


def _alphas(path: Path, found_fit: fit.Fit) -> Iterator[float]:
    from safetensors import safe_open

    told, shapes = fit.alphas(path), fit.header_of(path)[0]
    with safe_open(fit.tensors_file(path), "pt") as stored:
        for entry in found_fit.entries:
            rank = _rank(entry, shapes)
            if "alpha" in entry.keys:
                yield round(float(stored.get_tensor(entry.keys["alpha"])), 6)
            elif "down" in entry.keys and isinstance(rank, int):
                yield round(told.of(entry.layer[0], rank), 6)


def _word_count(found_fit: fit.Fit, shapes: Mapping[str, Sequence[int]]) -> list[str] | int:
    if "" in found_fit.embeddings:
        return int(shapes[found_fit.embeddings[""]][0])
    return list(found_fit.embeddings)


def _counts(values: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    for value in values:
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        out[shown] = out.get(shown, 0) + 1
    return out
