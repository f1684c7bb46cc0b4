"""LoRA files: the names that ComfyUI's loader knows, and the ones that peft does.

Tensors come and go under diffusers' module names, as a run keeps them: ``<module>.lora_A.weight`` (r, in),
``<module>.lora_B.weight`` (out, r) and, for DoRA, ``<module>.lora_magnitude_vector.weight`` (out,).
ComfyUI's are ``lora_unet_<native module, dots as underscores>.lora_down.weight`` / ``.lora_up.weight`` /
``.alpha`` / ``.dora_scale``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.files import write_json
from cascade_train.host.progress import nothing
from cascade_train.models.weights import read_header, read_tensors, write_tensors

COMFY_PREFIX = "lora_unet_"
COMFY_PREFIXES = (COMFY_PREFIX, "lora_prior_unet_")
DOWN, UP, MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector.weight"


@dataclass(frozen=True)
class LoRA:
    """Adapters of Stage C by diffusers' module names, each scaled by ``alpha`` / its rank."""

    tensors: Mapping[str, Tensor]
    alpha: float

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted(key[: -len(DOWN)] for key in self.tensors if key.endswith(DOWN)))

    @property
    def rank(self) -> int:
        return max((self.tensors[name + DOWN].shape[0] for name in self.modules), default=0)


def comfy_module(name: str) -> str:
    """``down_blocks.0.2.attention.to_q`` → ``lora_unet_down_blocks_0_2_attention_attn_to_q``."""
    name = name.replace(".attention.to_out.0", ".attention.attn.out_proj")
    name = re.sub(r"\.attention\.to_([qkv])$", r".attention.attn.to_\1", name)
    return COMFY_PREFIX + name.replace(".", "_")


def module_of_comfy(name: str) -> str:
    """The inverse of `comfy_module`, for the layers that Stage C has.

    Raises:
        CascadeError: no layer of Stage C is called so.
    """
    stem = next((name[len(prefix) :] for prefix in COMFY_PREFIXES if name.startswith(prefix)), None)
    block = re.fullmatch(r"(down_blocks|up_blocks)_(\d+)_(\d+)_(.+)", stem or "")
    if block:
        side, level, index, rest = block.groups()
        attention = re.fullmatch(r"attention_attn_(to_q|to_k|to_v|out_proj)", rest)
        numbered = re.fullmatch(r"(channelwise|kv_mapper)_(\d+)", rest)
        if attention:
            rest = "attention." + attention[1].replace("out_proj", "to_out.0")
        elif numbered:
            rest = f"{numbered[1]}.{numbered[2]}"
        return f"{side}.{level}.{index}.{rest}"
    other = re.fullmatch(r"(clip_(?:txt|txt_pooled|img)_mapper|.*?)((?:_\d+)*)", stem or "")
    if not stem or not other:
        raise CascadeError(f"'{name}' is no layer of Stage C")
    sampler = re.fullmatch(
        r"(down_downscalers|up_upscalers|down_repeat_mappers|up_repeat_mappers)_(.+)", stem
    )
    if sampler:
        return f"{sampler[1]}.{sampler[2].replace('_blocks_', '.blocks.').replace('_', '.')}"
    return other[1] + other[2].replace("_", ".")


