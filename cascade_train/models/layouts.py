"""Tensor names: official ("native") files, ComfyUI's split form and diffusers' StableCascadeUNet, and the
network's configuration read off the shapes.

They differ in the attention projections (native: one fused ``in_proj``) and in the name of Stage B's text
mapper; everything else is called the same. No tensor library is imported here: the values may be
tensors, shapes or anything else that the given functions can cut and join.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from torch import Tensor

PREFIXES = ("model.diffusion_model.", "diffusion_model.")
Shapes = Mapping[str, Sequence[int]]


def without_prefix(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """``tensors`` without the prefix of all-in-one checkpoints; tensors without it are dropped then."""
    for prefix in PREFIXES:
        found = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
        if found:
            return found
    return dict(tensors)


def to_diffusers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Native (fused or split) tensors of Stage C or B under diffusers' names."""
    return {
        name: part
        for key, value in without_prefix(tensors).items()
        for name, part in in_diffusers(key, value)
    }


def in_diffusers(key: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What a native tensor is in diffusers: itself, or the three parts of a fused ``in_proj``."""
    if ".attention.attn.in_proj_" in key:
        stem, kind = key.split(".attention.attn.in_proj_")
        for name, third in zip("qkv", value.chunk(3, dim=0)):
            yield f"{stem}.attention.to_{name}.{kind}", third
    else:
        yield diffusers_name(key), value


def diffusers_name(key: str) -> str:
    """diffusers' name for a native tensor or module that is not the fused ``in_proj``."""
    key = key.replace(".attention.attn.out_proj", ".attention.to_out.0")
    key = re.sub(r"\.attention\.attn\.to_([qkv])", r".attention.to_\1", key)
    return re.sub(r"^clip_mapper\.", "clip_txt_pooled_mapper.", key)


def split_name(module: str) -> str:
    """The name that a module of diffusers' Stage C has in ComfyUI and, attention fused, in official files."""
    module = module.replace(".attention.to_out.0", ".attention.attn.out_proj")
    return re.sub(r"\.attention\.to_([qkv])", r".attention.attn.to_\1", module)


def to_native(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' tensors of Stage C or B under native names, attention fused."""
    import torch

    return {
        name: tensors[first] if not others else torch.cat([tensors[each] for each in (first, *others)])
        for name, (first, *others) in native_names(tensors)
    }


def native_names(names: Collection[str], split: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The native names of diffusers' ``names`` of Stage C or B, each with those whose tensors make it up,
    their rows one after another: three for a fused ``in_proj``, else one.

    ``split`` keeps q, k and v apart, as ComfyUI saves them.
    """
    stage_b = "clip_txt_mapper.weight" not in names
    for key in names:
        found = re.search(r"\.attention\.to_([qkv])\.", key)
        if found and split:
            yield key.replace(found[0], f".attention.attn.to_{found[1]}."), (key,)
        elif found and found[1] == "q":
            parts = (key.replace(found[0], f".attention.to_{letter}.") for letter in "qkv")
            yield key.replace(".attention.to_q.", ".attention.attn.in_proj_"), tuple(parts)
        elif not found:
            name = key.replace(".attention.to_out.0", ".attention.attn.out_proj")
            if stage_b:
                name = re.sub(r"^clip_txt_pooled_mapper\.", "clip_mapper.", name)
            yield name, (key,)


def stage_of(shapes: Shapes) -> str:
    """``stage_c`` or ``stage_b``, by the tensors that only one of them has.

    Raises:
        CascadeError: neither.
    """
    keys = without_prefix(shapes)
    if "clip_txt_mapper.weight" in keys and "clf.1.weight" in keys:
        return "stage_c"
    if "effnet_mapper.0.weight" in keys and "clf.1.weight" in keys:
        return "stage_b"
    raise CascadeError(
        "this file holds neither Stage C nor Stage B of Stable Cascade",
        fix="Use the official stage_c or stage_b safetensors (native layout)",
    )


def unet_config(shapes: Shapes) -> dict[str, Any]:
    """The arguments of diffusers' StableCascadeUNet for a native file with these tensors.

    What shapes do not show follows the official files: 64 channels a head, dropout 0.1, 4 latent channels
    for Stage B and 16 for Stage C.
    """
    shapes = without_prefix(shapes)
    stage = stage_of(shapes)
    levels = 1 + max(int(m[1]) for key in shapes if (m := re.match(r"down_blocks\.(\d+)\.", key)))
    widths = [int(shapes[f"down_blocks.{level}.0.depthwise.weight"][0]) for level in range(levels)]
    types, down = zip(*(_blocks(shapes, "down_blocks", level) for level in range(levels)))
    up = [_blocks(shapes, "up_blocks", level)[1] for level in range(levels)]
    # diffusers gives Stage B's the name that Stage C's has
    pooled = "clip_mapper" if "clip_mapper.weight" in shapes else "clip_txt_pooled_mapper"
    conditioning = next(int(shape[1]) for key, shape in shapes.items() if key.endswith("kv_mapper.1.weight"))
    in_channels = 16 if stage == "stage_c" else 4
    switched = stage == "stage_c" and "down_downscalers.1.1.blocks.0.weight" in shapes
    timestep = next(key for key in shapes if key.endswith(".mapper.weight"))
    conditions = [
        name for name in ("sca", "crp") if timestep.replace(".mapper.", f".mapper_{name}.") in shapes
    ]
    attends = ["SDCascadeAttnBlock" in level for level in types]
    return {
        "in_channels": in_channels,
        "out_channels": in_channels,
        "timestep_ratio_embedding_dim": int(shapes[timestep][1]),
        "patch_size": math.isqrt(int(shapes["embedding.1.weight"][1]) // in_channels),
        "conditioning_dim": conditioning,
        "block_out_channels": widths,
        "num_attention_heads": [max(width // 64, 1) if has else -1 for width, has in zip(widths, attends)],
        "down_num_layers_per_block": list(down),
        "up_num_layers_per_block": up,
        "down_blocks_repeat_mappers": [_repeats(shapes, "down", level) for level in range(levels)],
        "up_blocks_repeat_mappers": [_repeats(shapes, "up", level) for level in range(levels)],
        "block_types_per_layer": [list(level) for level in types],
        "clip_text_in_channels": int(shapes["clip_txt_mapper.weight"][1]) if stage == "stage_c" else None,
        "clip_text_pooled_in_channels": int(shapes[f"{pooled}.weight"][1]),
        "clip_image_in_channels": int(shapes["clip_img_mapper.weight"][1])
        if "clip_img_mapper.weight" in shapes
        else None,
        "clip_seq": int(shapes[f"{pooled}.weight"][0]) // conditioning,
        "effnet_in_channels": int(shapes["effnet_mapper.0.weight"][1])
        if "effnet_mapper.0.weight" in shapes
        else None,
        "pixel_mapper_in_channels": int(shapes["pixels_mapper.0.weight"][1])
        if "pixels_mapper.0.weight" in shapes
        else None,
        "kernel_size": int(shapes["down_blocks.0.0.depthwise.weight"][-1]),
        "dropout": [0.1 if has or stage == "stage_c" else 0.0 for has in attends],
        "self_attn": True,
        "timestep_conditioning_type": conditions,
        "switch_level": [False] * (levels - 1) if switched else None,
    }


def _blocks(shapes: Shapes, side: str, level: int) -> tuple[tuple[str, ...], int]:
    """The block types of one layer of a level, and how many layers it has."""
    signs = (
        ("depthwise.weight", "SDCascadeResBlock"),
        ("mapper.weight", "SDCascadeTimestepBlock"),
        ("kv_mapper.1.weight", "SDCascadeAttnBlock"),
    )
    kinds: list[str] = []
    while True:
        stem = f"{side}.{level}.{len(kinds)}."
        kind = next((name for sign, name in signs if stem + sign in shapes), None)
        if kind is None:
            break
        kinds.append(kind)
    if not kinds:
        raise CascadeError(f"{side}.{level} holds no blocks", fix="The file is incomplete; download it again")
    period = next((i for i in range(1, len(kinds)) if kinds[i] == kinds[0]), len(kinds))
    return tuple(kinds[:period]), len(kinds) // period


def _repeats(shapes: Shapes, side: str, level: int) -> int:
    pattern = re.compile(rf"{side}_repeat_mappers\.{level}\.(\d+)\.weight$")
    return 1 + sum(1 for key in shapes if pattern.match(key))


def factor_of(blocks: Sequence[Sequence[Any]]) -> int:
    """Pixels that a latent of a compressor with these ``blocks`` spans: the product of all strides; the first
    convolution halves too."""
    factor = 2
    for row in blocks:
        factor *= int(row[3])
    return factor
