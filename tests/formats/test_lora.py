"""LoRA and token files: written, read back, loaded by peft and by ComfyUI's own loader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.formats import lora
from cascade_train.models import build
from cascade_train.models.weights import read_header, read_tensors, write_tensors
from cascade_train.nano import widths

STAGE_C = {
    "full": {"widths": (2048, 2048), "down": (8, 24), "up": (24, 8)},
    "lite": {"widths": (1536, 1536), "down": (4, 12), "up": (12, 4)},
}
LINEAR = (
    ".to_q",
    ".to_k",
    ".to_v",
    ".to_out.0",
    "channelwise.0",
    "channelwise.4",
    "kv_mapper.1",
    "mapper",
    "mapper_sca",
    "mapper_crp",
    "clip_txt_mapper",
    "clip_txt_pooled_mapper",
    "clip_img_mapper",
)


def quick_stage_c() -> torch.nn.Module:
    torch.manual_seed(1)
    return build.build("stage_c", widths.config("stage_c", "quick")).eval()


def every_linear(network: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, torch.nn.Linear)}


def random_lora(
    network: torch.nn.Module, rank: int = 4, alpha: float = 6.0, magnitude: bool = False
) -> lora.LoRA:
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, layer in every_linear(network).items():
        tensors[name + lora.DOWN] = torch.randn(rank, layer.in_features, generator=generator) * 0.1
        tensors[name + lora.UP] = torch.randn(layer.out_features, rank, generator=generator) * 0.1
        if magnitude:
            tensors[name + lora.MAGNITUDE] = torch.rand(layer.out_features, generator=generator) + 0.5
    return lora.LoRA(tensors, alpha)


def test_names_are_those_of_the_programs_that_read_them() -> None:
    assert (
        lora.comfy_module("down_blocks.0.2.attention.to_q") == "lora_unet_down_blocks_0_2_attention_attn_to_q"
    )
    assert (
        lora.comfy_module("up_blocks.1.5.attention.to_out.0")
        == "lora_unet_up_blocks_1_5_attention_attn_out_proj"
    )
    assert lora.comfy_module("down_blocks.1.0.channelwise.4") == "lora_unet_down_blocks_1_0_channelwise_4"
    assert lora.comfy_module("clip_txt_pooled_mapper") == "lora_unet_clip_txt_pooled_mapper"


def test_every_layer_comes_back_from_its_file_name() -> None:
    names = list(every_linear(quick_stage_c()))
    assert [lora.module_of_comfy(lora.comfy_module(name)) for name in names] == names
    assert (
        lora.module_of_comfy("lora_prior_unet_down_blocks_0_2_attention_attn_to_q")
        == "down_blocks.0.2.attention.to_q"
    )


def test_a_lora_survives_the_round_trip(tmp_path: Path) -> None:
    made = random_lora(quick_stage_c())
    path = tmp_path / "mine.safetensors"
    lora.write_comfy(path, made, metadata={"cascade_train.step": "300"})
    back = lora.read_comfy(path)
    assert back.modules == made.modules
    for name in made.modules:
        before = made.alpha / made.rank * made.tensors[name + lora.UP] @ made.tensors[name + lora.DOWN]
        after = back.alpha / back.rank * back.tensors[name + lora.UP] @ back.tensors[name + lora.DOWN]
        assert torch.allclose(before, after, atol=1e-6)
    assert read_header(path)[1]["cascade_train.step"] == "300"
    assert float(read_tensors(path)["lora_unet_clip_img_mapper.alpha"]) == 6.0


def test_half_precision_takes_half_the_room(tmp_path: Path) -> None:
    made = random_lora(quick_stage_c(), rank=32)
    lora.write_comfy(tmp_path / "32.safetensors", made)
    lora.write_comfy(tmp_path / "16.safetensors", made, precision=torch.bfloat16)
    large, small = ((tmp_path / f"{bits}.safetensors").stat().st_size for bits in (32, 16))
    assert small < 0.6 * large


@pytest.mark.parametrize("dora", [False, True])
def test_peft_loads_what_is_written_for_it(tmp_path: Path, dora: bool) -> None:
    from peft import PeftModel

    network = quick_stage_c()
    made = random_lora(network, magnitude=dora)
    lora.write_peft(tmp_path / "adapter", made)
    inputs = {
        "sample": torch.randn(1, 16, 8, 8),
        "timestep_ratio": torch.tensor([0.5]),
        "clip_text_pooled": torch.randn(1, 1, 128),
        "clip_text": torch.randn(1, 8, 128),
        "clip_img": torch.randn(1, 1, 32),
    }
    torch.nn.init.normal_(network.clf[1].weight, std=0.1)  # type: ignore[union-attr, index]
    with torch.no_grad():
        plain = network(**inputs).sample
        expected = merged_by_hand(network, made)(**inputs).sample
        adapted = PeftModel.from_pretrained(network, str(tmp_path / "adapter"))
        theirs = adapted(**inputs).sample
    assert torch.allclose(theirs, expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(theirs, plain, atol=1e-2)
    back = lora.read_peft(tmp_path / "adapter")
    assert back.alpha == made.alpha and all(
        torch.equal(back.tensors[key], made.tensors[key]) for key in made.tensors
    )


def merged_by_hand(network: torch.nn.Module, made: lora.LoRA) -> torch.nn.Module:
    import copy

    merged = copy.deepcopy(network)
    for name, layer in every_linear(merged).items():
        whole = (
            layer.weight
            + made.alpha / made.rank * made.tensors[name + lora.UP] @ made.tensors[name + lora.DOWN]
        )
        if name + lora.MAGNITUDE in made.tensors:
            whole = made.tensors[name + lora.MAGNITUDE][:, None] * whole / whole.norm(dim=1, keepdim=True)
        layer.weight.data = whole.detach()
    return merged


def test_tokens_keep_their_name_and_rows(tmp_path: Path) -> None:
    row = torch.randn(1, 1280)
    lora.write_token(tmp_path / "mine-crescent.safetensors", "crescent", row)
    name, rows = lora.read_token(tmp_path / "mine-crescent.safetensors")
    assert name == "crescent" and torch.equal(rows, row)
    foreign = tmp_path / "from-elsewhere.safetensors"
    write_tensors(foreign, {"clip_g": row})
    assert lora.read_token(foreign)[0] == "from-elsewhere"


def test_what_is_no_lora_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    write_tensors(path, {"lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": torch.zeros(2, 2)})
    with pytest.raises(CascadeError, match="lora_te_text_model"):
        lora.read_comfy(path)
    write_tensors(path, {"lora_unet_clip_img_mapper.lora_down.weight": torch.zeros(2, 2)})
    with pytest.raises(CascadeError, match="clip_img_mapper cannot be placed"):
        lora.read_comfy(path)
    with pytest.raises(CascadeError, match="adapter_config"):
        lora.read_peft(tmp_path)
    with pytest.raises(CascadeError, match="clip_g"):
        lora.read_token(path)


# -- ComfyUI's own loader ------------------------------------------------------------------------

COMFYUI = os.environ.get("COMFYUI_PATH", "")
needs_comfyui = pytest.mark.skipif(not COMFYUI, reason="COMFYUI_PATH is not set")

ASK_COMFYUI = """
import json, logging, sys

