"""The widths of the nano models and their tokenizer: the true architecture, small enough for a CPU.

Importing this makes the names `OWN` and `SMALL` known to `models.starts`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from cascade_train.files import write_text
from cascade_train.models import starts
from cascade_train.models.spec import Part

OWN, SMALL = "nano", "quick"
"""What `FullTarget.config` says: the widths of the bundled models, and those of `SMALLER`."""

NATIVE_SIDE = 64
TEXT_LENGTH = 32
"""Tokens of a caption. CLIP has 77; the world's longest caption needs 18, and every token costs time."""

TEXT_WIDTH = 128
IMAGE_WIDTH = 32
"""Width of the CLIP image embedding that Stage C has room for; nano has no image encoder and gives zeros."""

_RES, _TIME, _ATTN = "SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"

STAGE_C: dict[str, Any] = {
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 1,
    "timestep_ratio_embedding_dim": 64,
    "conditioning_dim": 128,
    "block_out_channels": [80, 160],
    "num_attention_heads": [5, 10],
    "down_num_layers_per_block": [1, 2],
    "up_num_layers_per_block": [2, 1],
    "down_blocks_repeat_mappers": [1, 1],
    "up_blocks_repeat_mappers": [1, 1],
    "block_types_per_layer": [[_RES, _TIME, _ATTN], [_RES, _TIME, _ATTN]],
    "clip_text_in_channels": TEXT_WIDTH,
    "clip_text_pooled_in_channels": TEXT_WIDTH,
    "clip_image_in_channels": IMAGE_WIDTH,
    "clip_seq": 4,
    "effnet_in_channels": None,
    "pixel_mapper_in_channels": None,
    "kernel_size": 3,
    "dropout": [0.0, 0.0],
    "self_attn": True,
    "timestep_conditioning_type": ["sca", "crp"],
    "switch_level": None,
}

STAGE_B: dict[str, Any] = {
    **STAGE_C,
    "in_channels": 4,
    "out_channels": 4,
    "patch_size": 2,
    "block_out_channels": [80, 128],
    "num_attention_heads": [-1, 4],
    "down_num_layers_per_block": [1, 3],
    "up_num_layers_per_block": [3, 1],
    "block_types_per_layer": [[_RES, _TIME], [_RES, _TIME, _ATTN]],
    "clip_text_in_channels": None,
    "clip_image_in_channels": None,
    "effnet_in_channels": 16,
    "pixel_mapper_in_channels": 3,
    "timestep_conditioning_type": ["sca"],
}

STAGE_A: dict[str, Any] = {"width": 32, "inner": 64, "blocks": 3, "latent": 4, "codes": 1024}

COMPRESSOR: dict[str, Any] = {
    "blocks": [
        ["fused", 1, 3, 1, 24, 24, 1],
        ["fused", 4, 3, 2, 24, 48, 2],
        ["mb", 4, 3, 2, 48, 96, 3],
    ],
    "last": 256,
}

PREVIEWER: dict[str, Any] = {"widths": [96, 64, 48, 32]}

SMALLER: dict[str, dict[str, Any]] = {
    "stage_c": {
        **STAGE_C,
        "block_out_channels": [48, 64],
        "num_attention_heads": [3, 4],
        "down_num_layers_per_block": [1, 1],
        "up_num_layers_per_block": [1, 1],
    },
    "stage_b": {
        **STAGE_B,
        "block_out_channels": [48, 48],
        "num_attention_heads": [-1, 3],
        "down_num_layers_per_block": [1, 1],
        "up_num_layers_per_block": [1, 1],
    },
    "stage_a": {"width": 16, "inner": 32, "blocks": 1, "latent": 4, "codes": 64},
    "compressor": {
        "blocks": [["fused", 1, 3, 1, 8, 8, 1], ["fused", 2, 3, 2, 8, 16, 1], ["mb", 2, 3, 2, 16, 24, 1]],
        "last": 48,
    },
    "previewer": {"widths": [32, 24, 16, 8]},
}
"""Smaller still, for the quick run that only shows that every part learns."""


def config(part: Part, name: str = OWN) -> dict[str, Any]:
    """The configuration of nano's ``part``: `OWN`, or `SMALL` for the smaller ones (text has one size)."""
    if part == "text":
        return text_config(len(token_ids()))
    if name == SMALL:
        return SMALLER[part]
    return {
        "stage_c": STAGE_C,
        "stage_b": STAGE_B,
        "stage_a": STAGE_A,
        "compressor": COMPRESSOR,
        "previewer": PREVIEWER,
    }[part]


for _name in (OWN, SMALL):
    starts.register_sizes(_name, partial(config, name=_name))


def text_config(words: int) -> dict[str, Any]:
    """A CLIP text model of two layers over ``words`` vocabulary entries, the last two start and end."""
    return {
        "architectures": ["CLIPTextModelWithProjection"],
        "model_type": "clip_text_model",
        "vocab_size": words,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 2 * TEXT_WIDTH,
        "projection_dim": TEXT_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": TEXT_LENGTH,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "bos_token_id": words - 2,
        "eos_token_id": words - 1,
        "pad_token_id": words - 1,
    }


def merges() -> list[tuple[str, str]]:
    """Byte-pair merges (Sennrich et al. 2016, arXiv:1508.07909) that make one token of every word of the
    world: the most frequent pair is joined, ties by spelling, until no word has two parts."""
    from cascade_train.nano.world import vocabulary

    words = [[*word[:-1], word[-1] + "</w>"] for word in vocabulary()]
    out: list[tuple[str, str]] = []
    while True:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            return out
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        out.append(best)
        words = [_joined(word, best) for word in words]


def token_ids() -> dict[str, int]:
    """Vocabulary entries and their ids: CLIP's 256 byte letters, the same at a word's end, the merges, and
    start and end of text."""
    letters = _byte_letters()
    entries = [
        *letters,
        *(letter + "</w>" for letter in letters),
        *(a + b for a, b in merges()),
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    return {entry: number for number, entry in enumerate(dict.fromkeys(entries))}


def write_tokenizer(folder: Path) -> None:
    """nano's tokenizer in Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "vocab.json", json.dumps(token_ids(), ensure_ascii=False) + "\n")
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in merges())]
    write_text(folder / "merges.txt", "\n".join(lines) + "\n")
    special = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
    }
    write_text(folder / "special_tokens_map.json", json.dumps(special, indent=2) + "\n")
    about = {
        **special,
        "model_max_length": TEXT_LENGTH,
        "tokenizer_class": "CLIPTokenizer",
        "do_lower_case": True,
    }
    write_text(folder / "tokenizer_config.json", json.dumps(about, indent=2) + "\n")


def _joined(word: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return out


def _byte_letters() -> list[str]:
    """The 256 printable characters that CLIP writes bytes with: printable Latin-1 as itself, the others
    from U+0100 on."""
    plain = re.sub(r"[\s\xad]", "", "".join(map(chr, [*range(33, 127), *range(161, 256)])))
    letters = list(plain)
    extra = 256
    for byte in range(256):
        if chr(byte) not in plain:
            letters.append(chr(extra))
            extra += 1
    return letters
