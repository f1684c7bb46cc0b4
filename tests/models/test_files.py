"""Files as people have them: told apart by what is in them, and read from wherever they lie."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cascade_train.cli import main
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost
from cascade_train.models import build, clip, finding, layouts, library, reading, recognise, starts, weights
from cascade_train.models.spec import Part, PartFile
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


def test_encoders_of_other_models_stand_aside(full_size: Path, host: HeadlessHost) -> None:
    """Who draws with SDXL, SD3 or an IP-Adapter has them in the same folders; none is offered or taken."""
    small = {**BIG_G, "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2}
    hollow(full_size / "text_encoders" / "clip_l.safetensors", text_shapes(small))
    vit_h = {"vision_model.embeddings.class_embedding": [1280], "visual_projection.weight": [1024, 1280]}
    hollow(full_size / "clip_vision" / "h.safetensors", vit_h)
    hollow(full_size / "clip_vision" / "H too.safetensors", vit_h)
    models = library.load_models("files", host=host)
    assert Path(library.part_file(models, "text").path).name == "clip_g.safetensors"
    assert not library.has(models, "image")
    assert list(dict(finding.listed("text", host))) == ["clip_g.safetensors"]
    assert not dict(finding.listed("image", host))
    with pytest.raises(CascadeError, match=r"the file holds the text encoder CLIP ViT-L \(Stable Diff"):
        library.load_models("files", host=host, files={"text": "clip_l.safetensors"})
    with pytest.raises(CascadeError, match="the file holds the image encoder CLIP ViT-H"):
        library.load_models("files", host=host, files={"image": "h.safetensors"})
    other = {**BIG_G, "hidden_size": 640, "num_attention_heads": 10, "num_hidden_layers": 2}
    hollow(full_size / "text_encoders" / "unknown.safetensors", text_shapes(other))
    with pytest.raises(CascadeError, match="text encoder gives 640 channels and Stage C takes 1280"):
        library.load_models("files", host=host, files={"text": "unknown.safetensors"})


def test_another_encoders_tokenizer_is_not_taken(full_size: Path, host: HeadlessHost) -> None:
    """One that lies in the folder of text encoders is CLIP's only if it has CLIP's first token."""
    place = full_size / "text_encoders"
    (place / "tokenizer.json").write_text('{"model": {"vocab": {"<pad>": 0}}}', encoding="utf-8")
    assert clip.tokenizer_place(place / "clip_g.safetensors") == place / "tokenizer"


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
    turned = text.pop("text_projection.weight").t()
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
            "text_encoder.clip_g.": {"text_projection": turned, "logit_scale": torch.tensor(1.0)},
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

    def content(part: Part, path: Path) -> str:
        return reading.content_id(PartFile(part, "", str(path), reading.prefix_in(part, path)))

    b, a = (content(part, root / "b.safetensors") for part in ("stage_b", "stage_a"))
    changed = {name: value + 1 for name, value in own("stage_b").items()}
    all_in_one(root / "d.safetensors", {"vae.": own("stage_a"), "model.diffusion_model.": changed})
    assert content("stage_a", root / "d.safetensors") == a, "whatever lies beside it"
    assert content("stage_b", root / "d.safetensors") != b


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
    """Many keep models on another disk, and links in ComfyUI's folders. ComfyUI follows them; a command line
    where the person allows it, by the folder or all of them. A link may be a file, a folder, or the files in
    a folder, as in the hub's cache."""
    disk = tmp_path / "other disk"
    (disk / "more").mkdir(parents=True)
    shutil.move(full_size / "unet" / "stage_c_bf16.safetensors", disk / "c.safetensors")
    shutil.move(full_size / "vae", disk / "vae")
    shutil.move(full_size / "text_encoders" / "clip_g.safetensors", disk / "blob")
    text = full_size / "text_encoders" / "bigG"
    text.mkdir()
    (text / "config.json").write_text(json.dumps(BIG_G), encoding="utf-8")
    try:
        (full_size / "unet" / "linked.safetensors").symlink_to(disk / "c.safetensors")
        (full_size / "vae").mkdir()
        (full_size / "vae" / "all").symlink_to(disk / "vae", target_is_directory=True)
        (full_size / "vae" / "circle").symlink_to(full_size / "vae", target_is_directory=True)
        (text / "model.safetensors").symlink_to(disk / "blob")
    except OSError:
        pytest.skip("this system makes no links without more rights")
    with pytest.raises(CascadeError, match=r"missing: stage_c .*stage_a .*compressor .*text"):
        library.load_models("files", host=host)
    with pytest.raises(CascadeError, match=r"link that leads outside .*--follow-links"):
        library.load_models("files", host=host, files={"stage_c": "linked.safetensors"})
    for allowed in (replace(host.folders, follow_links=True), replace(host.folders, extra_read=(disk,))):
        there = HeadlessHost(allowed, "cpu")
        models = library.load_models("files", host=there)
        names = {file.part: Path(file.path).relative_to(full_size).as_posix() for file in models.parts}
        assert names["stage_c"] == "unet/linked.safetensors" and names["text"] == "text_encoders/bigG"
        assert names["stage_a"] == "vae/all/stage_a.safetensors"
        assert dict(finding.listed("stage_a", there)).keys() == {"all/stage_a.safetensors"}


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
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_loading_takes_no_second_copy(tmp_path: Path, layout: Layout, kind: torch.dtype) -> None:
    """The 1B's widths, one triple of blocks a level, held in bf16: at the peak it takes the file's size and
    at most a tenth more, whether the file is in bf16 or has to be converted."""
    random = torch.randn(32 << 20, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(kind)
    tensors = {
        name: random[: math.prod(shape)].view(*shape)
        for name, shape in layout("stage_c_lite").items()
        if not re.match(r"(down|up)_blocks\.\d+\.([3-9]|\d\d)\.", name)
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
        size = path.stat().st_size
        assert held > 2e8 and peak <= size * 1.1 + 24e6, "the libraries take some beside so small a file"
    finally:
        path.unlink()


def test_clip_in_openclips_layout(tmp_path: Path) -> None:
    """As ComfyUI's own conversion reads it. A file may hold both encoders, in Hugging Face's layout too."""
    folder, python = os.environ.get("COMFYUI_PATH"), os.environ.get("COMFYUI_PYTHON")
    if not folder or not python:
        pytest.skip("COMFYUI_PATH and COMFYUI_PYTHON name a ComfyUI")
    made = torch.Generator().manual_seed(0)

    def block(stem: str, width: int) -> dict[str, list[int]]:
        return {
            f"{stem}ln_1.weight": [width],
            f"{stem}ln_1.bias": [width],
            f"{stem}ln_2.weight": [width],
            f"{stem}ln_2.bias": [width],
            f"{stem}attn.in_proj_weight": [3 * width, width],
            f"{stem}attn.in_proj_bias": [3 * width],
            f"{stem}attn.out_proj.weight": [width, width],
            f"{stem}attn.out_proj.bias": [width],
            f"{stem}mlp.c_fc.weight": [4 * width, width],
            f"{stem}mlp.c_fc.bias": [4 * width],
            f"{stem}mlp.c_proj.weight": [width, 4 * width],
            f"{stem}mlp.c_proj.bias": [width],
        }

    text = {
        "positional_embedding": [77, 128],
        "token_embedding.weight": [49408, 128],
        "text_projection": [128, 32],
    }
    text |= {"ln_final.weight": [128], "ln_final.bias": [128], "logit_scale": []}
    text |= block("transformer.resblocks.0.", 128) | block("transformer.resblocks.1.", 128)
    sight = {"class_embedding": [128], "positional_embedding": [17, 128], "proj": [128, 32]}
    sight |= {
        "conv1.weight": [128, 3, 8, 8],
        **{f"ln_{n}.{k}": [128] for n in ("pre", "post") for k in ("weight", "bias")},
    }
    sight |= block("transformer.resblocks.0.", 128)
    shapes = {**text, **{f"visual.{name}": shape for name, shape in sight.items()}}
    file = tmp_path / "open_clip_model.safetensors"
    save_file({name: torch.randn(shape, generator=made) for name, shape in shapes.items()}, file)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import comfy.options\n"
        "import comfy.utils, comfy.cli_args; comfy.cli_args.args.cpu = True\n"
        "import comfy.clip_vision as cv; from safetensors.torch import load_file, save_file\n"
        "def save(sd, to): save_file({k: v.contiguous() for k, v in sd.items()}, to)\n"
        "save(comfy.utils.clip_text_transformers_convert(load_file(sys.argv[2]), '', ''), sys.argv[3])\n"
        "save(cv.convert_to_transformers(load_file(sys.argv[2]), 'visual.'), sys.argv[4])\n"
    )
    theirs = {"text": tmp_path / "text.safetensors", "image": tmp_path / "image.safetensors"}
    subprocess.run([python, "-c", script, folder, file, *theirs.values()], check=True, capture_output=True)
    for part, converted in theirs.items():
        if part == "text":
            widths.write_tokenizer(tmp_path)
        ours = build.load(part, file).state_dict()  # type: ignore[arg-type]
        expected = load_file(converted)
        assert ours and all(torch.equal(value, expected[name]) for name, value in ours.items()), part
    both = {**load_file(theirs["text"]), **load_file(theirs["image"])}
    both = {name: both[name].contiguous() for name in both if name.startswith(("text_", "vis"))}
    both = {name: value for name, value in both.items() if not name.startswith("visual.")}
    save_file(both, tmp_path / "CLIPModel.safetensors")
    for part in theirs:
        ours = build.load(part, tmp_path / "CLIPModel.safetensors").state_dict()  # type: ignore[arg-type]
        assert all(torch.equal(value, both[name]) for name, value in ours.items()), part


COMFYS_NAMES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import comfy.options, comfy.cli_args
comfy.cli_args.args.cpu = True
import torch, comfy.ops
from comfy import clip_model, sdxl_clip, supported_models
from comfy.ldm.cascade.stage_a import StageA
from comfy.ldm.cascade.stage_b import StageB
from comfy.ldm.cascade.stage_c import StageC
from comfy.ldm.cascade.stage_c_coder import StageC_coder
plain = comfy.ops.disable_weight_init
with torch.device("meta"):
    c, b = StageC(operations=plain, device="meta"), StageB(operations=plain, device="meta")
    coder, a = StageC_coder(), StageA()
    text = sdxl_clip.StableCascadeClipModel(device="meta", dtype=torch.float16)
    about = json.load(open(sys.argv[1] + "/comfy/clip_vision_config_vitl.json"))
    sight = clip_model.CLIPVisionModelProjection(about, torch.float16, "meta", plain)
kind = supported_models.Stable_Cascade_C({"stable_cascade_stage": "c"})
def whole(unet, clip, vae, vision):
    made = kind.process_unet_state_dict_for_saving(unet.state_dict())
    made |= kind.process_vae_state_dict_for_saving(vae.state_dict())
    if clip is not None:
        made |= kind.process_clip_state_dict_for_saving(clip.state_dict())
        made |= kind.process_clip_vision_state_dict_for_saving(vision.state_dict())
    return {name: list(value.shape) for name, value in made.items()}
print(json.dumps({"c": whole(c, text, coder, sight), "b": whole(b, None, a, None)}))
"""


def test_what_comfyui_would_save_has_a_place_for_every_tensor(tmp_path: Path, host: HeadlessHost) -> None:
    """Full size; names and shapes are those of ComfyUI's own classes and functions for saving."""
    folder, python = os.environ.get("COMFYUI_PATH"), os.environ.get("COMFYUI_PYTHON")
    if not folder or not python:
        pytest.skip("COMFYUI_PATH and COMFYUI_PYTHON name a ComfyUI")
    told = subprocess.run([python, "-c", COMFYS_NAMES, folder], check=True, capture_output=True, text=True)
    for name, shapes in json.loads(told.stdout.splitlines()[-1]).items():
        hollow(tmp_path / "models" / "checkpoints" / f"stable_cascade_stage_{name}.safetensors", shapes)
    widths.write_tokenizer(tmp_path / "models" / "checkpoints" / "tokenizer")
    models = library.load_models("files", host=host)
    assert {file.part for file in models.parts} == set(recognise.PREFIXES)
    for file in models.parts:
        shapes, _ = reading.read_headers(Path(file.path))
        rename = build._RENAMES.get(file.part, build._as_it_is)
        given: dict[str, torch.Tensor] = {}
        for name, shape in shapes.items():
            own = recognise.own_name(file.part, file.prefix, name)
            if own is not None:
                given.update(rename(own, torch.empty(shape, device="meta")))
        with torch.device("meta"):
            module = build.build(file.part, build.described(file)[0])
        build.put_into(module, given, where=file.path)
    size = library.geometry(models)
    assert (size.latent_factor, size.text_width, size.pooled_width, size.image_width) == (32, 1280, 1280, 768)


def test_fp8_weights_are_looked_at_too(tmp_path: Path, small: dict[str, Any]) -> None:
    tensors = build.file_tensors("stage_a", small["stage_a"])
    low = {
        name: value.to(torch.float8_e4m3fn) if value.ndim > 1 else value for name, value in tensors.items()
    }
    path = tmp_path / "a.safetensors"
    weights.write_tensors(path, low, build.module_config("stage_a", small["stage_a"]))
    found = build.load("stage_a", path, torch.bfloat16).state_dict()
    assert torch.equal(found["in_block.1.weight"], low["in_block.1.weight"].bfloat16())
    low["in_block.1.weight"].view(torch.uint8).view(-1)[3] = 0x7F  # NaN in this format
    weights.write_tensors(path, low, build.module_config("stage_a", small["stage_a"]))
    with pytest.raises(CascadeError, match=r"not numbers: in_block\.1\.weight"):
        build.load("stage_a", path, torch.bfloat16)


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


@pytest.mark.parametrize("name", ["teach_a_concept", "text_to_image", "reconstruct", "lora_stable_cascade"])
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