comfyui, file, out, config, weights = sys.argv[1:6]
sys.argv = sys.argv[:1] + ["--cpu"]
sys.path.insert(0, comfyui)
import torch
import comfy.options
comfy.options.enable_args_parsing()
import comfy.lora, comfy.ops, comfy.utils, comfy.model_base
from comfy.ldm.cascade.stage_c import StageC
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
logging.getLogger().addHandler(Keep(level=logging.WARNING))
class Config:
    unet_config = {}
class Model:
    model_config = Config()
    def __init__(self):
        with torch.device("meta"):
            self.network = StageC(operations=comfy.ops.disable_weight_init, **json.loads(config))
    def state_dict(self):
        return {"diffusion_model." + key: value for key, value in self.network.state_dict().items()}
model = Model()
shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
lora = comfy.utils.load_torch_file(file, safe_load=True)
key_map = comfy.lora.model_lora_keys_unet(model, {})
patches = comfy.lora.load_lora(lora, key_map)
errors = {}
if weights:
    base = comfy.utils.load_torch_file(weights)
    for key, patch in patches.items():
        name = key[len("diffusion_model."):]
        weight = base["base." + name].clone()
        new = comfy.lora.calculate_weight([(1.0, patch, 1.0, None, None)], weight, key)
        errors[name] = float((new - base["wanted." + name]).abs().max())
json.dump({"patches": {key: shapes.get(key) for key in patches}, "complaints": complaints, "errors": errors},
          open(out, "w"))
