"""CLIP's files: configurations read off shapes, and where a tokenizer is found."""

from __future__ import annotations

import gzip
import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.host.comfy_files import comfyui_tokenizer
from cascade_train.models.reading import is_folder_config

if TYPE_CHECKING:
    from torch import nn

    from cascade_train.models.spec import Part

TOKENS = {"bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 49407}


def config_of(part: Part, path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The configuration of a CLIP encoder: a folder's own, or read off the shapes of a single file.

    What shapes do not show follows the published models: 64 channels a head; the activation of OpenAI's
    models (ViT-L, width 768 or 1024) is the quick GELU, that of OpenCLIP's the exact one.
    """
    found = is_folder_config(path)
    if found is not None:
        return dict(found)
    try:
        return _text(shapes) if part == "text" else _image(shapes)
    except (KeyError, IndexError, ValueError):
        raise CascadeError(
            f"the file does not hold a CLIP {part} encoder that can be recognised",
            where=str(path),
            fix="Use a file in Hugging Face layout",
        ) from None


def _text(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    stem = "text_model.encoder.layers."
    words, width = shapes["text_model.embeddings.token_embedding.weight"]
    projection = shapes["text_projection.weight"]
    return {
        "vocab_size": words,
        "hidden_size": width,
        "intermediate_size": shapes[f"{stem}0.mlp.fc1.weight"][0],
        "num_hidden_layers": _layers(shapes, stem),
        "num_attention_heads": max(1, width // 64),
        "max_position_embeddings": shapes["text_model.embeddings.position_embedding.weight"][0],
        "projection_dim": projection[0],
        "hidden_act": "quick_gelu" if width == 768 else "gelu",
        **TOKENS,
    }


def _image(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    stem = "vision_model.encoder.layers."
    width, channels, patch, _ = shapes["vision_model.embeddings.patch_embedding.weight"]
    positions = shapes["vision_model.embeddings.position_embedding.weight"][0]
    return {
        "hidden_size": width,
        "intermediate_size": shapes[f"{stem}0.mlp.fc1.weight"][0],
        "num_hidden_layers": _layers(shapes, stem),
        "num_attention_heads": max(1, width // 64),
        "num_channels": channels,
        "patch_size": patch,
        "image_size": round((positions - 1) ** 0.5) * patch,
        "projection_dim": shapes["visual_projection.weight"][0],
        "hidden_act": "quick_gelu" if width == 1024 else "gelu",
    }


def _layers(shapes: Mapping[str, Sequence[int]], stem: str) -> int:
    return 1 + max(int(name[len(stem) :].split(".")[0]) for name in shapes if name.startswith(stem))


def fill_positions(module: nn.Module, device: str) -> None:
    """Position ids are buffers that no file holds; on meta they have no values."""
    import torch

    for name, buffer in list(module.named_buffers()):
        if buffer.is_meta:
            owner, _, leaf = name.rpartition(".")
            values = torch.arange(buffer.shape[-1], device=device).expand(buffer.shape).clone()
            module.get_submodule(owner).register_buffer(leaf, values, persistent=False)


def tokenizer_place(path: Path) -> Path:
    """Where the tokenizer of the text encoder at ``path`` is.

    Beside it: in its folder, in ``tokenizer`` inside it or next to it. Else ComfyUI's own, where this runs in
    or with a ComfyUI; else the vocabulary that the package clip-anytorch brings. All are CLIP's own.

    Raises:
        CascadeError: there is none.
    """
    folder = path if path.is_dir() else path.parent
    for place in (folder, folder / "tokenizer", folder.parent / "tokenizer"):
        if _is_clips(place, certain=place == path):
            return place
    theirs = comfyui_tokenizer()
    if theirs is not None:
        return theirs
    found = importlib.util.find_spec("clip")
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(root) / "bpe_simple_vocab_16e6.txt.gz").is_file():
            return Path(root) / "bpe_simple_vocab_16e6.txt.gz"
    raise CascadeError(
        "there is no tokenizer for the text encoder",
        where=str(path),
        fix="Put vocab.json and merges.txt of CLIP beside it, or: pip install 'cascade-train[clip]'",
    )


def _is_clips(place: Path, certain: bool) -> bool:
    """Whether CLIP's tokenizer lies in ``place``. Beside a file in a folder of encoders another one's may
    lie; one in the encoder's own folder is ``certain`` to be its own."""
    for name in ("vocab.json", "tokenizer.json"):
        if (place / name).is_file():
            return certain or _says_start(place / name)
    return False


@lru_cache(maxsize=16)
def _says_start(file: Path) -> bool:
    return b'"<|startoftext|>"' in file.read_bytes()


def load_tokenizer(path: Path) -> Any:
    """The CLIP tokenizer for the text encoder at ``path``; raises as `tokenizer_place` does."""
    from transformers import CLIPTokenizer

    place = tokenizer_place(path)
    if place.is_dir():
        tokenizer = CLIPTokenizer.from_pretrained(str(place), local_files_only=True)
    else:
        with tempfile.TemporaryDirectory() as made:
            _unpack(place, Path(made))
            tokenizer = CLIPTokenizer.from_pretrained(made, local_files_only=True)
    if tokenizer.model_max_length > 1 << 20:  # not said: CLIP's
        tokenizer.model_max_length = 77
    return tokenizer


def _unpack(vocabulary: Path, folder: Path) -> None:
    """CLIP's ``bpe_simple_vocab_16e6.txt.gz`` as the two files of a Hugging Face tokenizer.

    The vocabulary is 256 bytes, the same with ``</w>``, the first 48 894 merges joined, and the two ends of
    text (openai/CLIP, simple_tokenizer.py).
    """
    with gzip.open(vocabulary, "rt", encoding="utf-8") as handle:
        merges = handle.read().split("\n")[1 : 49152 - 256 - 2 + 1]
    letters = _byte_letters()
    entries = [*letters, *(letter + "</w>" for letter in letters)]
    entries += ["".join(merge.split()) for merge in merges] + ["<|startoftext|>", "<|endoftext|>"]
    words = {entry: number for number, entry in enumerate(entries)}
    (folder / "vocab.json").write_text(json.dumps(words), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    settings = {"model_max_length": 77, "tokenizer_class": "CLIPTokenizer"}
    settings |= {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
    settings |= {"unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _byte_letters() -> list[str]:
    """The printable letters that stand for the 256 bytes, in the vocabulary's order (GPT-2's encoder)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = 256 - len(plain)
    return [chr(code) for code in plain] + [chr(256 + number) for number in range(others)]
