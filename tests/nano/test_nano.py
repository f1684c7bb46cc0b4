"""Making nano: every stage learns, stopping costs nothing, and the bundled models draw what they are told."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch

from cascade_train.drawing.paper import to_bytes
from cascade_train.models import compressor, library, starts
from cascade_train.models.spec import Part
from cascade_train.nano import calibrate
from cascade_train.nano.judge import judge, verdict
from cascade_train.nano.make import _host, make
from cascade_train.nano.recipe import QUICK, Stage, recipe, run_spec, steps_of
from cascade_train.nano.world import parse, render, scene

TINY = replace(
    QUICK,
    name="tiny",
    pictures=64,
    pictures_b=32,
    captions=32,
    steps_a=9,
    steps_compressor=9,
    steps_b=9,
    steps_c=9,
    steps_several=9,
    steps_threes=9,
    steps_fours=9,
    steps_small=9,
    batch_pictures=4,
    batch=4,
)


def test_every_stage_learns_and_a_second_call_only_reads(tmp_path):
    lines: list[str] = []
    made = make(tmp_path, TINY, jobs=1, tell=lines.append)
    assert any("stage_c" in line and "9/9" in line for line in lines)
    rates = [line for line in lines if "steps/s" in line]
    assert all("/9 " in line and float(line.split(" steps/s")[0].split()[-1]) > 0 for line in rates), rates
    from cascade_train.training import run

    host = _host(tmp_path)
    stages: tuple[tuple[Stage, str], ...] = (
        ("stage_a", "0"),
        ("compressor", "0"),
        ("stage_b", "1"),
        ("stage_c", "2"),
        ("stage_c_several", "3"),
        ("stage_c_threes", "4"),
        ("stage_c_fours", "5"),
        ("stage_b_small", "6"),
    )
    for stage, folder in stages:
        models = library.models_in(tmp_path / "parts" / "tiny" / folder, name="x")
        position = run.start(run_spec(stage, models, TINY), host)
        position, _ = run.train(position, steps_of(stage, TINY), host=host)
        losses = [row["loss"] for row in run.metrics(position)]
        assert len(losses) == 9 and all(math.isfinite(loss) for loss in losses)
        assert sum(losses[-3:]) < sum(losses[:3]), stage
    made_c = [tmp_path / "parts" / "tiny" / folder / "stage_c.safetensors" for folder in ("3", "4", "5")]
    assert len({path.read_bytes() for path in (*made_c, made.folder / "stage_c.safetensors")}) == 4
    models = library.models_in(made.folder, name="tiny")
    assert {file.part for file in models.parts} == {
        "compressor",
        "stage_c",
        "stage_b",
        "stage_a",
        "previewer",
        "text",
    }
    from cascade_train.sampling.pipeline import text_to_image

    drawn = text_to_image(
        models, ["a red star on a navy background"], seeds=[0], steps_c=2, steps_b=2, preview=False
    )
    assert drawn.shape == (1, 64, 64, 3) and torch.isfinite(drawn).all()
    before = models.digest
    lines.clear()
    again = make(tmp_path, TINY, jobs=1, tell=lines.append)
    assert not [line for line in lines if "steps/s" in line]
    assert library.models_in(again.folder, name="tiny").digest == before


def test_two_processes_make_what_one_makes(tmp_path):
    """Stages side by side, and those that are alone with their batch shared."""
    from cascade_train.training import run

    losses = {}
    for jobs in (1, 2):
        output = tmp_path / str(jobs)
        make(output, TINY, jobs=jobs, tell=lambda line: None)
        models = library.models_in(output / "parts" / "tiny" / "2", name="x")
        host = _host(output)
        position, _ = run.train(run.start(run_spec("stage_c", models, TINY), host), TINY.steps_c, host=host)
        losses[jobs] = [row["loss"] for row in run.metrics(position)]
    assert losses[2] == pytest.approx(losses[1], rel=0.02)


def test_recipe_is_whole():
    full, quick = recipe(), recipe(quick=True, seed=4)
    assert quick.seed == 4 and quick.config == "quick" and full.seed == 0
    for stage in get_args(Stage):
        assert 0 < steps_of(stage, quick) < 100 < steps_of(stage, full)


def test_calibration_changes_scale_and_not_pictures():
    pictures = torch.from_numpy(np.stack([render("rich", 1, index)[0] for index in range(32)]))
    pictures = pictures.permute(0, 3, 1, 2).float() / 255
    parts: tuple[Part, ...] = ("compressor", "previewer", "stage_a")
    encoder, decoder, stage_a = (
        cast("Any", starts.initial(part, "nano", "quick", 0, None)).eval().requires_grad_(False)
        for part in parts
    )
    with torch.no_grad():
        encoder.mapper[0].weight *= 100  # as large as trained ones, against the norm's epsilon
        before = decoder(compressor.encode(encoder, pictures)), stage_a.decode(stage_a.encode(pictures))
        codes = stage_a.decode(stage_a.encode(pictures), quantize=True)
    calibrate.unit_compressor(encoder, decoder, pictures)
    calibrate.unit_stage_a(stage_a, pictures)
    with torch.no_grad():
        latents = compressor.encode(encoder, pictures)
        a_latents = stage_a.encode(pictures)
        torch.testing.assert_close(decoder(latents), before[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(stage_a.decode(a_latents), before[1], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(stage_a.decode(a_latents, quantize=True), codes, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(latents.var((0, 2, 3)), torch.ones(16), rtol=0.02, atol=0.02)
    torch.testing.assert_close(a_latents.var(), torch.tensor(1.0), rtol=0.05, atol=0.05)


@pytest.fixture(scope="module")
def nano():
    return library.models_in(library.nano_folder(), name="nano")


def test_bundled_latents_have_unit_variance(nano):
    pictures = torch.from_numpy(np.stack([render("captioned", 99, index)[0] for index in range(64)]))
    pictures = pictures.permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        latents = compressor.encode(library.part(nano, "compressor"), pictures)
        stage_a: Any = library.part(nano, "stage_a")
        a_latents = stage_a.encode(pictures)
    assert latents.shape == (64, 16, 8, 8) and a_latents.shape == (64, 4, 16, 16)
    assert 0.8 < float(latents.std()) < 1.2 and 0.7 < float(a_latents.std()) < 1.3


def test_bundled_models_reconstruct_and_draw_what_is_asked(nano):
    from cascade_train.models.stage_a import psnr
    from cascade_train.sampling.pipeline import reconstruct, text_to_image

    images = torch.from_numpy(np.stack([render("held-out", 5, index)[0] for index in range(8)])).float() / 255
    assert float(psnr(reconstruct(nano, images), images).mean()) > 24
    captions = [scene("held-out", 5, index)[1] for index in range(16)]
    drawn = to_bytes(text_to_image(nano, captions, seeds=list(range(16)), preview=False))
    answers = [verdict(judge(picture), parse(caption)) for picture, caption in zip(drawn, captions)]
    right = {name: sum(answer[name] for answer in answers) for name in answers[0]}
    assert right["background"] >= 15 and right["colour"] >= 15 and right["place"] >= 14, right
    assert right["shape"] >= 11 and right["size"] >= 14 and right["count"] >= 13, right


def test_command_draws_a_picture(tmp_path):
    out = tmp_path / "one.png"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cascade_train.cli",
            "nano",
            "sample",
            "a large red star on a navy background",
            "--output",
            str(out),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    from PIL import Image

    assert Image.open(out).size == (64, 64)
