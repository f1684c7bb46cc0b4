"""All weights of a part as files: in Stable Cascade's own layout, as one of ComfyUI's checkpoints with all
that goes with it, as a folder that diffusers opens.

Tensors come by their names in a module and are made when they are written (`tensor_file.Later`), so that
beside what is trained no second copy of a network is in memory.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.files import write_json
from cascade_train.host.progress import nothing
from cascade_train.models import applied, build, compressor, layouts, library, weights
from cascade_train.models.spec import ModelsSpec, Part
from cascade_train.models.tensor_file import Later

Named = Mapping[str, Later]

TOGETHER: Mapping[Part, tuple[tuple[Part, str], ...]] = {
    "stage_c": (
        ("text", "text_encoder.clip_g.transformer."),
        ("compressor", "vae.encoder."),
        ("previewer", "vae.previewer."),
        ("image", "clip_l_vision."),
    ),
    "stage_b": (("text", "text_encoder.clip_g.transformer."), ("stage_a", "vae.")),
}
"""What ComfyUI's two checkpoints hold beside Stage C and B, and what stands before its names there."""

NETWORK = "model.diffusion_model."
_ARCHITECTURES = {"stage_c": "stable-cascade-stage-c", "stage_b": "stable-cascade-stage-b"}
_TABLE = "text_model.embeddings.token_embedding.weight"


