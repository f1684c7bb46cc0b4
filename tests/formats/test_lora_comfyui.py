"""LoRAs of every form, converted by the command, merged by ComfyUI: all keys are taken, weights are ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cascade_train.cli import main
from cascade_train.formats import lora
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.jobs import loras
from cascade_train.models import library
from cascade_train.models.layouts import split_name
from cascade_train.models.loras.networks import Network, official
from cascade_train.models.loras.state import networks_of
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.weights import read_tensors, write_tensors

COMFYUI = os.environ.get("COMFYUI_PATH", "")
needs_comfyui = pytest.mark.skipif(not COMFYUI, reason="COMFYUI_PATH is not set")

STRENGTH = 0.7

ASK = """
import json, logging, sys

comfyui, jobs, out = sys.argv[1:4]
sys.argv = sys.argv[:1] + ["--cpu"]
sys.path.insert(0, comfyui)
import torch
import comfy.options
comfy.options.enable_args_parsing()
import comfy.lora, comfy.lora_convert, comfy.model_base, comfy.utils

complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage())
logging.getLogger().addHandler(Keep(level=logging.WARNING))

class Model(comfy.model_base.StableCascade_C):
    def __init__(self, names):
        self.names = names
        self.model_config = type("Config", (), {"unet_config": {}})()
    def state_dict(self):
        return dict.fromkeys(self.names)
Model.__setattr__ = object.__setattr__
Model.__getattr__ = lambda self, name: (_ for _ in ()).throw(AttributeError(name))

answers = {}
for name, job in json.load(open(jobs)).items():
    complaints.clear()
    base = comfy.utils.load_torch_file(job["base"]) if job["base"] else dict.fromkeys(job["names"])
    model = Model(list(base))
    key_map = comfy.lora.model_lora_keys_unet(model, {})
    key_map = comfy.lora.model_lora_keys_clip(model, key_map)
    tensors = comfy.lora_convert.convert_lora(comfy.utils.load_torch_file(job["file"], safe_load=True))
    patches = comfy.lora.load_lora(tensors, key_map)
    errors = {}
    if job["wanted"]:
        wanted = comfy.utils.load_torch_file(job["wanted"])
        for key, weight in wanted.items():
            patch = [(job["strength"], patches[key], 1.0, None, None)] if key in patches else []
            new = comfy.lora.calculate_weight(patch, base[key].clone(), key)
            errors[key] = float((new - weight).abs().max())
    answers[name] = {"patches": sorted(patches), "complaints": list(complaints), "errors": errors}
