"""Files as people have them: told apart by what is in them, and read from wherever they lie."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cascade_train.cli import main
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost
from cascade_train.models import build, clip, finding, layouts, library, recognise, starts, weights
from cascade_train.nano import widths

ROOT = Path(__file__).resolve().parents[2]
Layout = Callable[[str], dict[str, list[int]]]
OFFICIAL: dict[str, tuple[str, str]] = {
    "stage_c": ("stage_c", "unet/stage_c_bf16.safetensors"),
    "stage_b_lite": ("stage_b", "unet/stage_b_lite_bf16.safetensors"),
    "stage_b": ("stage_b", "unet/stage_b_bf16.safetensors"),
    "stage_a": ("stage_a", "vae/stage_a.safetensors"),
    "effnet_encoder": ("compressor", "vae/effnet_encoder.safetensors"),
    "previewer": ("previewer", "vae/previewer.safetensors"),
}
BIG_G = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
    "vocab_size": 49408,
    "max_position_embeddings": 77,
}


def hollow(path: Path, shapes: Mapping[str, Sequence[int]], kind: str = "BF16") -> None:
    """A file with a truthful header and no data on disk: a hole of the right length."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * 2
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        handle.truncate(8 + len(text) + at)


def text_shapes(config: Mapping[str, Any] = BIG_G) -> dict[str, list[int]]:
    with torch.device("meta"):
        module = build.build("text", config)
    return {
        name: list(value.shape) for name, value in module.state_dict().items() if "position_ids" not in name
    }


@pytest.fixture
def full_size(tmp_path: Path, layout: Layout) -> Path:
    """A models folder of full-size headers, the text encoder in one file beside a tokenizer."""
    root = tmp_path / "models"
    for name, (_, place) in OFFICIAL.items():
        hollow(root / place, layout(name))
    hollow(root / "text_encoders" / "clip_g.safetensors", text_shapes())
    widths.write_tokenizer(root / "text_encoders" / "tokenizer")
    return root


def all_in_one(path: Path, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        prefix + name: value.contiguous().clone()
        for prefix, own in parts.items()
        for name, value in own.items()
    }
    save_file(whole, path)


@pytest.fixture
def small() -> dict[str, Any]:
    made: dict[str, Any] = {
        part: starts.initial(part, "random", "quick", 0, None)
        for part in ("stage_c", "stage_b", "stage_a", "compressor", "previewer")
    }
    torch.manual_seed(0)
    made["text"] = build.build("text", widths.config("text"))
    return made


def same(module: Any, expected: Any) -> bool:
    ours, theirs = module.state_dict(), expected.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_every_part_is_known_by_its_header(layout: Layout) -> None:
    """Official files bare, with a prefix, in ComfyUI's split form and under diffusers' names."""
    for name, (part, _) in OFFICIAL.items():
        shapes = layout(name)
        assert recognise.parts_in(shapes) == (recognise.FoundPart(part, ""),), name  # type: ignore[arg-type]
        prefix = recognise.PREFIXES[part][1]  # type: ignore[index]
        moved = {prefix + key: shape for key, shape in shapes.items()}
        assert recognise.parts_in(moved) == (recognise.FoundPart(part, prefix),), name  # type: ignore[arg-type]
        if part in ("stage_c", "stage_b"):
            meta = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
            diffusers = {key: list(value.shape) for key, value in layouts.to_diffusers(meta).items()}
            assert any(".to_q." in key for key in diffusers)
            assert recognise.parts_in(diffusers)[0].part == part
            assert layouts.unet_config(diffusers) == layouts.unet_config(shapes)
    assert recognise.parts_in(text_shapes()) == (recognise.FoundPart("text", ""),)


@pytest.mark.parametrize(
    "names, said",
    [
        (("lora_unet_down_blocks_0_2_attention_attn_to_q.lora_down.weight",), "a LoRA"),
        (("model.diffusion_model.input_blocks.0.0.weight", "cond_stage_model.x"), "Stable Diffusion"),
        (("model.diffusion_model.label_emb.0.0.weight", "conditioner.embedders.0.x"), "SDXL"),
        (("double_blocks.0.img_attn.qkv.weight",), "Flux"),
        (("model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight",), "Stable Diffusion 3"),
        (("backbone.0.0.weight", "projections.0.0.weight"), "a ControlNet of Stable Cascade"),
        (("encoder.block.0.layer.0.SelfAttention.q.weight",), "a T5 text encoder"),
        (("decoder.conv_in.weight",), "a VAE of another model"),
        (("something",), "no model that is known here"),
    ],
)
def test_other_files_are_refused_where_they_are_chosen(
    full_size: Path, host: HeadlessHost, names: Sequence[str], said: str
) -> None:
    """With what they are, before anything loads, and they are in no list."""
    hollow(full_size / "unet" / "other.safetensors", {name: [4, 4] for name in names})
    with pytest.raises(CascadeError, match=f"the file holds {said}") as told:
        library.load_models("files", host=host, files={"stage_c": "other.safetensors"})
    assert told.value.typed == ("stage_c", "other.safetensors")
    assert "other.safetensors" not in dict(finding.listed("stage_c", host))