def write_native(
    path: Path,
    part: Part,
    tensors: Named,
    config: Mapping[str, Any] | None,
    dtype: torch.dtype,
    *,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> None:
    """Write one part as the official files hold it; ComfyUI's *Load Diffusion Model* and *Load VAE* take it.

    Raises:
        CascadeError: the disk is full.
    """
    own = native_tensors(part, tensors, dtype)
    weights.write_tensors(path, own, config, metadata={**_about(part), **(metadata or {})}, check=check)


def native_tensors(part: Part, tensors: Named, dtype: torch.dtype) -> dict[str, Later]:
    """What `write_native` writes, by its names."""
    return _cast(_native(tensors, split=False) if part in _ARCHITECTURES else tensors, dtype)


def write_checkpoint(
    path: Path,
    part: Part,
    models: ModelsSpec,
    tensors: Mapping[str, Named],
    dtype: torch.dtype,
    *,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> None:
    """Write Stage C or B with the encoders and the compressor that belong to it, as ComfyUI saves such a
    checkpoint and its *Load Checkpoint* reads it; of Stage C also its *unCLIPCheckpointLoader*.

    Args:
        part: ``stage_c`` or ``stage_b``.
        models: where parts come from that ``tensors`` has not, as stored; runs that are applied are worked
            in. Words that a run has added have no place in such a file and are left out.
        tensors: parts by their name. They are written in ``dtype``, and so is the network.

    Raises:
        CascadeError: ``part`` has no such file, a part of it is missing, or the disk is full.
    """
    whole = checkpoint_tensors(part, models, tensors, dtype)
    weights.write_tensors(path, whole, metadata={**_about(part), **(metadata or {})}, check=check)


def checkpoint_tensors(
    part: Part, models: ModelsSpec, tensors: Mapping[str, Named], dtype: torch.dtype
) -> dict[str, Later]:
    """What `write_checkpoint` writes, by its names; raises as that does."""
    if part not in TOGETHER:
        raise CascadeError(
            f"ComfyUI has no checkpoint of {part} alone",
            fix="Choose the format ComfyUI, which writes a file of its own for each part",
        )
    network = _native(tensors[part] if part in tensors else stored(models, part), split=True)
    whole = {NETWORK + name: value for name, value in _cast(network, dtype).items()}
    for other, prefix in TOGETHER[part]:
        if other in tensors:
            own: Named = _cast(tensors[other], dtype)
        elif library.has(models, other) or other in library.REQUIRED:
            own = stored(models, other)
        else:
            continue
        if other == "text":
            own = _own_words(own, models)
        whole |= {prefix + name: value for name, value in own.items()}
        if other == "compressor":  # ComfyUI keeps them among its weights
            for name, numbers in (("mean", compressor.MEAN), ("std", compressor.STD)):
                whole[prefix + name] = Later.of(torch.tensor(numbers))
    return whole


def write_diffusers(
    folder: Path,
    part: Part,
    tensors: Named,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> None:
    """Write Stage C or B as a folder that ``StableCascadeUNet.from_pretrained`` opens.

    Raises:
        CascadeError: another part, a file of that name, or the disk is full.
    """
    if folder.exists() and not folder.is_dir():
        raise CascadeError(f"{folder.name} is a file", where=str(folder), fix="Choose another filename")
    if part not in _ARCHITECTURES:
        raise CascadeError(
            f"diffusers has no {part} of this layout", where=str(folder), fix="Choose the format ComfyUI"
        )
    about = {
        "_class_name": "StableCascadeUNet",
        "_diffusers_version": importlib.metadata.version("diffusers"),
    }
    file = folder / "diffusion_pytorch_model.safetensors"
    own = _cast(tensors, dtype)
    weights.write_tensors(file, own, metadata={**_about(part), **(metadata or {})}, check=check)
    write_json(folder / "config.json", {**about, **config})


def now(tensors: Mapping[str, Tensor], part: str) -> dict[str, Later]:
    """The tensors of ``part`` in a trained state, by their names in its module."""
    start = part + "."
    return {name[len(start) :]: Later.of(value) for name, value in tensors.items() if name.startswith(start)}


def stored(models: ModelsSpec, part: Part) -> dict[str, Later]:
    """``part`` of the models by names in its module: as its file has it, or with applied runs worked in.

    Raises:
        CascadeError: there is no such part, or an applied run does not fit it.
    """
    if any(applied.touches(run, part) for run in models.applied):
        made = library.own_copy(models, part).state_dict()
        return {name: Later.of(value) for name, value in made.items()}
    return build.stored(library.part_file(models, part))


def config_of(models: ModelsSpec, part: Part, tensors: Named) -> dict[str, Any] | None:
    """The configuration of a network with these ``tensors``: that of the models' own file if it fits them,
    else read off the shapes; None where neither is possible."""
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    if library.has(models, part):
        config, _ = build.described(library.part_file(models, part))
        with torch.device("meta"):
            wanted = build.build(part, config).state_dict()
        if {name: list(value.shape) for name, value in wanted.items()} == shapes:
            return config
    if part not in _ARCHITECTURES:
        return None
    return layouts.unet_config({name: list(value.shape) for name, value in _native(tensors, False).items()})


def _native(tensors: Named, split: bool) -> dict[str, Later]:
    out = {}
    for name, sources in layouts.native_names(tensors, split):
        parts = [tensors[each] for each in sources]
        out[name] = parts[0] if len(parts) == 1 else _joined(parts)
    return out


def _joined(parts: list[Later]) -> Later:
    first = parts[0]
    rows = sum(part.shape[0] for part in parts)
    return Later((rows, *first.shape[1:]), first.dtype, lambda: torch.cat([part.make() for part in parts]))


def _cast(tensors: Named, dtype: torch.dtype) -> dict[str, Later]:
    return {name: value.to(dtype) for name, value in tensors.items()}


def _own_words(text: Named, models: ModelsSpec) -> dict[str, Later]:
    """``text`` without the rows of words that its vocabulary does not have, which runs have added."""
    words = int(build.described(library.part_file(models, "text"))[0]["vocab_size"])
    table = text[_TABLE]
    if table.shape[0] <= words:
        return dict(text)
    fewer = replace(table, shape=(words, *table.shape[1:]), make=lambda: table.make()[:words])
    return {**text, _TABLE: fewer}


def _about(part: str) -> dict[str, str]:
    """What the Stability AI Model Metadata Standard asks for."""
    if part not in _ARCHITECTURES:
        return {}
    return {"modelspec.sai_model_spec": "1.0.0", "modelspec.architecture": _ARCHITECTURES[part]}