def write_comfy(
    path: Path,
    lora: LoRA,
    *,
    precision: torch.dtype = torch.float32,
    base: Callable[[str], Tensor] | None = None,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> None:
    """Write ``lora`` as one file that ComfyUI's LoRA loaders read in full; see `comfy_tensors`."""
    about = {
        "modelspec.architecture": "stable-cascade-stage-c/lora",
        "ss_network_dim": str(lora.rank),
        "ss_network_alpha": str(lora.alpha),
        "ss_network_module": "networks.lora",
    }
    tensors = comfy_tensors(lora, precision, base)
    write_tensors(path, tensors, metadata={**about, **(metadata or {})}, check=check)


def comfy_tensors(
    lora: LoRA, precision: torch.dtype = torch.float32, base: Callable[[str], Tensor] | None = None
) -> dict[str, Tensor]:
    """``lora`` under the names that ComfyUI's LoRA loaders know, on the CPU in ``precision``.

    Args:
        base: the weight of a module by name; needed for DoRA, because ComfyUI divides by the lengths of W's
            rows where DoRA divides by those of W + ΔW. The difference is put into ``dora_scale``.

    Raises:
        CascadeError: a DoRA without ``base``.
    """
    out: dict[str, Tensor] = {}
    for name in lora.modules:
        down, up = lora.tensors[name + DOWN], lora.tensors[name + UP]
        stem = comfy_module(name)
        out[f"{stem}.lora_down.weight"] = down.to(precision)
        out[f"{stem}.lora_up.weight"] = up.to(precision)
        out[f"{stem}.alpha"] = torch.tensor(lora.alpha * down.shape[0] / lora.rank)
        magnitude = lora.tensors.get(name + MAGNITUDE)
        if magnitude is not None:
            if base is None:
                raise CascadeError("a DoRA cannot be written without its models", fix="Give the base weights")
            weight = base(name).float()
            whole = weight + lora.alpha / lora.rank * (up.float() @ down.float())
            ratio = weight.norm(dim=1) / whole.norm(dim=1)
            out[f"{stem}.dora_scale"] = (magnitude.float().cpu() * ratio.cpu()).unsqueeze(1).to(precision)
    return out


def read_comfy(path: Path) -> LoRA:
    """Read a file that `write_comfy` or another program with these names wrote (DoRA excepted).

    Raises:
        CascadeError: unknown or unpaired tensors; they are named.
    """
    tensors = read_tensors(path)
    out: dict[str, Tensor] = {}
    scales: dict[str, float] = {}
    unknown = []
    for key, value in tensors.items():
        stem, _, kind = key.partition(".")
        if not stem.startswith(COMFY_PREFIXES) or kind not in ("lora_down.weight", "lora_up.weight", "alpha"):
            unknown.append(key)
            continue
        name = module_of_comfy(stem)
        if kind == "alpha":
            scales[name] = float(value)
        else:
            out[name + (DOWN if kind.startswith("lora_down") else UP)] = value
    modules = {key.rsplit(".lora_", 1)[0] for key in out}
    unpaired = [name for name in modules if name + DOWN not in out or name + UP not in out]
    if unknown or unpaired or not modules:
        names = ", ".join([*unknown, *unpaired][:3])
        raise CascadeError(
            "this is not a LoRA of Stage C" + (f": {names} cannot be placed" if names else ""),
            where=str(path),
            fix="Choose a LoRA file for Stable Cascade's Stage C",
        )
    rank = max(out[name + DOWN].shape[0] for name in modules)
    for name in modules:
        own = out[name + DOWN].shape[0]
        # One alpha for all: what a layer has more or less goes into its up matrix.
        factor = (scales.get(name, own) / own) / 1.0
        out[name + UP] = out[name + UP] * factor if factor != 1.0 else out[name + UP]
    return LoRA(out, float(rank))


def write_peft(
    folder: Path,
    lora: LoRA,
    *,
    precision: torch.dtype = torch.float32,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> None:
    """Write ``lora`` as a folder that ``peft.PeftModel.from_pretrained(StableCascadeUNet, folder)`` reads.

    Raises:
        CascadeError: there is a file of that name, or the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CascadeError(f"{folder.name} is a file", where=str(folder), fix="Choose another filename")
    tensors = {
        f"base_model.model.{key.replace(MAGNITUDE, '.lora_magnitude_vector')}": value.to(precision)
        for key, value in lora.tensors.items()
    }
    write_tensors(folder / "adapter_model.safetensors", tensors, metadata=metadata, check=check)
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": None,
            "base_model_name_or_path": None,
            "inference_mode": True,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "init_lora_weights": True,
            "target_modules": list(lora.modules),
            "modules_to_save": None,
            "use_dora": any(key.endswith(MAGNITUDE) for key in lora.tensors),
        },
    )


def read_peft(folder: Path) -> LoRA:
    """Read a folder that `write_peft` or peft itself wrote for a StableCascadeUNet."""
    config_file = folder / "adapter_config.json"
    if not config_file.is_file():
        raise CascadeError("no adapter_config.json", where=str(folder), fix="Give a folder that peft saved")
    config = json.loads(config_file.read_text(encoding="utf-8"))
    tensors = {}
    for key, value in read_tensors(folder / "adapter_model.safetensors").items():
        name = key.removeprefix("base_model.model.")
        tensors[name + ".weight" if name.endswith(".lora_magnitude_vector") else name] = value
    return LoRA(tensors, float(config["lora_alpha"]))


def write_token(path: Path, name: str, rows: Tensor, metadata: Mapping[str, str] | None = None) -> None:
    """Write the embedding of one trained token, rows (n, width), as ComfyUI's ``embedding:`` files are."""
    write_tensors(path, {"clip_g": rows.float()}, metadata={"cascade_train.token": name, **(metadata or {})})


def read_token(path: Path) -> tuple[str, Tensor]:
    """(name, rows (n, width)) of a token file; the name is the file's own where it does not tell one."""
    _, metadata = read_header(path)
    tensors = read_tensors(path)
    if "clip_g" not in tensors:
        raise CascadeError(
            "this file holds no clip_g embedding",
            where=str(path),
            fix="Choose an embedding trained for Stable Cascade or SDXL",
        )
    return metadata.get("cascade_train.token", path.stem), tensors["clip_g"]
