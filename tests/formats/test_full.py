"""All weights out: what ComfyUI, diffusers and this library make of the files, and what writing takes."""

from __future__ import annotations

import gc
import json
import math
import os
import struct
import subprocess
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cascade_train.data.sources import folder_dataset
from cascade_train.errors import CascadeError
from cascade_train.formats import full
from cascade_train.formats.export import CHECKPOINT, export_trained
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.jobs.export import export
from cascade_train.jobs.train import train_block
from cascade_train.models import build, library, reading
from cascade_train.models.spec import ModelsSpec, Part, PartFile
from cascade_train.models.tensor_file import Later, write_file
from cascade_train.models.weights import read_header, read_tensors
from cascade_train.training import run as runs
from cascade_train.training.spec import FullTarget, LoRATarget, OptimizerSpec, RunSpec, TokenSpec


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(headless_folders(tmp_path / "output"), "cpu")


def trained(models: ModelsSpec, part: Part) -> tuple[Any, dict[str, torch.Tensor]]:
    """``part`` with other weights than the models', and the state of a run that has made them."""
    network: Any = library.own_copy(models, part)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.01 * torch.randn_like(value))
    return network, {f"{part}.{name}": value for name, value in network.state_dict().items()}


def in_file(path: Path, part: Part) -> dict[str, torch.Tensor]:
    """What this library reads of ``part`` in a checkpoint."""
    prefix = reading.prefix_in(part, path)
    return reading.tensors(
        PartFile(part, "", str(path), prefix), build._RENAMES.get(part, build._as_it_is), None
    )


@pytest.mark.parametrize("part", ["stage_c", "stage_b"])
def test_diffusers_opens_the_folder_and_draws_the_same(tiny: ModelsSpec, tmp_path: Path, part: Part) -> None:
    from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet

    network, tensors = trained(tiny, part)
    (folder,) = export_trained(
        "full", tensors, {"parts": [part]}, tmp_path / "mine.safetensors", format="diffusers", models=tiny
    )
    assert folder == tmp_path / "mine" and folder.is_dir()
    theirs, told = StableCascadeUNet.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    width = network.config.clip_text_pooled_in_channels
    given: dict[str, torch.Tensor] = {
        "sample": torch.randn(2, network.config.in_channels, 8, 8),
        "timestep_ratio": torch.tensor([0.2, 0.9]),
        "clip_text_pooled": torch.randn(2, 1, width),
    }
    if part == "stage_c":
        given |= {"clip_text": torch.randn(2, 9, network.config.clip_text_in_channels)}
        given |= {"clip_img": torch.randn(2, 1, network.config.clip_image_in_channels)}
    else:
        given |= {"effnet": torch.randn(2, 16, 4, 4)}
    with torch.no_grad():
        ours = network.eval()(**given, return_dict=False)[0]
        assert torch.equal(theirs.eval()(**given, return_dict=False)[0], ours)
    (tmp_path / "taken").touch()
    with pytest.raises(CascadeError, match="taken is a file"):
        export_trained("full", tensors, {}, tmp_path / "taken.safetensors", format="diffusers", models=tiny)
    again = build.load(part, folder).state_dict()
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in again.items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("part", ["stage_c", "stage_b"])
def test_a_checkpoint_holds_the_stage_and_all_that_it_needs(
    tiny_with_image: ModelsSpec, tmp_path: Path, part: Part, precision: str
) -> None:
    """The trained network in the precision that was asked for, the rest as its files have it."""
    models = tiny_with_image
    network, tensors = trained(models, part)
    (file,) = export_trained(
        "full",
        tensors,
        {"parts": [part]},
        tmp_path / "whole.safetensors",
        format=CHECKPOINT,
        precision=precision,
        models=models,
    )
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    found = in_file(file, part)
    assert found.keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        assert torch.equal(found[name], value.to(dtype)), name
    beside: dict[str, tuple[Part, ...]] = {
        "stage_c": ("text", "compressor", "previewer", "image"),
        "stage_b": ("text", "stage_a"),
    }
    for other in beside[part]:
        theirs, ours = in_file(file, other), library.part(models, other).state_dict()
        assert theirs.keys() == {name for name in ours if "position_ids" not in name}, other
        assert all(torch.equal(value, ours[name]) for name, value in theirs.items()), other
    names = read_header(file)[0]
    assert any(name.endswith(".attention.attn.to_q.weight") for name in names), "as ComfyUI saves it"
    assert not any(".in_proj_" in name for name in names)
    assert read_header(file)[1]["modelspec.architecture"] == f"stable-cascade-{part.replace('_', '-')}"


