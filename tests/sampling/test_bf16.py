"""Everything that is drawn and encoded works in bf16 too, and shows the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cascade_train.cli import main
from cascade_train.diffusion.samplers import SamplerSettings, sampling_logsnrs
from cascade_train.diffusion.schedule import time_input
from cascade_train.diffusion.targets import clean_estimate, noised
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.nano.world import render, scene
from cascade_train.sampling import stages
from cascade_train.sampling.conditioning import encode_prompts
from cascade_train.sampling.pipeline import reconstruct, text_to_image

ROOT = Path(__file__).resolve().parents[2]
CAPTIONS = [scene("held-out", 5, index)[1] for index in range(16)]


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


@pytest.fixture(scope="module")
def nano() -> ModelsSpec:
    return library.models_in(library.nano_folder(), name="nano")


@pytest.fixture(scope="module")
def half(nano: ModelsSpec) -> ModelsSpec:
    return replace(nano, precision="bf16")


@torch.no_grad()
def test_one_step_of_each_network(nano: ModelsSpec, half: ModelsSpec) -> None:
    """One step of the sampler on its own path leaves latents within 2 % of fp32's norm.

    At the first step, out of pure noise, what the network answers is within 2 %, and no more can be: the
    signal is 0.01 there, the clean estimate divides by it, and bf16's rounding alone is 0.1 % of the answer.
    """
    text = encode_prompts(nano, CAPTIONS[:4])
    assert off(encode_prompts(half, CAPTIONS[:4]).hidden, text.hidden) < 0.02
    images = torch.from_numpy(np.stack([render("held-out", 5, index)[0] for index in range(4)])).float() / 255
    semantic = stages.encode_c(nano, images)
    stage_c: Any = library.part(nano, "stage_c")
    image = torch.zeros(4, 1, stage_c.config.clip_image_in_channels)
    inputs: dict[str, dict[str, torch.Tensor]] = {
        "stage_c": {"clip_text_pooled": text.pooled, "clip_text": text.hidden, "clip_img": image},
        "stage_b": {"clip_text_pooled": text.pooled, "effnet": semantic},
    }
    cleans = {"stage_c": semantic, "stage_b": stages.encode_a(nano, images) / stages.SCALE}
    for part, steps, shift in (("stage_c", 20, library.own_shift(nano)), ("stage_b", 10, 1.0)):
        clean = cleans[part]
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(4))
        levels = sampling_logsnrs(steps, shift)
        for index in range(steps):
            now, then = levels[index], levels[index + 1]
            x = noised(clean, noise, now)
            answers = {}
            for each in (nano, half):
                network: Any = library.part(each, part)  # type: ignore[arg-type]
                alone = SamplerSettings(steps, 1.0, 0.0)
                denoise = stages.guided_network(network, alone, inputs[part], inputs[part])
                answers[each.precision] = denoise(x, time_input(now).expand(4))
            if index == 0:
                assert off(answers["bf16"], answers["fp32"]) < 0.02, part
                continue
            stepped = [
                noised(clean_estimate(x, answer, now), answer, then)
                for answer in (answers["bf16"], answers["fp32"])
            ]
            assert off(*stepped) < 0.02, (part, index)


@torch.no_grad()
def test_the_time_itself_is_never_rounded(half: ModelsSpec) -> None:
    """Two times that are one number in bf16 have embeddings of their own, those of fp32 rounded once."""
    network: Any = library.part(half, "stage_c")
    times = torch.tensor([0.5000, 0.5015])
    assert times.bfloat16()[0] == times.bfloat16()[1]
    embedded = network.get_timestep_ratio_embedding(times)
    width = network.config.timestep_ratio_embedding_dim // 2
    steps = torch.exp(-torch.arange(width, dtype=torch.float64) * np.log(10000) / (width - 1))
    angles = times.double()[:, None] * 10000 * steps
    exact = torch.cat([angles.sin(), angles.cos()], 1)
    torch.testing.assert_close(embedded.double(), exact, rtol=0, atol=2**-8 + 1e-3)
    assert not torch.equal(embedded[0], embedded[1])


def test_pictures_are_the_same_but_for_a_few_that_take_another_course(
    nano: ModelsSpec, half: ModelsSpec
) -> None:
    """A few of many: `tests/bench/nano_bf16.py` draws 64, and judges 100."""
    drawn = [text_to_image(each, CAPTIONS, seeds=range(16), preview=False) for each in (nano, half)]
    apart = (drawn[0] - drawn[1]).abs().flatten(1).mean(1)
    assert float(apart.median()) <= 0.01


def test_pictures_go_through_the_encoders(nano: ModelsSpec, half: ModelsSpec) -> None:
    images = torch.from_numpy(np.stack([render("held-out", 5, index)[0] for index in range(8)])).float() / 255
    assert off(stages.encode_c(half, images), stages.encode_c(nano, images)) < 0.02
    assert off(stages.encode_a(half, images), stages.encode_a(nano, images)) < 0.02
    rough = [stages.preview_latents(each, stages.encode_c(nano, images)) for each in (half, nano)]
    assert off(*rough) < 0.05  # rough pictures, through eight layers
    again = [reconstruct(each, images) for each in (half, nano)]
    assert float((again[0] - again[1]).abs().flatten(1).mean(1).median()) <= 0.01


@pytest.mark.parametrize(
    "kind", ["lora", "tokens", "stage_c", "stage_b", "stage_a", "compressor", "previewer"]
)
def test_it_trains_on_bf16_models(studio: ModuleType, half: ModelsSpec, tmp_path: Path, kind: str) -> None:
    """The encoders are bf16, a frozen base too; losses are those of fp32 models to a few percent."""
    from cascade_train.training import run

    losses = {}
    for models in (replace(half, precision="fp32"), half):
        host = studio.CountingHost(tmp_path / models.precision)
        spec = studio.spec(kind, models)
        _, metrics = run.train(run.start(spec, host), 3, host=host)
        losses[models.precision] = [row["loss"] for row in metrics.rows]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)


FEW: dict[str, dict[str, object]] = {
    "text_to_image": {
        "Sample Stage C.steps": 4,
        "Sample Stage C.pictures": 2,
        "Decode Stage B.steps": 2,
    },
    "teach_a_concept": {
        "Prompts.pictures": 1,
        "Prompts.steps_c": 2,
        "Prompts.steps_b": 1,
        "Draw what it knows.steps_c": 1,
        "Draw what it knows.steps_b": 1,
        "Training Run.batch_size": 2,
        "Training Run.precision": "bf16",
        "Train Steps 1.steps": 2,
        "Train Steps 2.steps": 2,
        "Train Steps 3.steps": 2,
    },
}


@pytest.mark.parametrize("name", FEW)
def test_the_shipped_graphs_work_in_bf16(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Encoding, training with its previews, validating and drawing."""
    settings: dict[str, object] = {"Load Stable Cascade.precision": "bf16", **FEW[name]}
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    workflow = str(ROOT / "workflows" / f"{name}.json")
    code = main(["run", workflow, *arguments, "--output-dir", str(tmp_path), "--json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert "no more pictures" not in told.out + told.err
    saved = next((tmp_path / name).glob("*.png"))
    assert np.asarray(Image.open(saved)).std() > 20
