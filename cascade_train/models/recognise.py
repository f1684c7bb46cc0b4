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
    "text": (
        "",
        "text_encoder.clip_g.transformer.",
        "clip_g.transformer.",
        "transformer.",
        "text_encoder.",
        "text_encoder.clip_g.",
        "clip_g.",
    ),
    "image": ("", "clip_l_vision.", "visual."),
}
"""What may stand before a part's names: nothing in its own file, the rest in ComfyUI's all-in-one checkpoints
and in the files that ComfyUI and OpenCLIP save."""

NAMES: dict[Part, str] = {
    "stage_c": "Stage C",
    "stage_b": "Stage B",
    "stage_a": "Stage A",
    "compressor": "the semantic compressor (EffNet)",
    "previewer": "the previewer",
    "text": "a CLIP text encoder",
    "image": "a CLIP image encoder",
}


_NOT_OWN: dict[Part, tuple[str, ...]] = {
    "text": ("vision_model.", "visual_projection.", "visual."),
    "image": ("text_model.", "text_projection"),
}


@dataclass(frozen=True)
class FoundPart:
    """A part in a file, and what stands before its names there."""

    part: Part
    prefix: str


def own_name(part: Part, prefix: str, name: str) -> str | None:
    """The name within ``part`` of a tensor of a file that has ``prefix`` before the part's names; None for
    one of something else.

    ComfyUI's checkpoints have CLIP's ``text_projection`` beside the ``transformer.`` that holds the rest.
    """
    if name.startswith(prefix):
        own = name[len(prefix) :]
    elif part == "text" and name == prefix.removesuffix("transformer.") + "text_projection":
        own = "text_projection"
    else:
        return None
    # one file of Hugging Face or OpenCLIP may hold both encoders
    return None if own.startswith(_NOT_OWN.get(part, ())) else own


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
    return (
        next((text for text, marks in _FOREIGN if _some(shapes, marks)), None)
        or _OTHER_TEXT.get(_text_width(shapes, ""))
        or next(
            (_OTHER_IMAGE[w] for p in ("", "visual.") if (w := _image_width(shapes, p)) in _OTHER_IMAGE), ""
        )
        or "no model that is known here"
    )


def _named(found: FoundPart, shapes: Shapes) -> str:
    sizes = {"stage_c": {2048: " (3.6B)", 1536: " (1B)"}, "stage_b": {320: ""}}
    width = _shape(shapes, found.prefix + "down_blocks.0.0.depthwise.weight")
    detail = sizes.get(found.part, {}).get(width[0], "") if width else ""
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
    width = _text_width(shapes, prefix)
    return bool(width) and width not in _OTHER_TEXT


def _text_width(shapes: Shapes, prefix: str) -> int:
    """Channels of the CLIP text encoder at ``prefix``; 0 where there is none."""
    table = _shape(shapes, prefix + "text_model.embeddings.token_embedding.weight")
    if not table and prefix + "transformer.resblocks.0.ln_1.weight" in shapes:
        table = _shape(shapes, prefix + "token_embedding.weight")
    return table[1] if len(table) == 2 else 0


def _image(shapes: Shapes, prefix: str) -> bool:
    width = _image_width(shapes, prefix)
    return bool(width) and width not in _OTHER_IMAGE


def _image_width(shapes: Shapes, prefix: str) -> int:
    """Channels within the CLIP vision encoder at ``prefix``; 0 where there is none."""
    return next(
        (
            shape[0]
            for name in ("vision_model.embeddings.class_embedding", "class_embedding")
            if len(shape := _shape(shapes, prefix + name)) == 1
        ),
        0,
    )


_OTHER_TEXT = {
    768: "the text encoder CLIP ViT-L (Stable Diffusion, SDXL, SD3, Flux)",
    1024: "the text encoder CLIP ViT-H (Stable Diffusion 2)",
}
_OTHER_IMAGE = {1280: "the image encoder CLIP ViT-H", 1664: "the image encoder CLIP ViT-bigG"}
"""Encoders of other models, by their channels. Stable Cascade has ViT-bigG's of 1280 for text and ViT-L's of
1024 for pictures."""


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
    ("a T5 text encoder", ("encoder.block.0.layer",)),
    ("a VAE of another model", ("decoder.conv_in.weight", "decoder.up_blocks.", "first_stage_model.")),
    ("text embeddings", ("string_to_param", "emb_params")),
)
"""What else lies in the same folders, by pieces of its tensors' names; the first that fits counts."""


def _some(shapes: Shapes, pieces: Sequence[str]) -> bool:
    return any(piece in name for name in shapes for piece in pieces)
