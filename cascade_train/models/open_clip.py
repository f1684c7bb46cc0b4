"""OpenCLIP's names of CLIP's tensors (github.com/mlfoundations/open_clip), and those of Hugging Face.

A block's three projections are one ``in_proj`` there, and the last projection multiplies from the other side.
The values may be tensors or shapes: nothing heavy is imported.
"""

from __future__ import annotations

import re

from cascade_train.models.spec import Part

_OUTER: dict[Part, dict[str, str]] = {
    "text": {
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "ln_final.weight": "text_model.final_layer_norm.weight",
        "ln_final.bias": "text_model.final_layer_norm.bias",
        "text_projection": "text_projection.weight",
    },
    "image": {
        "class_embedding": "vision_model.embeddings.class_embedding",
        "conv1.weight": "vision_model.embeddings.patch_embedding.weight",
        "positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "ln_pre.weight": "vision_model.pre_layrnorm.weight",
        "ln_pre.bias": "vision_model.pre_layrnorm.bias",
        "ln_post.weight": "vision_model.post_layernorm.weight",
        "ln_post.bias": "vision_model.post_layernorm.bias",
        "proj": "visual_projection.weight",
    },
}
_STEM: dict[Part, str] = {"text": "text_model.encoder.layers.", "image": "vision_model.encoder.layers."}
_INNER = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
_BLOCK = re.compile(r"transformer\.resblocks\.(\d+)\.(.+?)[._](weight|bias)$")

TURNED = ("text_projection", "proj")
"""Matrices that are stored the other way round."""


def own_names(part: Part, name: str) -> tuple[str, ...]:
    """What the tensor ``name`` of OpenCLIP's encoder is called: one name, three for a fused ``in_proj`` (cut
    along its rows), none for a tensor that is not OpenCLIP's."""
    outer = _OUTER[part].get(name)
    if outer is not None:
        return (outer,)
    found = _BLOCK.match(name)
    if found is None:
        return ()
    number, layer, kind = found.groups()
    if layer == "attn.in_proj":
        return tuple(f"{_STEM[part]}{number}.self_attn.{each}_proj.{kind}" for each in "qkv")
    return (f"{_STEM[part]}{number}.{_INNER[layer]}.{kind}",) if layer in _INNER else ()


def own_shapes(part: Part, name: str, shape: list[int]) -> dict[str, list[int]]:
    """The shapes of `own_names`; the tensor's own name where it is not OpenCLIP's."""
    names = own_names(part, name)
    if not names:
        return {name: shape}
    if name in TURNED:
        shape = shape[::-1]
    return {each: [shape[0] // len(names), *shape[1:]] for each in names}
