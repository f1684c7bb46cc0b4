"""Pictures from text and from pictures: with random weights, so only what must hold for any weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import pipeline, stages
from cascade_train.sampling.conditioning import encode_prompts

RED, BLUE = "a red circle on a black background", "two blue squares on a tan background"
QUICK: Any = {"steps_c": 4, "steps_b": 2}
BATCH_TOLERANCE = 2e-3
"""Of pixel values: what the rounding of batched kernels may change through all three stages."""


def test_pictures_have_the_size_asked_for(tiny: ModelsSpec) -> None:
    native = pipeline.text_to_image(tiny, [RED], seeds=[1, 2], **QUICK)
    assert native.shape == (2, 64, 64, 3)
    assert native.min() >= 0 and native.max() <= 1 and torch.isfinite(native).all()
    wide = pipeline.text_to_image(tiny, [RED], seeds=[1], width=96, height=48, **QUICK)
    assert wide.shape == (1, 48, 96, 3)


def test_the_same_seed_is_the_same_picture_in_any_batch(tiny: ModelsSpec) -> None:
    alone = pipeline.text_to_image(tiny, [BLUE], seeds=[7], **QUICK)
    among = pipeline.text_to_image(tiny, [RED, BLUE, RED], seeds=[5, 7, 9], **QUICK)
    assert (alone[0] - among[1]).abs().max() < BATCH_TOLERANCE
    assert (among[0] - among[2]).abs().max() > 10 * BATCH_TOLERANCE, "another seed is another picture"
    again = pipeline.text_to_image(tiny, [BLUE], seeds=[7], **QUICK)
    assert torch.equal(alone, again)


def test_more_pictures_than_one_batch_holds(tiny: ModelsSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "BATCH", 2)
    seen: list[tuple[int, int]] = []
    many = pipeline.text_to_image(
        tiny, [RED], seeds=range(5), progress=lambda done, total, *_: seen.append((done, total)), **QUICK
    )
    assert len(many) == 5
    totals = {total for _, total in seen}
    assert totals == {3 * (4 + 2)} and [done for done, _ in seen] == list(range(1, 19)), (
        "progress counts every step"
    )
    assert (
        many[4] - pipeline.text_to_image(tiny, [RED], seeds=[4], **QUICK)[0]
    ).abs().max() < BATCH_TOLERANCE


@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
def test_image_to_image_keeps_more_at_lower_strength(tiny: ModelsSpec, sampler: str) -> None:
    latents = stages.encode_c(tiny, torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(0)))
    condition, empty = encode_prompts(tiny, [RED]), encode_prompts(tiny, [""])
    settings = stages.SamplerSettings(6, 2.0, 0.7, sampler)  # type: ignore[arg-type]

    def distance(strength: float) -> float:
        drawn = stages.sample_c(
            tiny,
            condition,
            empty,
            seeds=[3],
            size=(8, 8),
            settings=settings,
            start=latents,
            strength=strength,
        )
        return float((drawn - latents).pow(2).mean().sqrt())

    gentle, middle = distance(0.05), distance(0.5)
    assert gentle < 0.5 * middle, (gentle, middle)
    pictures = pipeline.image_to_image(
        tiny, torch.rand(1, 64, 96, 3), [RED], seeds=[1], strength=0.5, **QUICK
    )
    assert pictures.shape == (1, 64, 96, 3), "as large as the picture it began from"


def test_variations_need_an_image_encoder(tiny: ModelsSpec) -> None:
    with pytest.raises(CascadeError, match="image encoder"):
        pipeline.text_to_image(tiny, [RED], seeds=[1], variation_of=torch.rand(1, 64, 64, 3), **QUICK)


def test_previews_come_with_the_progress(tiny: ModelsSpec) -> None:
    pictures = []
    pipeline.text_to_image(
        tiny,
        [RED],
        seeds=[1, 2],
        steps_c=10,
        steps_b=1,
        progress=lambda done, total, text="", preview=None: pictures.append(preview),
    )
    shown = [picture for picture in pictures if picture is not None]
    assert len(shown) == 2 and shown[0].size == (128, 64), "every fifth step, side by side"
    without = replace(tiny, parts=tuple(part for part in tiny.parts if part.part != "previewer"))
    assert pipeline.text_to_image(without, [RED], seeds=[1], **QUICK).shape == (1, 64, 64, 3)
    with pytest.raises(CascadeError, match="no previewer"):
        stages.preview_latents(without, torch.zeros(1, 16, 8, 8))


def test_a_stop_between_steps_stops(tiny: ModelsSpec) -> None:
    class Stop(Exception):
        pass

    def interrupt(done: int, total: int, text: str = "", preview: object = None) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        pipeline.text_to_image(tiny, [RED], seeds=[1], progress=interrupt, **QUICK)


def test_reconstruction_has_the_shape_of_its_picture(tiny: ModelsSpec) -> None:
    assert pipeline.reconstruct(tiny, torch.rand(2, 64, 64, 3), steps_b=2).shape == (2, 64, 64, 3)


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"width": 60}, "multiple of 8, such as 64"),
        ({"height": 4}, "smallest that they draw is 16"),
        ({"seeds": [1, 2, 3], "prompts": [RED, BLUE]}, "2 texts for 3 pictures"),
        ({"prompts": []}, "no prompt"),
        ({"strength": 0.0}, "above 0"),
        ({"steps_c": 0}, "0 steps"),
    ],
)
def test_what_does_not_fit_is_told(tiny: ModelsSpec, asked: dict, words: str) -> None:
    settings = {"prompts": [RED], "seeds": [1], **QUICK, **asked}
    with pytest.raises(CascadeError, match=words):
        pipeline.text_to_image(tiny, settings.pop("prompts"), **settings)