def test_a_lora_and_its_words_become_a_checkpoint(tiny: ModelsSpec, host: HeadlessHost) -> None:
    """The LoRA is in the weights, a word that was trained in place is in its row; a new word has no place in
    CLIP's vocabulary and is a file beside it."""
    target = LoRATarget(
        rank=2, alpha=2, tokens=TokenSpec(new=(("crescent", "^ring</w>$"),), existing=("^a</w>$",))
    )
    pictures = folder_dataset("bundled/crescent", recursive=True, host=host)
    optimizer = OptimizerSpec(learning_rate=0.05)
    spec = RunSpec(tiny, pictures, target, optimizer, batch_size=2, total_steps=6, label="moons")
    position, *_ = train_block(runs.start(spec, host), 2, None, host)
    path, _, files = export(position, CHECKPOINT, "moons", "fp32", host)
    assert [file.name for file in files] == [
        "moons.safetensors",
        "moons-crescent.safetensors",
        "moons-a.safetensors",
    ]
    state = runs.trained(position)
    found = in_file(Path(path), "stage_c")
    plain = library.part(tiny, "stage_c").state_dict()
    layer = "down_blocks.0.2.attention.to_q"
    down, up = (state.tensors[f"stage_c.{layer}.lora_{side}.weight"] for side in "AB")
    assert torch.allclose(found[f"{layer}.weight"], plain[f"{layer}.weight"] + up @ down, atol=1e-6)
    assert torch.equal(found["clf.1.weight"], plain["clf.1.weight"])
    table = "text_model.embeddings.token_embedding.weight"
    words, before = in_file(Path(path), "text"), library.part(tiny, "text").state_dict()
    assert words[table].shape == before[table].shape
    changed = (words[table] != before[table]).any(dim=1).nonzero().flatten().tolist()
    tokens = state.settings["tokens"]
    assert changed == [token["id"] for token in tokens if not token["new"]]


def test_a_file_says_what_was_trained_on_what(tiny: ModelsSpec, host: HeadlessHost) -> None:
    pictures = folder_dataset("bundled/crescent", recursive=True, host=host)
    spec = RunSpec(tiny, pictures, FullTarget("stage_c"), OptimizerSpec(), batch_size=2, label="moons")
    position, *_ = train_block(runs.start(spec, host), 1, None, host)
    for format in ("ComfyUI", CHECKPOINT, "diffusers"):
        path = Path(export(position, format, f"moons-{format[-3:]}", "bf16", host)[0])
        told = read_header(path / "diffusion_pytorch_model.safetensors" if path.is_dir() else path)[1]
        assert told["cascade_train.trained"] == "all weights of stage_c"
        assert told["cascade_train.step"] == "1" and told["modelspec.title"] == "moons"
        assert told["modelspec.architecture"] == "stable-cascade-stage-c"
        base = json.loads(told["cascade_train.base"])
        assert base["stage_c"] == {
            "file": "stage_c.safetensors",
            "content": library.part_file(tiny, "stage_c").content,
        }
        said = json.loads(told["cascade_train.dataset"])
        assert said == {"digest": pictures.digest, "sources": ["crescent"]}
        assert str(host.folders.output) not in json.dumps(told), "no paths of this machine"
    lora = replace(spec, target=LoRATarget(rank=2, alpha=3))
    position, *_ = train_block(runs.start(lora, host), 1, None, host)
    told = read_header(Path(export(position, "ComfyUI", "lora", "bf16", host)[0]))[1]
    assert told["cascade_train.trained"] == "lora of rank 2, alpha 3 on stage_c"
    assert told["modelspec.architecture"] == "stable-cascade-stage-c/lora"


def test_a_part_that_has_no_such_file_is_refused(tiny: ModelsSpec, tmp_path: Path) -> None:
    _, tensors = trained(tiny, "stage_a")
    with pytest.raises(CascadeError, match="no checkpoint of stage_a"):
        export_trained("full", tensors, {}, tmp_path / "a.safetensors", format=CHECKPOINT, models=tiny)
    (file,) = export_trained("full", tensors, {}, tmp_path / "a.safetensors", models=tiny)
    assert all(torch.equal(value, tensors[f"stage_a.{name}"]) for name, value in read_tensors(file).items())