json.dump(answers, open(out, "w"))
"""


def ask_comfyui(jobs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What ComfyUI's loader makes of each job's file, in one process of its own."""
    asked, out = folder / "jobs.json", folder / "answers.json"
    asked.write_text(json.dumps(jobs), encoding="utf-8")
    done = subprocess.run(
        [os.environ.get("COMFYUI_PYTHON", sys.executable), "-c", ASK, COMFYUI, str(asked), str(out)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return answers


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.2


def comfy_name(part: str, module: str) -> str:
    """What ComfyUI calls the weight of a module in the models that it loads."""
    if part == "text":
        return f"clip_g.transformer.{module}.weight"
    return f"diffusion_model.{split_name(module)}.weight"


Naming = Callable[[str, str], str]


def under(prefix: str, text: str, joint: str = "_", native: bool = True) -> Naming:
    def named(part: str, module: str) -> str:
        name = module if part == "text" or not native else split_name(module)
        return (text if part == "text" else prefix) + name.replace(".", joint)

    return named


def in_proj(part: str, module: str) -> str:
    name = under("diffusion_model.", "clip_g.", ".")(part, module)
    for number, letter in enumerate("qkv"):
        name = name.replace(f"attn.to_{letter}", f"attn.in_proj.{number}")
    return name


def lora_of(
    networks: Any, name: Naming, kind: str = "kohya", wanted: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """A file of random changes under ``name``, in the tensors that ``kind`` has."""
    out: dict[str, Tensor] = {}
    for network in networks:
        for number, (module, (rows, columns, *kernel)) in enumerate(network.shapes.items()):
            chosen = wanted or (
                ".attention.",
                "channelwise",
                "kv_mapper",
                "self_attn",
                "mlp",
                "clip_txt_pooled",
            )
            if kernel or not any(each in module for each in chosen):
                continue
            stem = name(network.part, module)
            down, up = ("lora_down", "lora_up") if kind.startswith("kohya") else ("lora_A", "lora_B")
            if kind == "LoKr":
                out[f"{stem}.lokr_w1"] = drawn(4, 4, seed=number)
                out[f"{stem}.lokr_w2_a"] = drawn(rows // 4, 2, seed=number + 1)
                out[f"{stem}.lokr_w2_b"] = drawn(2, columns // 4, seed=number + 2)
            elif kind == "whole LoKr":
                out[f"{stem}.lokr_w1"] = drawn(4, 4, seed=number)
                out[f"{stem}.lokr_w2"] = drawn(rows // 4, columns // 4, seed=number + 1) * 0.2
            elif kind == "LoHa":
                for each, (a, b) in {"w1": (0, 1), "w2": (2, 3)}.items():
                    out[f"{stem}.hada_{each}_a"] = drawn(rows, 2, seed=number + a)
                    out[f"{stem}.hada_{each}_b"] = drawn(2, columns, seed=number + b)
            else:
                out[f"{stem}.{down}.weight"] = drawn(3, columns, seed=number)
                out[f"{stem}.{up}.weight"] = drawn(rows, 3, seed=-number)
            if not kind.startswith("peft") and kind != "whole LoKr":
                out[f"{stem}.alpha"] = torch.tensor(1.5)
            if kind.endswith("DoRA"):
                out[f"{stem}.dora_scale"] = drawn(rows, 1, seed=number).abs() + 0.5
            if kind.endswith("DoRA by columns"):
                out[f"{stem}.dora_scale"] = drawn(1, columns, seed=number).abs() + 0.5
    return out


def counted(network: Network) -> dict[str, Tensor]:
    """An official file of all attentions and channelwise layers."""
    out = {}
    layers = [each for each in network.in_order() if "attention" in each[0] or "channelwise" in each[0]]
    for number, layer in enumerate(layers):
        rows, columns = network.size(layer)
        out[f"weights.{number}.lora_down"] = drawn(3, columns, seed=number)
        out[f"weights.{number}.lora_up"] = drawn(rows, 3, seed=-number)
    return out


def ours(folder: Path, models: ModelsSpec, networks: Any) -> Path:
    """A DoRA that Export Run wrote."""
    network: Any = library.part(models, "stage_c")
    tensors = {}
    for number, (module, shape) in enumerate(networks[0].shapes.items()):
        if ".attention." in module:
            tensors[module + lora.DOWN] = drawn(2, shape[1], seed=number)
            tensors[module + lora.UP] = drawn(shape[0], 2, seed=-number)
            tensors[module + lora.MAGNITUDE] = drawn(shape[0], seed=number).abs() + 0.5
    path = folder / "ours.safetensors"
    lora.write_comfy(
        path,
        lora.LoRA(tensors, 4.0),
        base=lambda name: network.get_submodule(name).weight.detach(),
        metadata={"cascade_train.run": "some run"},
    )
    return path


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tiny: ModelsSpec) -> dict[str, Path]:
    """A LoRA in each form that people have, by what it is."""
    folder = tmp_path_factory.mktemp("given")
    networks = networks_of(tiny)
    stage_c = networks[:1]
    kohya = under("lora_unet_", "lora_te_")
    lycoris = under("lycoris_", "", native=False)
    tensors = {
        "official": counted(networks[0]),
        "OneTrainer, legacy": lora_of(networks, under("lora_prior_unet_", "lora_prior_te_")),
        "OneTrainer": lora_of(networks, in_proj, "lora"),
        "kohya": lora_of(networks, kohya),
        "kohya DoRA": lora_of(networks, kohya, "kohya DoRA"),
        "kohya DoRA by columns": lora_of(stage_c, kohya, "kohya DoRA by columns"),
        "LoKr": lora_of(stage_c, lycoris, "LoKr"),
        "whole LoKr": lora_of(stage_c, lycoris, "whole LoKr", (".attention.",)),
        "LoHa": lora_of(stage_c, lycoris, "LoHa"),
        "peft": lora_of(networks, under("prior.", "text_encoder.", ".", native=False), "peft"),
    }
    out = {}
    for number, (name, each) in enumerate(tensors.items()):
        out[name] = folder / f"{number}.safetensors"
        write_tensors(out[name], {key: value.clone() for key, value in each.items()})
    return {**out, "ours": ours(folder, tiny, networks)}


def weights_of(models: ModelsSpec, networks: Any) -> dict[str, Tensor]:
    """The weights of the layers that LoRAs change, as ComfyUI calls them."""
    out = {}
    for network in networks:
        part: Any = library.part(models, network.part)
        for module in network.shapes:
            weight = part.get_submodule(module).weight.detach().float()
            out[comfy_name(network.part, module)] = weight.clone().contiguous()
    return out


@needs_comfyui
def test_comfyui_takes_every_key_and_merges_to_the_same_weights(
    tmp_path: Path, tiny: ModelsSpec, tiny_folder: Path, given: dict[str, Path]
) -> None:
    """Each form is laid over the models by us as it is, and converted and merged by ComfyUI."""
    networks = networks_of(tiny)
    host = HeadlessHost(headless_folders(tmp_path), "cpu", Quiet())
    base = tmp_path / "base.safetensors"
    write_tensors(base, weights_of(tiny, networks))
    jobs: dict[str, Any] = {}
    for number, (name, path) in enumerate(given.items()):
        laid = loras.apply_file(tiny, path, STRENGTH, STRENGTH, "", host)
        wanted = tmp_path / f"wanted{number}.safetensors"
        write_tensors(wanted, weights_of(laid, networks))
        for form in ("comfyui", "kohya"):
            file = tmp_path / f"{number}-{form}.safetensors"
            models = ["--models", str(tiny_folder / "stage_c.safetensors")]
            text = ["--text", str(tiny_folder / "text" / "model.safetensors")]
            assert main(["convert-lora", str(path), str(file), "--to", form, *models, *text]) == 0
            other = form == "kohya" and ("DoRA" in name or name == "ours")  # its formula is not ComfyUI's
            jobs[f"{name} to {form}"] = {
                "file": str(file),
                "base": str(base),
                "wanted": "" if other else str(wanted),
                "strength": STRENGTH,
            }
    answers = ask_comfyui(jobs, tmp_path)
    for name, answer in answers.items():
        written = {key.split(".")[0] for key in read_tensors(Path(jobs[name]["file"]))}
        assert not answer["complaints"], (name, answer["complaints"][:3])
        assert len(answer["patches"]) == len(written), name
        for key, error in answer["errors"].items():
            assert error <= 1e-4, (name, key, error)
    changed = answers["kohya to comfyui"]["patches"]
    assert any(key.startswith("clip_g.") for key in changed) and len(changed) > 20


@needs_comfyui
@pytest.mark.parametrize("size", ["3.6B", "1B"])
def test_comfyui_takes_every_key_of_a_full_size_file(tmp_path: Path, size: str) -> None:
    """Official, and OneTrainer's with all of the text encoder's layers: without any model at hand."""
    networks = official(size)
    names = [comfy_name(each.part, module) for each in networks for module in each.shapes]
    jobs: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for which in ("official", "OneTrainer"):
        source, file = tmp_path / f"{which}.safetensors", tmp_path / f"{which}-comfyui.safetensors"
        tensors: dict[str, Tensor] = {}
        if which == "official":
            layers = [each for each in networks[0].in_order() if ".attention." in each[0]]
            for number, layer in enumerate(layers):
                rows, columns = networks[0].size(layer)
                tensors[f"weights.{number}.lora_down"] = torch.zeros(1, columns, dtype=torch.bfloat16)
                tensors[f"weights.{number}.lora_up"] = torch.zeros(rows, 1, dtype=torch.bfloat16)
            counts[which] = sum(map(len, layers))
        else:
            plain = [
                (each.part, *item) for each in networks for item in each.shapes.items() if len(item[1]) == 2
            ]
            for part, module, (rows, columns) in plain:
                stem = under("lora_prior_unet_", "lora_prior_te_")(part, module)
                tensors[f"{stem}.lora_down.weight"] = torch.zeros(1, columns, dtype=torch.bfloat16)
                tensors[f"{stem}.lora_up.weight"] = torch.zeros(rows, 1, dtype=torch.bfloat16)
            counts[which] = len(plain)
        write_tensors(source, tensors)
        assert main(["convert-lora", str(source), str(file), "--to", "comfyui"]) == 0
        jobs[which] = {"file": str(file), "base": "", "names": names, "wanted": "", "strength": 1.0}
    for which, answer in ask_comfyui(jobs, tmp_path).items():
        assert not answer["complaints"], answer["complaints"][:3]
        assert len(answer["patches"]) == counts[which], which
