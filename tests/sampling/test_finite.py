"""Pictures of NaN are never saved without a word: an error names the part that made it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cascade_train.data.sources import pictures_dataset
from cascade_train.errors import CascadeError
from cascade_train.graph.core.save import SaveImage
from cascade_train.jobs.prepare import with_caches
from cascade_train.jobs.train import train_block
from cascade_train.jobs.validate import validate
from cascade_train.models import build, library
from cascade_train.models.spec import ModelsSpec, Part
from cascade_train.sampling import links, pipeline, stages
from cascade_train.sampling.spec import Prompts
from cascade_train.training import run

TOO_LARGE = 3e38
"""Finite in a file; the sum of two such is not."""

PROMPTS = Prompts(("a red circle",), pictures=1, steps_c=2, steps_b=1)

POISON: dict[Part, str] = {
    "stage_c": "clf.1.weight",
    "stage_b": "clf.1.weight",
    "stage_a": "out_block.0.weight",
    "compressor": "backbone.0.0.weight",
    "previewer": "blocks.0.weight",
    "text": "text_projection.weight",
}


@pytest.fixture
def poisoned(models_folder: Path, tmp_path: Path) -> Any:
    def make(part: Part) -> ModelsSpec:
        folder = tmp_path / f"poisoned-{part}"
        shutil.copytree(models_folder, folder)
        place = folder / "text" if part == "text" else folder / f"{part}.safetensors"
        module = library.own_copy(library.models_in(folder, name="whole"), part)
        with torch.no_grad():
            module.get_parameter(POISON[part]).fill_(TOO_LARGE)
        if part == "text":
            from cascade_train.models import weights

            weights.write_tensors(place / "model.safetensors", module.state_dict())
        else:
            build.save(part, module, place)
        return library.models_in(folder, name="poisoned")

    return make


@pytest.fixture
def host(studio: ModuleType, tmp_path: Path) -> Any:
    return studio.CountingHost(tmp_path / "output")


@pytest.mark.parametrize(
    ("part", "called"),
    [
        ("text", "the text encoder made states"),
        ("stage_c", "Stage C made latents"),
        ("stage_b", "Stage B made latents"),
        ("stage_a", "Stage A made pictures"),
    ],
)
def test_the_part_is_named_and_nothing_is_kept(poisoned: Any, host: Any, part: Part, called: str) -> None:
    with pytest.raises(CascadeError, match=f"{called} that are not numbers") as told:
        validate(PROMPTS, host, models=poisoned(part))
    assert "bf16 or fp32 file" in str(told.value)
    assert not list(host.folders.output.rglob("*.png")) and not list(
        host.folders.cache.rglob("*.safetensors")
    )


def test_encoders_and_the_previewer_too(poisoned: Any, host: Any) -> None:
    picture = torch.rand(1, 64, 64, 3)
    with pytest.raises(CascadeError, match="the semantic compressor made latents"):
        links.encode_stage_c(poisoned("compressor"), picture, host)
    with pytest.raises(CascadeError, match="the previewer made pictures"):
        stages.preview_latents(poisoned("previewer"), torch.randn(1, 16, 8, 8))


def test_a_bad_step_stops_the_drawing_there(poisoned: Any) -> None:
    """Not after a thousand steps, and not as the previewer's fault."""
    seen: list[int] = []
    with pytest.raises(CascadeError, match="Stage C made latents"):
        pipeline.text_to_image(
            poisoned("stage_c"),
            ["a red circle"],
            seeds=[1],
            steps_c=50,
            progress=lambda done, *_: seen.append(done),
        )
    assert seen == [1, 2, 3, 4]


def test_what_was_given_is_told_from_what_was_made(models: ModelsSpec, host: Any) -> None:
    bad = torch.rand(2, 64, 64, 3)
    bad[1, 3, 4] = torch.nan
    with pytest.raises(CascadeError, match=r"pictures given to the semantic compressor .*, 1 of 2"):
        links.encode_stage_c(models, bad, host)
    with pytest.raises(CascadeError, match="pictures given to Stage A"):
        stages.encode_a(models, bad)
    latents = torch.full((1, 4, 16, 16), torch.inf)
    with pytest.raises(CascadeError, match="latents given to Stage A"):
        links.decode_stage_a(models, {"samples": latents}, host)
    text = links.encode_prompt(models, "a red circle", None, host)
    text[0][0][0, 0, 0] = torch.nan
    with pytest.raises(CascadeError, match="states given to Stage C"):
        stages.sample_c(models, links.from_link(text), links.from_link(text), seeds=[1], size=(8, 8))


def test_a_run_that_diverged_is_blamed(studio: ModuleType, models: ModelsSpec, host: Any) -> None:
    position, _ = run.train(run.start(studio.spec("lora", models), host), 1, host=host)
    with pytest.raises(CascadeError, match="earlier step of the run"):
        validate(PROMPTS, host, run=position, strength=1e38)
    assert not list(Path(position.folder).rglob("*.png"))


def test_training_neither_keeps_nor_learns_from_them(studio: ModuleType, poisoned: Any, host: Any) -> None:
    models = poisoned("compressor")
    cached = replace(studio.world(), buckets=replace(studio.world().buckets, crop="center"))
    with pytest.raises(CascadeError, match="the semantic compressor made latents"):
        with_caches(cached, models, latents=True, texts=False, crops=0, ahead=True, host=host)
    assert not list(host.folders.cache.rglob("*.safetensors"))
    with pytest.raises(CascadeError, match="the semantic compressor made latents"):
        run.train(run.start(studio.spec("lora", models), host), 1, host=host)


def test_a_preview_of_them_is_a_warning_and_training_goes_on(
    studio: ModuleType, poisoned: Any, host: Any
) -> None:
    position, *_ = train_block(
        run.start(studio.spec("lora", poisoned("previewer")), host), 2, None, host, preview_every=1
    )
    assert position.step == 2
    assert any("no more pictures" in line and "the previewer made" in line for line in host.sink.warnings)


def test_pictures_of_other_nodes(host: Any, tmp_path: Path) -> None:
    """Saved as core does, and said; never trained on."""
    pictures = torch.rand(3, 8, 8, 3)
    pictures[1, 0, 0, 0] = torch.nan
    node = SaveImage()
    node.host = host  # type: ignore[misc]
    node.save(pictures, "kept")
    (line,) = host.sink.warnings
    assert "1 of 3 pictures hold values that are not numbers" in line and "number 2 first" in line
    saved = sorted(host.folders.output.glob("kept*.png"))
    assert len(saved) == 3 and np.asarray(Image.open(saved[1]))[0, 0, 0] == 0
    with pytest.raises(CascadeError, match="picture 2 of 3 is not all numbers"):
        pictures_dataset(pictures.numpy(), ["a red circle"], host=host)
