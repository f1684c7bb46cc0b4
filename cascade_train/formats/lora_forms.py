"""LoRA files for other programs, of whatever was read from one: ComfyUI, kohya, peft and the reference.

All hold the same changes exactly; a form that cannot hold one says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.files import write_json
from cascade_train.formats.lora import COMFY_PREFIX, write_token
from cascade_train.formats.names import token_names, word
from cascade_train.host.progress import nothing
from cascade_train.models.layouts import split_name
from cascade_train.models.loras.change import Change, fused
from cascade_train.models.loras.fit import kind_of_layer
from cascade_train.models.loras.networks import Layer
from cascade_train.models.loras.reading import OVER_BASE, Changes, Module
from cascade_train.models.spec import Part
from cascade_train.models.weights import write_tensors

FORMS = ("comfyui", "kohya", "peft", "official")
TEXT_PREFIX = "lora_te_"
TEXT_PROJECTION = "lora_prior_te_text_projection"
"""What ComfyUI calls the text encoder's projection; there is no shorter name for it."""

_PEFT_PREFIXES: Mapping[Part, str] = {"stage_c": "prior.", "text": "text_encoder."}

Weight = Callable[[Part, str], Tensor]
"""The weight of a module of a part by name."""


def write_form(
    path: Path,
    changes: Changes,
    form: str,
    *,
    weight: Weight | None = None,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> tuple[Path, ...]:
    """Write ``changes`` to ``path`` in one of `FORMS`; everything that was written, the main thing first.

    peft makes a folder where the name has no ending ``.safetensors``, and else a file with its names. New
    words become files of their own beside (`formats.lora.write_token`), but for the reference, whose files
    hold them.

    Args:
        weight: needed where a DoRA goes from ComfyUI's formula to another one, or there.

    Raises:
        CascadeError: the form cannot hold these changes; the disk is full.
    """
    if form not in FORMS:
        raise CascadeError(f"no form of LoRA files is called '{form}'", fix=f"Use one of {', '.join(FORMS)}")
    about = {
        "modelspec.architecture": "stable-cascade-stage-c/lora",
        **{key: value for key, value in (metadata or {}).items() if key not in (OVER_BASE, "format")},
    }
    if form == "official":
        write_tensors(path, official_tensors(changes), metadata=about, check=check)
        return (path,)
    if form == "peft":
        return (*_peft(path, changes, weight, about, check), *_words(path, changes, about))
    tensors = named_tensors(changes, form, weight)
    rank = max(changes.ranks)
    about |= {"ss_network_dim": str(rank), "ss_network_module": "networks.lora"}
    about |= {"ss_network_alpha": str(max((each.alpha for each in changes.layers.values()), default=rank))}
    about[OVER_BASE] = "base" if form == "comfyui" else "changed"
    write_tensors(path, tensors, metadata=about, check=check)
    return (path, *_words(path, changes, about))


def named_tensors(changes: Changes, form: str, weight: Weight | None = None) -> dict[str, Tensor]:
    """``changes`` under kohya's names on ComfyUI's split layers, which ComfyUI loads all of."""
    out: dict[str, Tensor] = {}
    for (part, module), change in changes.layers.items():
        stem = COMFY_PREFIX + split_name(module).replace(".", "_")
        if part == "text":
            stem = TEXT_PREFIX + module.replace(".", "_")
            stem = TEXT_PROJECTION if module == "text_projection" else stem
        if change.dense is not None:
            out[f"{stem}.diff"] = change.dense
        else:
            assert change.down is not None and change.up is not None
            kernel = (1,) * (change.down.dim() - 2)
            out[f"{stem}.lora_down.weight"] = change.down
            out[f"{stem}.lora_up.weight"] = change.up.reshape(*change.up.shape[:2], *kernel)
            out[f"{stem}.alpha"] = torch.tensor(change.alpha)
        if change.magnitude is not None:
            shape = changes.network(part).shapes[module]
            out[f"{stem}.dora_scale"] = _magnitude((part, module), change, form == "comfyui", weight, shape)
    return out


def _magnitude(
    place: Module, change: Change, over_base: bool, weight: Weight | None, shape: tuple[int, ...]
) -> Tensor:
    """``dora_scale`` for ComfyUI (``over_base``), or as trainers define it."""
    assert change.magnitude is not None
    length = change.magnitude
    if length.dim() == 1 and change.over_base != over_base:
        length = length.float() * lengths_ratio(place, change, weight) ** (1 if over_base else -1)
    tail = (1,) * (len(shape) - 2)
    if length.dim() == 1:
        return length.reshape(-1, 1, *tail)
    return length.reshape(1, -1, *tail) if length.numel() == shape[1] else length.reshape(1, *shape[1:])


def lengths_ratio(place: Module, change: Change, weight: Weight | None) -> Tensor:
    """Lengths of W's rows over those of the changed weight's."""
    if weight is None:
        raise CascadeError(
            "ComfyUI computes DoRA by another formula than trainers do: converting one takes the weights",
            fix="Give the Stage C that it was trained for (--models FILE)",
        )
    base = weight(*place).float().flatten(1)
    return base.norm(dim=1) / (base + change.delta()).norm(dim=1)


def _peft(
    path: Path, changes: Changes, weight: Weight | None, about: Mapping[str, str], check: Callable[[], object]
) -> tuple[Path, ...]:
    dense = [module for (_, module), change in changes.layers.items() if change.dense is not None]
    if dense:
        raise CascadeError(
            f"peft's LoRAs hold no change of full rank, as that of '{dense[0]}' and {len(dense) - 1} more is",
            fix="Give it a rank first: cascade-train lora resize FILE OUT --rank 64",
        )
    if path.suffix == ".safetensors":
        tensors: dict[str, Tensor] = {}
        for part, prefix in _PEFT_PREFIXES.items():
            own = _peft_tensors(part, changes.of(part), weight)
            tensors |= {prefix + name: value for name, value in own.items()}
        alphas = {change.alpha / change.rank for change in changes.layers.values()}
        if alphas - {1.0}:  # such a file has no place for alpha that all readers know
            tensors = _folded(changes, tensors)
        write_tensors(path, tensors, metadata=about, check=check)
        return (path,)
    written = []
    for part, folder in zip(_PEFT_PREFIXES, (path, path.with_name(path.name + "-text"))):
        layers = changes.of(part)
        if layers:
            _peft_folder(folder, part, layers, weight, about, check)
            written.append(folder)
    return tuple(written)


def _peft_tensors(part: Part, layers: Mapping[str, Change], weight: Weight | None) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for module, change in layers.items():
        assert change.down is not None and change.up is not None
        kernel = (1,) * (change.down.dim() - 2)
        out[f"{module}.lora_A.weight"] = change.down
        out[f"{module}.lora_B.weight"] = change.up.reshape(*change.up.shape[:2], *kernel)
        if change.magnitude is not None:
            if change.magnitude.dim() > 1:
                raise CascadeError(
                    f"peft's DoRA has lengths of rows, and '{module}' has those of columns",
                    fix="Convert to comfyui or kohya, or extract a LoRA",
                )
            length = change.magnitude
            if change.over_base:
                length = length.float() / lengths_ratio((part, module), change, weight)
            out[f"{module}.lora_magnitude_vector"] = length.reshape(1, -1, *kernel) if kernel else length
    return out


def _folded(changes: Changes, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out = dict(tensors)
    for (part, module), change in changes.layers.items():
        name = f"{_PEFT_PREFIXES[part]}{module}.lora_B.weight"
        out[name] = out[name].float() * change.scale
    return out


def _peft_folder(
    folder: Path,
    part: Part,
    layers: Mapping[str, Change],
    weight: Weight | None,
    about: Mapping[str, str],
    check: Callable[[], object],
) -> None:
    if folder.exists() and not folder.is_dir():
        raise CascadeError(f"{folder.name} is a file", where=str(folder), fix="Choose another name")
    first = next(iter(layers.values()))
    tensors = {
        f"base_model.model.{name}": value for name, value in _peft_tensors(part, layers, weight).items()
    }
    write_tensors(folder / "adapter_model.safetensors", tensors, metadata=about, check=check)
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "rank_pattern": {name: each.rank for name, each in layers.items() if each.rank != first.rank},
        "alpha_pattern": {name: each.alpha for name, each in layers.items() if each.alpha != first.alpha},
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": list(layers),
        "modules_to_save": None,
        "use_dora": any(each.magnitude is not None for each in layers.values()),
    }
    write_json(folder / "adapter_config.json", json.loads(json.dumps(config)))


def official_tensors(changes: Changes) -> dict[str, Tensor]:
    """``changes`` as the reference saves them: layers counted in the network's order, q, k and v fused, all
    of one rank R with scale 1 / R; layers between without a change are zeros.

    Raises:
        CascadeError: changes of the text encoder's layers, DoRA, changes of full rank, kernels, or words
            that are given whole.
    """
    if changes.of("text"):
        raise CascadeError(
            "the reference's LoRAs hold no layers of the text encoder",
            fix="Convert to comfyui, kohya or peft",
        )
    network, layers = changes.network("stage_c"), changes.of("stage_c")
    for module, change in layers.items():
        if change.magnitude is not None or change.dense is not None:
            what = "DoRA" if change.magnitude is not None else "change of full rank"
            raise CascadeError(
                f"the reference's LoRAs hold no {what}, as that of '{module}' is",
                fix="Make a plain LoRA first: cascade-train lora resize or extract",
            )
        if any(side > 1 for side in network.shapes[module][2:]):
            raise CascadeError(
                f"the reference's LoRAs hold no kernels, as '{module}' has", fix="Convert to comfyui or kohya"
            )
    kinds = {kind_of_layer(module) for module in layers}
    places = [layer for layer in network.in_order() if kind_of_layer(layer[0]) in kinds]
    whole = [_official_change(layer, layers, network.shapes[layer[0]]) for layer in places]
    rank = max((change.rank for change in whole), default=1)
    out: dict[str, Tensor] = {}
    for number, change in enumerate(whole):
        assert change.down is not None and change.up is not None
        down, up = change.down.float().flatten(1), change.up.float() * change.scale * rank
        out[f"weights.{number}.lora_down"] = torch.cat(
            [down, down.new_zeros(rank - len(down), down.shape[1])]
        )
        out[f"weights.{number}.lora_up"] = torch.cat([up, up.new_zeros(len(up), rank - up.shape[1])], dim=1)
    words = changes.words
    if words is not None and not words.ids:
        raise CascadeError(
            "the reference's LoRAs hold what is added to a word's start, and these words are given whole",
            fix="Give the text encoder and how each word started (--text, --word)",
        )
    width = words.rows.shape[1] if words is not None else 1280
    out["embeddings.embeddings"] = words.rows if words is not None else torch.zeros(0, width)
    out["embeddings.indices"] = torch.tensor(words.ids if words is not None else (), dtype=torch.int64)
    return out


def _official_change(layer: Layer, layers: Mapping[str, Change], shape: tuple[int, ...]) -> Change:
    there = [layers.get(module) for module in layer]
    rows, columns = shape[0], shape[1]
    if all(each is None for each in there):
        return Change(1.0, down=torch.zeros(1, columns), up=torch.zeros(rows * len(layer), 1))
    flat = [None if each is None else replace(each, down=each.down.flatten(1)) for each in there]  # type: ignore[union-attr]
    return fused(flat, rows, (columns,)) if len(layer) == 3 else flat[0]  # type: ignore[return-value]


def _words(path: Path, changes: Changes, about: Mapping[str, str]) -> tuple[Path, ...]:
    """New words as embedding files beside ``path``."""
    words = changes.words
    if words is None or not words.names:
        return ()
    stem = path.name.removesuffix(".safetensors")
    written = []
    for name, shown, row in zip(words.names, token_names(words.names), words.rows):
        beside = path.with_name(f"{stem}-{shown}.safetensors")
        write_token(beside, word(name), row.unsqueeze(0), about)
        written.append(beside)
    return tuple(written)