def test_stage_b_is_no_stage_c(full_size: Path, host: HeadlessHost) -> None:
    with pytest.raises(CascadeError, match="the file holds Stage B, not stage_c"):
        library.load_models("files", host=host, files={"stage_c": "stage_b_bf16.safetensors"})
    assert list(dict(finding.listed("stage_c", host))) == ["stage_c_bf16.safetensors"]
    assert sorted(dict(finding.listed("stage_b", host))) == [
        "stage_b_bf16.safetensors",
        "stage_b_lite_bf16.safetensors",
    ]


def test_files_of_any_name_are_found(full_size: Path, host: HeadlessHost, layout: Layout) -> None:
    """One that fits is taken; where several do, a person chooses."""
    unet = full_size / "unet"
    shutil.move(unet / "stage_c_bf16.safetensors", unet / "my finetune.safetensors")
    models = library.load_models("files", host=host)
    assert Path(library.part_file(models, "stage_c").path).name == "my finetune.safetensors"
    assert Path(library.part_file(models, "text").path).name == "clip_g.safetensors"
    assert library.geometry(models).native_side == 768
    hollow(unet / "another.safetensors", layout("stage_c"))
    with pytest.raises(CascadeError, match=r"2 files hold Stage C: another\.safetensors, my finetune"):
        library.load_models("files", host=host)


def test_a_text_encoder_of_another_model(full_size: Path, host: HeadlessHost) -> None:
    small = {**BIG_G, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2}
    hollow(full_size / "text_encoders" / "clip_l.safetensors", text_shapes(small))
    with pytest.raises(CascadeError, match="text encoder gives 768 channels and Stage C takes 1280"):
        library.load_models("files", host=host, files={"text": "clip_l.safetensors"})


