"""What a LoRA file is, from the names and shapes in its header. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from cascade_train.models.layouts import Shapes
from cascade_train.models.recognise import what

ENDINGS: Mapping[str, str] = {
    ".lora_down.weight": "down",
    ".lora_up.weight": "up",
    ".lora_mid.weight": "mid",
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_A.default.weight": "down",
    ".lora_B.default.weight": "up",
    ".lora.down.weight": "down",
    ".lora.up.weight": "up",
    ".lora_down": "down",
    ".lora_up": "up",
    ".lora_magnitude_vector.default.weight": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector": "magnitude",
    ".dora_scale": "magnitude",
    ".alpha": "alpha",
    ".diff": "diff",
    **{f".hada_{name}": f"hada_{name}" for name in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")},
    **{f".lokr_{name}": f"lokr_{name}" for name in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")},
}
"""What a tensor of a layer is, by how its name ends."""

UNUSED = (".diff_b", ".b_norm", ".w_norm", ".lora_B.bias", ".lora_up.bias")
"""Changes of biases and norms, which some programs write beside: they are not laid over models."""

OFFICIAL, ONETRAINER, OLD_ONETRAINER, KOHYA = "official", "OneTrainer", "OneTrainer (legacy)", "kohya"
SIMPLETUNER, PEFT, COMFYUI, OURS = "SimpleTuner (LyCORIS)", "peft", "ComfyUI", "Cascade Train"

_UNET = re.compile(
    r"attentions[._]|input_blocks[._]|output_blocks[._]|middle_block[._]|mid_block[._]|lora_te2_"
)
_CROSS = re.compile(r"attn2[._]to_k[._].*(?:down|lora_A|hada_w1_b)")
_TRANSFORMERS = (
    ("Flux or a model of its kind", r"double_blocks[._]|single_blocks[._]|single_transformer_blocks[._]"),
    ("Stable Diffusion 3", r"joint_blocks[._]|lora_te3_"),
    ("PixArt, Stable Diffusion 3 or a model of their kind", r"transformer_blocks[._]"),
    ("Wan or a model of its kind", r"blocks[._]\d+[._](?:self_attn|cross_attn|attn)[._]"),
    (
        "another diffusion transformer",
        r"(?:^|[._])layers[._]\d+[._](?:attention|self_attn|feed_forward)[._]",
    ),
)
_CASCADE = re.compile(
    r"(?:down|up)_blocks[._](?P<level>\d+)[._]\d+[._](?:attention|channelwise|depthwise|mapper|kv_mapper)"
)
_QUERY = re.compile(
    r"attention(?:[._]attn)?[._](?:to_q|in_proj[._]0)[._].*(?:lora_up|lora_B|lora\.up|hada_w1_a)"
)
_ADAPTER = re.compile(r"oft_blocks|oft_diag|boft_\w+|ia3_l|\b[ab][12](?=\.weight)")
_FIRST = re.compile(r"(?:self_attn[._]q_proj|mlp[._]fc1)\.(?:lora_down|lora_A)\.")
_STAGE_B = ("effnet_mapper", "pixels_mapper", "clip_mapper")
_WIDTHS = {2048: "the 3.6B Stage C", 1536: "the 1B Stage C", 1280: "Stage B", 1152: "the lite Stage B"}
_CROSS_WIDTHS = {768: "Stable Diffusion 1.5", 1024: "Stable Diffusion 2", 2048: "SDXL"}


def split(key: str) -> tuple[str, str]:
    """(the layer's name, what the tensor is) of a key; ("", "") for one that is no layer's."""
    ending = max((each for each in ENDINGS if key.endswith(each)), key=len, default="")
    return (key[: -len(ending)], ENDINGS[ending]) if ending else ("", "")


def is_lora(shapes: Iterable[str]) -> bool:
    """Whether any of these names is one of a LoRA's tensors."""
    return any(split(key)[1] not in ("", "alpha") for key in shapes)


def foreign(shapes: Shapes) -> str:
    """What a file is that holds no LoRA of Stage C or its text encoder, in words that follow "the file
    holds"; "" where it may be one."""
    names = "\n".join(shapes)
    if not is_lora(shapes):
        kind = _CASCADE.search(names) and _ADAPTER.search(names)
        return f"an adapter of a kind that is not read here ({kind[0]})" if kind else what(shapes)
    if _UNET.search(names):
        widths = {int(shape[-1]) for key, shape in shapes.items() if _CROSS.search(key) and len(shape) == 2}
        two = "SDXL" if "lora_te2_" in names else "Stable Diffusion"
        return f"a LoRA of {_CROSS_WIDTHS.get(next(iter(widths)), two) if len(widths) == 1 else two}"
    if official_entries(shapes) or _CASCADE.search(names):
        level = max((int(found["level"]) for found in _CASCADE.finditer(names)), default=0)
        if level > 1 or any(word in names for word in _STAGE_B) or width(shapes) in (1280, 1152):
            return "a LoRA of Stage B"
        return ""
    others = "\n".join(name for name in shapes if "text_model" not in name)
    text = {int(shape[-1]) for key, shape in shapes.items() if _FIRST.search(key)}
    if not others and text == {768}:
        return "a LoRA of CLIP-L, the text encoder of Stable Diffusion 1.5"
    return next((f"a LoRA of {name}" for name, marks in _TRANSFORMERS if re.search(marks, others)), "")


def width(shapes: Shapes) -> int:
    """The width of the network that the LoRA is for: rows of an attention's query; 0 where it has none."""
    entries = official_entries(shapes)
    rows = [int(shape[0]) // 3 for _, shape in entries if shape[0] in (6144, 4608)]
    rows += [int(shape[0]) for key, shape in shapes.items() if _QUERY.search(key)]
    return max(rows, default=0)


def size_named(number: int) -> str:
    """A network of this ``width`` in words."""
    return _WIDTHS.get(number, f"a Stage C of width {number}")


def official_entries(shapes: Shapes) -> list[tuple[int, Sequence[int]]]:
    """(number, shape of the up matrix) of each layer of an official file, which counts layers and names
    none; by number."""
    found = ((re.fullmatch(r"(?:.*\.)?weights\.(\d+)\.lora_up", key), shape) for key, shape in shapes.items())
    return sorted((int(match[1]), shape) for match, shape in found if match)


def form_of(shapes: Shapes, metadata: Mapping[str, str]) -> str:
    """Which program's names these are."""
    if official_entries(shapes):
        return OFFICIAL
    if any(key.startswith("cascade_train.") for key in metadata):
        return OURS
    marks = (
        (SIMPLETUNER, r"^lycoris_"),
        (OLD_ONETRAINER, r"^lora_prior_(?:unet|te)_"),
        (ONETRAINER, r"attn\.in_proj\.\d|^lora_prior_(?:unet|te)\.|^bundle_emb\."),
        (KOHYA, r"^lora_(?:unet|te2?)_"),
        (COMFYUI, r"^(?:model\.)?diffusion_model\.|^text_encoders\.|attention\.attn\.to_[qkv]"),
    )
    keys = "\n".join(shapes)
    return next((name for name, mark in marks if re.search(mark, keys, re.MULTILINE)), PEFT)


def kind_of(shapes: Shapes) -> str:
    """``LoRA``, ``DoRA``, ``LoKr``, ``LoHa`` or ``dense``, and several joined where there are several."""
    kinds = {split(key)[1] for key in shapes}
    found = [
        ("LoKr", any(kind.startswith("lokr") for kind in kinds)),
        ("LoHa", any(kind.startswith("hada") for kind in kinds)),
        ("LoRA", "down" in kinds),
        ("dense", "diff" in kinds),
        ("DoRA", "magnitude" in kinds),
    ]
    names = [name for name, there in found if there]
    return " + ".join(["DoRA"] if names == ["LoRA", "DoRA"] else names)
