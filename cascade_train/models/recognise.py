"""What a safetensors file holds, told from the names and shapes in its header; never from its own name.

Imports nothing heavy: lists of files and checks before a run ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cascade_train.models.spec import Part

Shapes = Mapping[str, Sequence[int]]

PREFIXES: dict[Part, tuple[str, ...]] = {
    "stage_c": ("", "model.diffusion_model.", "diffusion_model."),
    "stage_b": ("", "model.diffusion_model.", "diffusion_model."),
    "stage_a": ("", "vae."),
    "compressor": ("", "vae.encoder.", "encoder."),
    "previewer": ("", "vae.previewer.", "previewer."),
    "text": ("", "text_encoder.clip_g.transformer.", "clip_g.transformer.", "text_encoder."),
    "image": ("", "clip_l_vision."),
}
"""What may stand before a part's names: nothing in its own file, the rest in ComfyUI's all-in-one checkpoints
and in the files that ComfyUI saves."""

NAMES: dict[Part, str] = {
    "stage_c": "Stage C",
    "stage_b": "Stage B",
    "stage_a": "Stage A",
    "compressor": "the semantic compressor (EffNet)",
    "previewer": "the previewer",
    "text": "a CLIP text encoder",
    "image": "a CLIP image encoder",
}


@dataclass(frozen=True)
class FoundPart:
    """A part in a file, and what stands before its names there."""

    part: Part
    prefix: str


def parts_in(shapes: Shapes) -> tuple[FoundPart, ...]:
    """The parts of a Stable Cascade that a file with these tensors holds; () when it holds none."""
    found = []
    for part, prefixes in PREFIXES.items():
        for prefix in prefixes:
            if _MARKS[part](shapes, prefix):
                found.append(FoundPart(part, prefix))
                break
    return tuple(found)


def what(shapes: Shapes) -> str:
    """What a file with these tensors is, in words that follow "the file holds"."""
    found = parts_in(shapes)
    if found:
        return " and ".join(_named(each, shapes) for each in found)
    return next((text for text, marks in _FOREIGN if _some(shapes, marks)), "no model that is known here")


def _named(found: FoundPart, shapes: Shapes) -> str:
    sizes = {"stage_c": {2048: " (3.6B)", 1536: " (1B)"}, "stage_b": {320: ""}}
    width = _shape(shapes, found.prefix + "down_blocks.0.0.depthwise.weight")
    detail = sizes.get(found.part, {}).get(width[0], "") if width else ""
    if found.part == "text":
        table = _shape(shapes, found.prefix + "text_model.embeddings.token_embedding.weight")
        detail = f" of width {table[1]}" if len(table) == 2 else ""
    return NAMES[found.part] + detail


def _shape(shapes: Shapes, name: str) -> Sequence[int]:
    return shapes.get(name, ())


def _stage_c(shapes: Shapes, prefix: str) -> bool:
    return prefix + "clip_txt_mapper.weight" in shapes and prefix + "clf.1.weight" in shapes


def _stage_b(shapes: Shapes, prefix: str) -> bool:
    return prefix + "effnet_mapper.0.weight" in shapes and prefix + "clf.1.weight" in shapes


def _stage_a(shapes: Shapes, prefix: str) -> bool:
    books = (prefix + "vquantizer.codebook.weight", prefix + "vquantizer.embedding.weight")
    return any(book in shapes for book in books) and prefix + "in_block.1.weight" in shapes


def _compressor(shapes: Shapes, prefix: str) -> bool:
    return prefix + "backbone.0.0.weight" in shapes and prefix + "mapper.0.weight" in shapes


def _previewer(shapes: Shapes, prefix: str) -> bool:
    first = _shape(shapes, prefix + "blocks.0.weight")
    return len(first) == 4 and list(first[1:]) == [16, 1, 1] and prefix + "blocks.2.running_mean" in shapes


def _text(shapes: Shapes, prefix: str) -> bool:
    return prefix + "text_model.embeddings.token_embedding.weight" in shapes


def _image(shapes: Shapes, prefix: str) -> bool:
    return prefix + "vision_model.embeddings.class_embedding" in shapes


_MARKS: dict[Part, Callable[[Shapes, str], bool]] = {
    "stage_c": _stage_c,
    "stage_b": _stage_b,
    "stage_a": _stage_a,
    "compressor": _compressor,
    "previewer": _previewer,
    "text": _text,
    "image": _image,
}

_FOREIGN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a LoRA", ("lora_", "hada_w1", "lokr_w", "dora_scale")),
    ("a ControlNet of Stable Cascade", ("projections.0.0.weight",)),
    ("a ControlNet of another model", ("control_model.", "controlnet_", "zero_convs.")),
    ("Flux or a model of its kind", ("double_blocks.", "single_transformer_blocks.")),
    ("Stable Diffusion 3 or a model of its kind", ("joint_blocks.", "joint_transformer_blocks")),
    ("SDXL", ("conditioner.embedders.", "label_emb.0.0.weight", "add_embedding.linear_1")),
    ("Stable Diffusion", ("input_blocks.", "cond_stage_model.", "mid_block.attentions")),
    ("Wuerstchen's prior", ("prior.",)),
    ("a T5 text encoder", ("encoder.block.0.layer",)),
    ("a CLIP text encoder in OpenCLIP's layout", ("transformer.resblocks.",)),
    ("a VAE of another model", ("decoder.conv_in.weight", "decoder.up_blocks.", "first_stage_model.")),
    ("text embeddings", ("string_to_param", "emb_params")),
)
"""What else lies in the same folders, by pieces of its tensors' names; the first that fits counts."""


def _some(shapes: Shapes, pieces: Sequence[str]) -> bool:
    return any(piece in name for name in shapes for piece in pieces)