def test_tensors_are_made_one_after_another_and_let_go(tmp_path: Path) -> None:
    """A file may be larger than memory: of what is made for it, one tensor is there at a time."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0

    def make(number: int) -> torch.Tensor:
        nonlocal most
        gc.collect()
        made = torch.full((64, 64), float(number))
        alive.add(made)
        most = max(most, len(alive))
        return made

    tensors = {f"t{number}": Later((64, 64), torch.float32, partial(make, number)) for number in range(8)}
    write_file(tmp_path / "large.safetensors", tensors)
    back = read_tensors(tmp_path / "large.safetensors")
    assert all(bool((back[f"t{number}"] == number).all()) for number in range(8))
    assert most <= 2


COMFYUI = os.environ.get("COMFYUI_PATH", "")
needs_comfyui = pytest.mark.skipif(
    not COMFYUI or not os.environ.get("COMFYUI_PYTHON"),
    reason="no ComfyUI here: set COMFYUI_PATH to its folder and COMFYUI_PYTHON to a Python that runs it",
)

COMFYS_NAMES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import comfy.options, comfy.cli_args
comfy.cli_args.args.cpu = True
import torch, comfy.ops
from comfy import clip_model, model_detection, sdxl_clip, supported_models
from comfy.ldm.cascade.stage_a import StageA
from comfy.ldm.cascade.stage_b import StageB
from comfy.ldm.cascade.stage_c import StageC
from comfy.ldm.cascade.stage_c_coder import StageC_coder
plain = comfy.ops.disable_weight_init
out = {}
for name, shapes in json.load(open(sys.argv[2])).items():
    given = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    prefix = model_detection.unet_prefix_from_state_dict(given)
    prefix = prefix if any(key.startswith(prefix) for key in given) else ""  # as its loader does
    kind = model_detection.model_config_from_unet(given, prefix)
    network = (StageC if name[0] == "c" else StageB)
    config = {key: value for key, value in kind.unet_config.items() if key != "disable_unet_model_creation"}
    with torch.device("meta"):
        made = network(operations=plain, device="meta", **config).state_dict()
        made = kind.process_unet_state_dict_for_saving(made)
        if prefix:
            vae = StageC_coder() if name[0] == "c" else StageA()
            made |= kind.process_vae_state_dict_for_saving(vae.state_dict())
            clip = sdxl_clip.StableCascadeClipModel(device="meta", dtype=torch.float16)
            made |= kind.process_clip_state_dict_for_saving(clip.state_dict())
        else:
            given = kind.process_unet_state_dict(given)
            given = {"model.diffusion_model." + key: value for key, value in given.items()}
    if prefix and kind.clip_vision_prefix:
        about = json.load(open(sys.argv[1] + "/comfy/clip_vision_config_vitl.json"))
        sight = clip_model.CLIPVisionModelProjection(about, torch.float16, "meta", plain)
        made |= kind.process_clip_vision_state_dict_for_saving(sight.state_dict())
    ours = {key: list(value.shape) for key, value in given.items()}
    theirs = {key: list(value.shape) for key, value in made.items()}
    out[name] = {"kind": type(kind).__name__, "only ours": sorted(ours.keys() - theirs.keys()),
                 "only theirs": sorted(theirs.keys() - ours.keys()),
                 "shapes": [key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]]}
print(json.dumps(out))
"""


LAYOUTS = Path(__file__).parents[1] / "models" / "layouts"
BIG_G = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "vocab_size": 49408,
}


def official(name: str) -> dict[str, list[int]]:
    """The shapes of an official file."""
    grouped = json.loads((LAYOUTS / f"{name}.json").read_text(encoding="utf-8"))
    return {key: json.loads(shape) for shape, keys in grouped.items() for key in keys.split()}


def hollow(path: Path, shapes: dict[str, list[int]]) -> None:
    """A file with a truthful header over a hole."""
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        handle.truncate(8 + len(text) + at)


@pytest.mark.parametrize("variant", ["", "_lite"])
@needs_comfyui
def test_comfyui_has_a_place_for_every_tensor_and_misses_none(tmp_path: Path, variant: str) -> None:
    """Full size, of headers: what its own detection makes of the names and shapes, and what its own classes
    and functions for saving would have written."""
    from transformers import CLIPVisionConfig

    root = tmp_path / "models"
    part_of: dict[str, Part] = {
        f"stage_c{variant}": "stage_c",
        f"stage_b{variant}": "stage_b",
        "stage_a": "stage_a",
        "effnet_encoder": "compressor",
        "previewer": "previewer",
    }
    files: dict[Part, Path] = {part: root / f"{part}.safetensors" for part in part_of.values()}
    for name, part in part_of.items():
        hollow(files[part], official(name))
    sight = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        patch_size=14,
        projection_dim=768,
    )
    configs: dict[Part, dict[str, Any]] = {"text": BIG_G, "image": sight.to_dict()}
    for part, config in configs.items():
        with torch.device("meta"):
            state = build.build(part, config).state_dict()
        files[part] = root / f"{part}.safetensors"
        hollow(files[part], {name: list(value.shape) for name, value in state.items()})
    models = ModelsSpec(
        "official", parts=tuple(PartFile(part, "", str(path)) for part, path in files.items())
    )
    written: dict[str, dict[str, Later]] = {}
    stages: tuple[Part, ...] = ("stage_c", "stage_b")
    for part in stages:
        written[f"{part[-1]} whole"] = full.checkpoint_tensors(part, models, {}, torch.bfloat16)
        own = full.stored(models, part)
        written[f"{part[-1]} alone"] = full.native_tensors(part, own, torch.bfloat16)
    shapes = {
        name: {key: list(value.shape) for key, value in tensors.items()} for name, tensors in written.items()
    }
    (tmp_path / "shapes.json").write_text(json.dumps(shapes), encoding="utf-8")
    told = subprocess.run(
        [os.environ["COMFYUI_PYTHON"], "-c", COMFYS_NAMES, COMFYUI, str(tmp_path / "shapes.json")],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert told.returncode == 0, told.stderr[-2000:]
    for name, found in json.loads(told.stdout.splitlines()[-1]).items():
        assert found["kind"] == f"Stable_Cascade_{name[0].upper()}"
        assert found["only ours"] == [] and found["shapes"] == [], (name, found)
        # a number that scales what nobody reads, and positions 0, 1, 2 …, which it fills in
        left = [key for key in found["only theirs"] if not key.endswith(("logit_scale", "position_ids"))]
        assert left == [], (name, left)