def test_a_missing_tokenizer_is_told_at_once(
    full_size: Path, host: HeadlessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(full_size / "text_encoders" / "tokenizer")
    monkeypatch.setattr(
        sys, "path", [place for place in sys.path if not (Path(place or ".") / "clip").is_dir()]
    )
    with pytest.raises(CascadeError, match=r"no tokenizer.*cascade-train\[clip\]"):
        library.load_models("files", host=host)


def test_comfyuis_all_in_one_checkpoints(tmp_path: Path, host: HeadlessHost, small: dict[str, Any]) -> None:
    """The usual download: everything is in two files, under ComfyUI's prefixes."""
    root = tmp_path / "models" / "checkpoints"

    def own(part: str) -> dict[str, torch.Tensor]:
        return build.file_tensors(part, small[part])  # type: ignore[arg-type]

    text = dict(small["text"].state_dict())
    text["logit_scale"] = torch.tensor(1.0)
    stats = {"mean": torch.zeros(3), "std": torch.ones(3)}
    split: dict[str, torch.Tensor] = {}
    for key, value in own("stage_c").items():  # as ComfyUI saves it: q, k and v apart
        if ".in_proj_" in key:
            stem, kind = key.split(".in_proj_")
            split |= {f"{stem}.to_{letter}.{kind}": part for letter, part in zip("qkv", value.chunk(3))}
        else:
            split[key] = value
    all_in_one(
        root / "c.safetensors",
        {
            "model.diffusion_model.": split,
            "vae.encoder.": {**own("compressor"), **stats},
            "vae.previewer.": own("previewer"),
            "text_encoder.clip_g.transformer.": text,
        },
    )
    all_in_one(root / "b.safetensors", {"model.diffusion_model.": own("stage_b"), "vae.": own("stage_a")})
    widths.write_tokenizer(root / "tokenizer")
    # small sizes show in no shape of a compressor, so nano's file says them; the official one needs none
    build.save("compressor", small["compressor"], tmp_path / "models" / "vae" / "effnet.safetensors")
    models = library.load_models("files", host=host, files={"compressor": "effnet.safetensors"})
    assert {file.part: Path(file.path).name for file in models.parts} == {
        "stage_c": "c.safetensors",
        "stage_b": "b.safetensors",
        "stage_a": "b.safetensors",
        "compressor": "effnet.safetensors",
        "previewer": "c.safetensors",
        "text": "c.safetensors",
    }
    for part in ("stage_b", "stage_a", "previewer", "text"):
        assert same(library.part(models, part), small[part]), part
    found = library.part(models, "stage_c").state_dict()
    assert all(torch.equal(found[name], value) for name, value in small["stage_c"].state_dict().items())


def test_folders_of_diffusers_in_shards_and_half_precision(
    tmp_path: Path, host: HeadlessHost, small: dict[str, Any]
) -> None:
    """prior, decoder (``clip_txt_pooled_mapper``), vqgan (``vquantizer.embedding``), text in shards."""
    root = tmp_path / "models"

    def folder(place: str, module: Any, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        (root / place).mkdir(parents=True)
        save_file({key: value.contiguous() for key, value in tensors.items()}, root / place / name)
        (root / place / "config.json").write_text("{}", encoding="utf-8")

    half = {name: value.bfloat16() for name, value in small["stage_c"].state_dict().items()}
    folder("diffusion_models/prior", small["stage_c"], "diffusion_pytorch_model.bf16.safetensors", half)
    folder(
        "diffusion_models/decoder",
        small["stage_b"],
        "diffusion_pytorch_model.safetensors",
        small["stage_b"].state_dict(),
    )
    quantizer = {
        name.replace("vquantizer.codebook", "vquantizer.embedding"): value
        for name, value in small["stage_a"].state_dict().items()
    }
    folder("vae/vqgan", small["stage_a"], "diffusion_pytorch_model.safetensors", quantizer)
    build.save("compressor", small["compressor"], root / "vae" / "effnet.safetensors")
    place = root / "text_encoders" / "bigG"
    place.mkdir(parents=True)
    names = list(small["text"].state_dict())
    shards = {
        "model-1.safetensors": names[: len(names) // 2],
        "model-2.safetensors": names[len(names) // 2 :],
    }
    for shard, keys in shards.items():
        save_file({key: small["text"].state_dict()[key].contiguous() for key in keys}, place / shard)
    index = {"weight_map": {key: shard for shard, keys in shards.items() for key in keys}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (place / "config.json").write_text(json.dumps(widths.config("text")), encoding="utf-8")
    widths.write_tokenizer(place)
    models = library.load_models("files", host=host)
    for part in ("stage_b", "stage_a", "compressor", "text"):
        assert same(library.part(models, part), small[part]), part
    found = library.part(models, "stage_c").state_dict()
    assert all(torch.equal(found[name], value.float()) for name, value in half.items())
    (place / "model-2.safetensors").unlink()
    with pytest.raises(CascadeError, match=r"1 of 2 shards are missing: model-2\.safetensors"):
        build.load("text", place)


def test_links_to_files_elsewhere(tmp_path: Path, full_size: Path, host: HeadlessHost) -> None:
    """Many keep models on another disk, and links in ComfyUI's folders: those are followed."""
    other = tmp_path / "other disk" / "c.safetensors"
    other.parent.mkdir()
    shutil.move(full_size / "unet" / "stage_c_bf16.safetensors", other)
    try:
        (full_size / "unet" / "linked.safetensors").symlink_to(other)
    except OSError:
        pytest.skip("this system makes no links without more rights")
    models = library.load_models("files", host=host)
    assert Path(library.part_file(models, "stage_c").path).name == "linked.safetensors"


def test_weights_that_are_not_numbers_are_named(tmp_path: Path, small: dict[str, Any]) -> None:
    tensors = build.file_tensors("stage_a", small["stage_a"])
    tensors["in_block.1.weight"] = tensors["in_block.1.weight"].clone()
    tensors["in_block.1.weight"].view(-1)[5] = math.nan
    tensors["out_block.0.bias"] = torch.full_like(tensors["out_block.0.bias"], math.inf)
    path = tmp_path / "a.safetensors"
    weights.write_tensors(path, tensors, build.module_config("stage_a", small["stage_a"]))
    with pytest.raises(
        CascadeError, match=r"2 tensors hold values that are not numbers: .*in_block\.1\.weight"
    ):
        build.load("stage_a", path)


WATCHED = """
import resource, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from cascade_train.models import build
import cascade_train.models.network, safetensors.torch
peak = [0]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
done = threading.Event()
def watch():
    while not done.is_set():
        peak[0] = max(peak[0], resident() - before)
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
module = build.load("stage_c", Path(sys.argv[1]), torch.bfloat16)
done.set()
print(peak[0], sum(p.numel() * p.element_size() for p in module.parameters()))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_loading_takes_no_second_copy(tmp_path: Path, layout: Layout) -> None:
    """A 1B-shaped file: peak memory is the file's and at most a tenth."""
    random = torch.randn(32 << 20, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    tensors = {
        name: random[: math.prod(shape)].view(*shape) for name, shape in layout("stage_c_lite").items()
    }
    path = tmp_path / "c.safetensors"
    weights.write_tensors(path, tensors)
    try:
        run = subprocess.run(
            [sys.executable, "-c", WATCHED, str(path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        peak, held = map(int, run.stdout.split())
        assert held > 2e9 and peak <= path.stat().st_size * 1.1
    finally:
        path.unlink()


def test_clips_vocabulary_from_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """clip-anytorch's file gives the ids of the tokenizer that ComfyUI has, for hard captions too."""
    clip_package = pytest.importorskip("importlib.util").find_spec("clip")
    if clip_package is None:
        pytest.skip("pip install clip-anytorch")
    comfy = os.environ.get("COMFYUI_PATH")
    captions = [
        "a cat",
        "naïve café — 50% off!!",
        "日本語 text 🙂 emoji",
        "don't   stop\n  ",
        "x" * 300,
        "ΑΒΓ αβγ",
        "",
    ]
    ours = clip.load_tokenizer(tmp_path / "clip_g.safetensors")
    assert len(ours.get_vocab()) == 49408 and ours.model_max_length == 77
    known = ours(["a photo of a cat"], padding="max_length", max_length=77).input_ids[0]
    assert known[:7] == [49406, 320, 1125, 539, 320, 2368, 49407] and known[7:] == [49407] * 70
    if comfy:
        from transformers import CLIPTokenizer

        theirs = CLIPTokenizer.from_pretrained(str(Path(comfy) / "comfy" / "sd1_tokenizer"))
        assert ours.get_vocab() == theirs.get_vocab()
        for caption in captions:
            assert ours(caption).input_ids == theirs(caption).input_ids, caption


@pytest.mark.parametrize("name", ["teach_a_concept", "text_to_image", "reconstruct"])
def test_every_workflow_is_right_with_full_size_files(
    full_size: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow = str(ROOT / "workflows" / f"{name}.json")
    choice = ["--set", "Load Stable Cascade.source=files", "--models-dir", str(full_size)]
    code = main(["validate", workflow, *choice])
    assert code == 0, capsys.readouterr().out


def test_validate_names_missing_and_wrong_files(
    full_size: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything loads, at the node and the input."""
    workflow = str(ROOT / "workflows" / "text_to_image.json")
    (full_size / "vae" / "stage_a.safetensors").unlink()
    choice = ["--set", "Load Stable Cascade.source=files", "--models-dir", str(full_size)]
    assert main(["validate", workflow, *choice]) != 0
    told = capsys.readouterr()
    assert "files of Stable Cascade are missing: stage_a (stage_a.safetensors in vae)" in told.out + told.err
    wrong = ["--set", "Load Stable Cascade.stage_a=previewer.safetensors"]
    assert main(["validate", workflow, *choice, *wrong]) != 0
    told = capsys.readouterr()
    assert "the file holds the previewer, not stage_a" in told.out + told.err
    assert "Load Stable Cascade (id 2)" in told.out + told.err


def test_a_folder_of_many_files_is_looked_through_once(full_size: Path, host: HeadlessHost) -> None:
    """Each header is parsed at most once, and those of other models not at all."""
    for number in range(300):
        hollow(
            full_size / "unet" / f"lora {number}.safetensors",
            {f"lora_unet_{i}.lora_up.weight": [8, 4] for i in range(50)},
        )
    finding._found.cache_clear()
    first = list(finding.listed("stage_c", host))
    looked = finding._found.cache_info().misses
    for part in ("stage_c", "stage_b"):
        list(finding.listed(part, host))
    assert [name for name, _ in first] == ["stage_c_bf16.safetensors"]
    assert finding._found.cache_info().misses == looked
