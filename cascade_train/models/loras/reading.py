"""A LoRA file read: the change of each layer, whatever form it was written in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.models.loras.change import Change, hadamard, kronecker, thirds, tucker
from cascade_train.models.loras.fit import (
    Alphas,
    Fit,
    LayerKeys,
    alphas,
    fitted,
    guessed,
    header_of,
    tensors_file,
)
from cascade_train.models.loras.networks import Network
from cascade_train.models.spec import Part
from cascade_train.models.weights import read_tensors

OVER_BASE = "cascade_train.dora"
"""In a file's metadata, "base": its ``dora_scale`` is what ComfyUI divides by the lengths of W's rows."""

Module = tuple[Part, str]


@dataclass(frozen=True)
class Words:
    """Embeddings of words in a LoRA file: ``rows`` (n, width) by ``names`` (new words, as they are written),
    or of an official file by ``ids``, to which they are then added."""

    rows: Tensor
    names: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Changes:
    """What a LoRA file changes: ``layers`` by part and module, in the networks' order, and ``words``."""

    layers: Mapping[Module, Change]
    networks: tuple[Network, ...]
    words: Words | None = None
    form: str = ""
    kind: str = ""
    metadata: Mapping[str, str] = None  # type: ignore[assignment]
    unused: tuple[str, ...] = ()

    def of(self, part: Part) -> dict[str, Change]:
        """The changes of one part, by module."""
        return {module: change for (each, module), change in self.layers.items() if each == part}

    def network(self, part: Part) -> Network:
        return next(each for each in self.networks if each.part == part)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that layers have, each once; 0 for dense ones."""
        return tuple(sorted({change.rank for change in self.layers.values()}))


def read(path: Path, networks: Sequence[Network] | None = None) -> Changes:
    """The LoRA at ``path``, a file or a folder that peft saved, for ``networks`` or for the known ones that
    it fits.

    Raises:
        CascadeError: it is another model's, a tensor has no place, or values are not finite.
    """
    fit, networks = guessed(path) if networks is None else (fitted(path, networks), tuple(networks))
    _, metadata = header_of(path)
    tensors = read_tensors(tensors_file(path))
    bad = [
        name
        for name, value in tensors.items()
        if value.is_floating_point() and not torch.isfinite(value).all()
    ]
    if bad:
        raise CascadeError(
            f"{len(bad)} tensors hold values that are not numbers: {', '.join(bad[:3])}",
            where=str(path),
            fix="Download the file again",
        )
    told, over = alphas(path), over_base(metadata)
    found: dict[Module, Change] = {}
    for entry in fit.entries:
        shapes = next(each for each in networks if each.part == entry.part).shapes
        change = _change(entry, tensors, told, over, shapes)
        parts = thirds(change) if len(entry.layer) == 3 else (change,)
        found |= {(entry.part, module): part for module, part in zip(entry.layer, parts)}
    order = [(each.part, module) for each in networks for module in each.shapes]
    layers = {place: found[place] for place in order if place in found}
    return Changes(layers, networks, _words(fit, tensors), fit.form, fit.kind, metadata, fit.unused)


def over_base(metadata: Mapping[str, str]) -> bool:
    """Whether a file's ``dora_scale`` is made for ComfyUI's formula: those of ours are."""
    return metadata.get(OVER_BASE, "base" if "cascade_train.run" in metadata else "") == "base"


def _change(
    entry: LayerKeys,
    tensors: Mapping[str, Tensor],
    told: Alphas,
    over: bool,
    shapes: Mapping[str, tuple[int, ...]],
) -> Change:
    has = {kind: tensors[key] for kind, key in entry.keys.items()}
    alpha = float(has["alpha"]) if "alpha" in has else None
    kernel = shapes[entry.layer[0]][2:]
    if "down" in has and "mid" in has:
        core = has["mid"].float()
        scale = 1.0 if alpha is None else alpha / has["down"].shape[0]
        change = Change(dense=scale * tucker(core, has["up"].flatten(1).t(), has["down"].flatten(1)))
    elif "down" in has:
        change = _plain(entry, has["down"], has["up"], alpha, told, kernel)
    elif "hada_w1_a" in has:
        change = _hadamard(has, alpha)
    elif any(kind.startswith("lokr") for kind in has):
        change = _kronecker(has, alpha)
    else:
        change = Change(dense=has["diff"])
    rows = sum(shapes[module][0] for module in entry.layer)
    whole = (rows, *shapes[entry.layer[0]][1:])
    if change.dense is not None:
        change = replace(change, dense=change.dense.reshape(whole))
    elif kernel and change.down is not None and change.down.dim() == 2:
        change = replace(change, down=change.down.reshape(change.rank, *whole[1:]))
    if "magnitude" not in has:
        return change
    length = has["magnitude"]
    of_peft = "lora_magnitude_vector" in entry.keys["magnitude"]  # of a kernel's layer it is (1, out, 1, 1)
    by_rows = of_peft or length.dim() == 1 or length.shape[0] == rows
    over = over and by_rows and entry.keys["magnitude"].endswith(".dora_scale")
    return replace(change, magnitude=length.flatten() if by_rows else length.flatten(1), over_base=over)


def _plain(
    entry: LayerKeys, down: Tensor, up: Tensor, alpha: float | None, told: Alphas, kernel: Sequence[int]
) -> Change:
    rank = down.shape[0]
    if entry.keys["down"].endswith(".lora_down") and kernel and down.dim() == 2:
        # the reference adds one number to all places of a kernel
        down = down.reshape(rank, -1, *(1,) * len(kernel)).expand(-1, -1, *kernel).contiguous()
    value = told.of(entry.layer[0], rank) if alpha is None else alpha
    return Change(value, down=down, up=up.flatten(1))


def _hadamard(has: Mapping[str, Tensor], alpha: float | None) -> Change:
    one, two = (has["hada_w1_a"], has["hada_w1_b"]), (has["hada_w2_a"], has["hada_w2_b"])
    if "hada_t1" not in has:
        return hadamard(one, two, alpha)
    scale = 1.0 if alpha is None else alpha / one[1].shape[0]
    return Change(dense=scale * tucker(has["hada_t1"], *one) * tucker(has["hada_t2"], *two))


def _kronecker(has: Mapping[str, Tensor], alpha: float | None) -> Change:
    one = [has["lokr_w1"]] if "lokr_w1" in has else [has["lokr_w1_a"], has["lokr_w1_b"]]
    if "lokr_w2" in has:
        return kronecker(one, [has["lokr_w2"]], alpha)
    two = [has["lokr_w2_a"], has["lokr_w2_b"]]
    if "lokr_t2" not in has:
        return kronecker(one, two, alpha)
    rank = two[1].shape[0]
    change = kronecker(one, [tucker(has["lokr_t2"], *two)], None)
    assert change.dense is not None
    return Change(dense=change.dense * (1.0 if alpha is None else alpha / rank))


def _words(fit: Fit, tensors: Mapping[str, Tensor]) -> Words | None:
    if "" in fit.embeddings:
        ids = tensors.get("embeddings.indices", torch.zeros(0))
        return Words(tensors[fit.embeddings[""]].float(), ids=tuple(int(each) for each in ids))
    single = {name: tensors[key] for name, key in fit.embeddings.items() if len(tensors[key]) == 1}
    if not single:
        return None
    return Words(
        torch.cat(list(single.values())).float(), tuple(re.sub(r"[\s\[\]<>]", "", name) for name in single)
    )
