"""What was learned before, taken up again: LoRA files laid over and trained on, runs without their graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cascade_train_nodes import build_mappings
from safetensors.torch import save_file

from cascade_train.cli import main
from cascade_train.data.sources import folder_dataset
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.jobs.export import export
from cascade_train.jobs.train import train_block
from cascade_train.jobs.validate import validate
from cascade_train.models import header, library
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.sampling.spec import Prompts
from cascade_train.training import run as runs
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import LoRATarget, OptimizerSpec, Position, RunSpec
from cascade_train.training.trainer import Trainer

PROMPTS = Prompts(texts=("a red ring on a black background",), pictures=2, steps_c=2, steps_b=1)


@pytest.fixture
def nano() -> ModelsSpec:
    return library.models_in(library.nano_folder(), name="nano")


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    (tmp_path / "models" / "loras").mkdir(parents=True)
    return HeadlessHost(headless_folders(tmp_path / "output", models=[tmp_path / "models"]), "cpu")


def begin(models: ModelsSpec, host: HeadlessHost, target: LoRATarget, label: str = "zorp") -> Position:
    dataset = folder_dataset("bundled/crescent", recursive=True, host=host)
    optimizer = OptimizerSpec(learning_rate=0.02)
    spec = RunSpec(models, dataset, target, optimizer, batch_size=2, total_steps=6, label=label)
    return runs.start(spec, host)


def trained(models: ModelsSpec, host: HeadlessHost, kind: Any = "lora", label: str = "zorp") -> Position:
    later, *_ = train_block(begin(models, host, LoRATarget(2, 2.0, kind=kind), label), 3, None, host)
    return later


def exported(run: Position, host: HeadlessHost, name: str = "zorp", format: str = "ComfyUI") -> Path:
    path = Path(export(run, format, "", "fp32", host)[0])
    target = host.folders.models["loras"][0] / f"{name}.safetensors"
    target.write_bytes(path.read_bytes())
    return target


def nodes(host: HeadlessHost) -> dict[str, Any]:
    return build_mappings(host)[0]


def drawn(models: ModelsSpec) -> torch.Tensor:
    return text_to_image(models, PROMPTS.texts, seeds=[0, 1], steps_c=2, steps_b=1, preview=False)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_file_draws_what_its_run_draws(nano: ModelsSpec, host: HeadlessHost, kind: str) -> None:
    run = trained(nano, host, kind)
    exported(run, host)
    load = nodes(host)["CascadeLoadLoRA"]
    assert load.INPUT_TYPES()["required"]["lora"][0][1:] == ["zorp.safetensors"]
    (over,) = load().run(nano, "zorp.safetensors", 1.0, 1.0)
    wanted = drawn(apply_trained(nano, run, 1.0, host))
    torch.testing.assert_close(drawn(over), wanted, rtol=0, atol=1e-3)
    assert (wanted - drawn(nano)).abs().mean() > 1e-3
    (none,) = load().run(nano, "zorp.safetensors", 0.0, 0.0)
    assert torch.equal(drawn(none), drawn(nano))
    (twice,) = load().run(over, "zorp.safetensors", -1.0, 1.0)
    if kind == "lora":
        torch.testing.assert_close(drawn(twice), drawn(nano), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("before", "after"), [("lora", "lora"), ("lora", "dora"), ("dora", "dora")])
def test_training_starts_where_a_file_ends(
    nano: ModelsSpec, host: HeadlessHost, before: str, after: Any
) -> None:
    """Also at a larger rank and another alpha; what is not in the file starts as ever."""
    exported(trained(nano, host, before), host)
    (over,) = nodes(host)["CascadeLoadLoRA"]().run(nano, "zorp.safetensors", 1.0, 1.0)
    (target,) = nodes(host)["CascadeLoRATarget"]().run(
        rank=4, alpha=2.0, modules="attn, channelwise", kind=after, start_from="zorp.safetensors"
    )
    position = begin(nano, host, target)
    assert position.spec.digest != begin(nano, host, replace(target, start=None)).spec.digest
    network: Any = Trainer(position.settings, host).objective.unet  # type: ignore[attr-defined]
    x = torch.linspace(-2, 2, 16 * 64).view(1, 16, 8, 8)
    inputs = {
        "timestep_ratio": torch.tensor([0.7]),
        "clip_text_pooled": torch.ones(1, 1, network.config.clip_text_pooled_in_channels),
        "clip_text": torch.ones(1, 32, network.config.clip_text_in_channels),
        "clip_img": torch.zeros(1, 1, network.config.clip_image_in_channels),
    }
    with torch.no_grad():
        found = network(x, **inputs, return_dict=False)[0]
        wanted = library.part(over, "stage_c")(x, **inputs, return_dict=False)[0]
        plain = library.part(nano, "stage_c")(x, **inputs, return_dict=False)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert (plain - wanted).abs().mean() > 1e-3
    later, *_ = train_block(position, 2, None, host)
    half, *_ = train_block(position, 1, None, host)
    again, *_ = train_block(half, 1, None, host)
    assert again.name == later.name
    assert runs.metrics(later)[0]["loss"] != runs.metrics(later)[1]["loss"]


def test_what_does_not_fit_is_said_before_anything_loads(
    nano: ModelsSpec, host: HeadlessHost, tmp_path: Path
) -> None:
    exported(trained(nano, host, "dora"), host)
    loras = host.folders.models["loras"][0]
    flux = {"lora_unet_double_blocks_0_img_attn_proj.lora_down.weight": torch.zeros(4, 3072)}
    flux["lora_unet_double_blocks_0_img_attn_proj.lora_up.weight"] = torch.zeros(3072, 4)
    save_file(flux, loras / "style.safetensors")
    load, target = nodes(host)["CascadeLoadLoRA"], nodes(host)["CascadeLoRATarget"]
    assert "style.safetensors" not in load.INPUT_TYPES()["required"]["lora"][0]
    assert "Flux" in load.VALIDATE_INPUTS(lora="style.safetensors")
    assert "Flux" in target.VALIDATE_INPUTS(start_from="style.safetensors")
    assert "no LoRA is chosen" in load.VALIDATE_INPUTS(lora="choose a file")
    assert "gone.safetensors" in load.VALIDATE_INPUTS(lora="gone.safetensors")
    assert load.VALIDATE_INPUTS(lora="zorp.safetensors") is True
    assert target.VALIDATE_INPUTS(start_from="nothing") is True
    wrong = (
        ({"rank": 1}, "has rank 2, and the target 1"),
        ({"kind": "lora"}, "is a DoRA"),
        ({"modules": "channelwise"}, "Use the filter 'attn'"),
        ({"alpha": 0.0}, "alpha of 0"),
    )
    for change, message in wrong:
        settings: dict[str, Any] = {"rank": 2, "alpha": 2.0, "modules": "attn", "kind": "dora", **change}
        (made,) = target().run(start_from="zorp.safetensors", **settings)
        with pytest.raises(CascadeError, match=message):
            begin(nano, host, made)
    good = LoRATarget(2, 2.0, kind="dora", start=made.start)
    position = begin(nano, host, good)
    save_file(flux, loras / "zorp.safetensors")
    with pytest.raises(CascadeError, match="another one than when it was chosen"):
        train_block(position, 1, None, host)


def graph(name: str, step: int = 0) -> dict[str, Any]:
    """Load Stable Cascade → Load Run → Validate → Save Image."""
    return {
        "1": {
            "class_type": "CascadeLoadStableCascade",
            "inputs": {"source": "nano (bundled)", "variant": "full", "precision": "fp32"},
        },
        "2": {"class_type": "CascadeLoadRun", "inputs": {"models": ["1", 0], "name": name, "step": step}},
        "3": {
            "class_type": "CascadePrompts",
            "inputs": {
                "texts": PROMPTS.texts[0],
                "negative": "",
                "pictures": 2,
                "seed": PROMPTS.seed,
                "width": 0,
                "height": 0,
                "steps_c": 2,
                "cfg_c": PROMPTS.cfg_c,
                "rescale": PROMPTS.rescale,
                "steps_b": 1,
                "cfg_b": PROMPTS.cfg_b,
                "sampler": PROMPTS.sampler,
                "shift": 1.0,
            },
        },
        "4": {
            "class_type": "CascadeValidate",
            "inputs": {"prompts": ["3", 0], "title": "", "strength": 1.0, "run": ["2", 0]},
        },
        "5": {"class_type": "SaveImage", "inputs": {"images": ["4", 1], "filename_prefix": "last_week"}},
    }


def test_last_weeks_run_draws_without_its_graph(
    nano: ModelsSpec, host: HeadlessHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = trained(nano, host, label="zorp"), trained(nano, host, "dora", label="newer")
    names = nodes(host)["CascadeLoadRun"].INPUT_TYPES()["required"]["name"][0]
    assert names[1:] == [
        f"newer [{second.spec.digest[:12]}]",
        f"zorp [{first.spec.digest[:12]}]",
    ]
    load = nodes(host)["CascadeLoadRun"]
    assert load.VALIDATE_INPUTS(name="zorp") is True
    assert "there is no run 'zarp'" in load.VALIDATE_INPUTS(name="zarp")
    (run,) = load().run(nano, names[2], 0)
    assert (run.name, run.step, run.blocks) == (first.name, 3, first.blocks)
    assert torch.equal(
        drawn(apply_trained(nano, run, 1.0, host)), drawn(apply_trained(nano, first, 1.0, host))
    )
    again, same = (Path(export(each, "ComfyUI", "", "fp32", host)[0]) for each in (run, first))
    assert again == same
    told = [header.read(path).metadata for path in (again,)]
    assert told[0]["cascade_train.run"] == first.spec.digest
    assert json.loads(told[0]["cascade_train.dataset"])["digest"] == first.settings.dataset.digest

    wanted = validate(PROMPTS, host, run=first)[1]
    prompt = tmp_path / "draw.json"
    prompt.write_text(json.dumps(graph("zorp")), encoding="utf-8")
    where = ["--output", str(host.folders.output), "--device", "cpu"]
    assert main(["run", str(prompt), "--dry-run", *where]) == 0
    assert f"run {first.spec.digest} at step 3" in capsys.readouterr().out
    assert main(["run", str(prompt), *where]) == 0
    import numpy as np
    from PIL import Image

    files = sorted(host.folders.output.rglob("last_week*.png"))
    assert len(files) == 2
    for file, picture in zip(files, wanted):
        assert (np.asarray(Image.open(file)) == (picture.numpy() * 255).round().astype(np.uint8)).all()

    with pytest.raises(CascadeError, match=r"step 2 of this run is not on disk.*Use one of 3"):
        load().run(nano, "zorp", 2)
    with pytest.raises(CascadeError, match="cannot be trained on"):
        train_block(run, 1, None, host)
    prompt.write_text(json.dumps(graph("zarp")), encoding="utf-8")
    assert main(["run", str(prompt), *where]) != 0
    assert "there is no run 'zarp'" in capsys.readouterr().err


def test_a_run_is_not_laid_over_other_models(nano: ModelsSpec, tiny: ModelsSpec, host: HeadlessHost) -> None:
    sink = host.sink
    assert isinstance(sink, Quiet)
    trained(nano, host)
    load = nodes(host)["CascadeLoadRun"]
    with pytest.raises(CascadeError, match="was trained on another Stage C"):
        load().run(tiny, "zorp", 0)
    exported(trained(nano, host), host)
    (over,) = nodes(host)["CascadeLoadLoRA"]().run(nano, "zorp.safetensors", 1.0, 1.0)
    with pytest.raises(CascadeError, match="other runs or LoRAs"):
        load().run(over, "zorp", 0)
    load().run(replace(nano, precision="bf16"), "zorp", 0)
    assert "held otherwise" in sink.warnings[-1]