"""


def ask_comfyui(file: Path, config: dict, out: Path, weights: Path | str = "") -> dict:
    """What ComfyUI's LoRA loader makes of ``file`` for a Stage C of ``config``, in a process of its own."""
    python = os.environ.get("COMFYUI_PYTHON", sys.executable)
    done = subprocess.run(
        [python, "-c", ASK_COMFYUI, COMFYUI, str(file), str(out), json.dumps(config), str(weights)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8"))


@needs_comfyui
@pytest.mark.parametrize("variant", ["full", "lite"])
def test_comfyui_maps_every_key_of_a_full_size_lora(tmp_path: Path, variant: str) -> None:
    settings = STAGE_C[variant]
    width = settings["widths"][0]
    with torch.device("meta"):
        config = {
            **widths.config("stage_c"),
            "conditioning_dim": width,
            "block_out_channels": settings["widths"],
            "num_attention_heads": (width // 64, width // 64),
            "down_num_layers_per_block": settings["down"],
            "up_num_layers_per_block": settings["up"],
            "clip_text_in_channels": 1280,
            "clip_text_pooled_in_channels": 1280,
            "clip_image_in_channels": 768,
            "switch_level": (False,),
        }
        network = build.build("stage_c", config)
        layers = {
            name: layer
            for name, layer in every_linear(network).items()
            if ".attention." in name or "channelwise" in name or "kv_mapper" in name or "clip_" in name
        }
    tensors = {}
    for name, layer in layers.items():
        tensors[name + lora.DOWN] = torch.zeros(1, layer.in_features)
        tensors[name + lora.UP] = torch.zeros(layer.out_features, 1)
    file = tmp_path / "lora.safetensors"
    lora.write_comfy(file, lora.LoRA(tensors, 1.0), precision=torch.bfloat16)
    theirs = {
        "c_cond": width,
        "c_hidden": list(settings["widths"]),
        "nhead": [width // 64] * 2,
        "blocks": [list(settings["down"]), list(settings["up"])],
    }
    answer = ask_comfyui(file, theirs, tmp_path / "answer.json")
    assert not answer["complaints"], answer["complaints"][:5]
    assert len(answer["patches"]) == len(layers), "every layer found its place"
    assert all(shape is not None for shape in answer["patches"].values())


@needs_comfyui
@pytest.mark.parametrize("dora", [False, True])
def test_comfyui_computes_the_weights_that_were_trained(tmp_path: Path, dora: bool) -> None:
    """A network of ComfyUI's own class, small, patched by ComfyUI: each weight is the one that a run has."""
    config = {
        **widths.config("stage_c", "quick"),
        "clip_text_in_channels": 1280,
        "clip_image_in_channels": 768,
        "clip_text_pooled_in_channels": 1280,
        "switch_level": (False,),
    }
    torch.manual_seed(1)
    network: Any = build.build("stage_c", config).eval()
    made = random_lora(network, magnitude=dora)
    kept = {key: value for key, value in made.tensors.items() if ".attention." in key or "channelwise" in key}
    made = lora.LoRA(kept, made.alpha)
    file = tmp_path / "lora.safetensors"
    lora.write_comfy(file, made, base=lambda name: network.get_submodule(name).weight.detach())
    weights: dict[str, torch.Tensor] = {}
    partly = lora.LoRA(made.tensors, made.alpha)
    for name in partly.modules:
        layer = network.get_submodule(name)
        whole = (
            layer.weight
            + made.alpha / made.rank * made.tensors[name + lora.UP] @ made.tensors[name + lora.DOWN]
        )
        if dora:
            whole = made.tensors[name + lora.MAGNITUDE][:, None] * whole / whole.norm(dim=1, keepdim=True)
        native = name.replace(".attention.to_out.0", ".attention.attn.out_proj").replace(
            ".attention.to_", ".attention.attn.to_"
        )
        weights[f"base.{native}.weight"] = layer.weight.detach()
        weights[f"wanted.{native}.weight"] = whole.detach()
    write_tensors(tmp_path / "weights.safetensors", weights)
    theirs = {
        "c_cond": 128,
        "c_hidden": config["block_out_channels"],
        "nhead": config["num_attention_heads"],
        "blocks": [config["down_num_layers_per_block"], config["up_num_layers_per_block"]],
    }
    answer = ask_comfyui(file, theirs, tmp_path / "answer.json", tmp_path / "weights.safetensors")
    assert not answer["complaints"], answer["complaints"][:5]
    assert len(answer["errors"]) == len(made.modules)
    assert max(answer["errors"].values()) < 1e-4, answer["errors"]
