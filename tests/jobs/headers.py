"""A models folder of full-size files that hold a true header and nothing else, and a graph over them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch

from cascade_train.graph.core.registry import pack_nodes
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.models import build
from cascade_train.nano import widths

LAYOUTS = Path(__file__).resolve().parents[1] / "models" / "layouts"


def layout(name: str) -> dict[str, list[int]]:
    """Shapes by tensor name of an official file. On disk they are grouped by shape."""
    grouped = json.loads((LAYOUTS / f"{name}.json").read_text(encoding="utf-8"))
    return {key: json.loads(shape) for shape, keys in grouped.items() for key in keys.split()}


def write_full_size(root: Path) -> Path:
    """The folder at ``root``, laid out as ComfyUI's."""
    for name, file in (
        *(("stage_c", "unet/stage_c_bf16"), ("stage_b", "unet/stage_b_bf16"), ("stage_a", "vae/stage_a")),
        *(("stage_c_lite", "unet/stage_c_lite_bf16"), ("stage_b_lite", "unet/stage_b_lite_bf16")),
        *(("effnet_encoder", "vae/effnet_encoder"), ("previewer", "vae/previewer")),
    ):
        sparse(root / f"{file}.safetensors", layout(name))
    text = root / "text_encoders" / "stable_cascade_text_encoder"
    config = {"vocab_size": 49408, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 20, "max_position_embeddings": 77, "projection_dim": 1280}
    with torch.device("meta"):
        states = build.build("text", config).state_dict()
    sparse(text / "model.safetensors", {key: list(value.shape) for key, value in states.items()})
    (text / "config.json").write_text(json.dumps(config), encoding="utf-8")
    widths.write_tokenizer(text)
    return root


def sparse(path: Path, shapes: dict[str, list[int]]) -> None:
    header, at = {}, 0
    for key, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        handle.truncate(8 + len(text) + at)


def defaults(prompt: dict[str, Any]) -> dict[str, Any]:
    """``prompt`` with every input that is not given at its default."""
    classes = pack_nodes().build_mappings(HeadlessHost(headless_folders(Path("output"))))[0]
    for node in prompt.values():
        cls = classes.get(node["class_type"])
        for name, (_, *options) in (cls.INPUT_TYPES()["required"] if cls else {}).items():
            if options and "default" in options[0]:
                node["inputs"].setdefault(name, options[0]["default"])
    return prompt


def graph(pictures: Path) -> dict[str, Any]:
    """A LoRA of rank 16 over the files, and its validation."""

    def node(kind: str, title: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": f"Cascade{kind}", "inputs": inputs, "_meta": {"title": title}}

    return {
        "1": node("LoadStableCascade", "Models", source="files", variant="full", precision="bf16"),
        "2": node("ImageFolder", "Pictures", path=str(pictures), recursive=True),
        "3": node("LoRATarget", "LoRA", rank=16),
        "4": node("Optimizer", "AdamW"),
        "5": node(
            "TrainingRun",
            "The run",
            models=["1", 0],
            dataset=["2", 0],
            target=["3", 0],
            optimizer=["4", 0],
            batch_size=1,
            precision="bf16",
        ),
        "6": node("TrainSteps", "Train it", run=["5", 0], steps=100),
        "7": node("Prompts", "Prompts", texts="a cat", width=1024, height=1024),
        "8": node("Validate", "Look at it", prompts=["7", 0], run=["6", 0]),
        "9": {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}, "_meta": {"title": "Show"}},
    }
