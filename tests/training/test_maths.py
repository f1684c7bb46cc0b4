"""One training step against the same step written out in float64, line by line, from the facts."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from cascade_train.diffusion import noise as random
from cascade_train.models import library
from cascade_train.models.compressor import MEAN, STD
from cascade_train.models.spec import ModelsSpec
from cascade_train.training.objectives.lora import LoRAObjective
from cascade_train.training.spec import Block, RunSpec
from cascade_train.training.trainer import Trainer

S = 0.008


def straight_step(trainer: Trainer, spec: RunSpec, buckets: dict[int, float]) -> tuple[float, float, list]:
    """(mean loss, mean weighted loss, [(bucket, loss)]) of the step that ``trainer`` will make next."""
    objective = trainer.objective
    assert isinstance(objective, LoRAObjective)
    unet = copy.deepcopy(objective.unet).double()
    text_model: Any = copy.deepcopy(objective._text).double()
    compressor = copy.deepcopy(library.part(spec.models, "compressor")).double()
    draws = objective.dataset.draws(spec.seed, trainer.step, spec.batch_size)
    losses, weighted, seen = [], [], []
    for draw in draws:
        i = [draw.index]
        u = float(random.uniforms(spec.seed, trainer.step, i, random.TIME))
        t = min(max((1 - u) + 0.001, 0.001), 1.0)
        var = math.cos((S + t) / (1 + S) * math.pi / 2) ** 2 / math.cos(S / (1 + S) * math.pi / 2) ** 2
        var = min(max(var, 1e-4), 0.9999)
        log_snr = math.log(var / (1 - var))
        a = math.sqrt(1 / (1 + math.exp(-log_snr)))
        b = math.sqrt(1 - a * a)
        told = math.acos(math.sqrt(var) * math.cos(S / (1 + S) * math.pi / 2)) / (math.pi / 2) * (1 + S) - S

        pixels = objective.dataset.load(draw).pixels.astype(np.float64) / 255
        normalised = torch.from_numpy((pixels - np.array(MEAN)) / np.array(STD)).permute(2, 0, 1)[None]
        with torch.no_grad():
            clean = compressor(normalised)
            eps = random.normals(spec.seed, trainer.step, i, clean.shape[1:]).double()
            x = a * clean + b * eps
            wanted = eps if spec.objective == "epsilon" else a * eps - b * clean

            dropped = float(random.uniforms(spec.seed, trainer.step, i, random.CAPTION_DROP))
            caption = "" if dropped < spec.caption_dropout else objective.dataset.load(draw).caption
            tokens = text_model.tokenizer(
                caption,
                padding="max_length",
                truncation=True,
                return_tensors="pt",
                max_length=min(77, text_model.tokenizer.model_max_length),
            )
            inner = text_model.text_model
            torch.set_default_dtype(torch.float64)  # in which older transformers make their masks
            try:
                out = inner(
                    input_ids=tokens.input_ids,
                    attention_mask=tokens.attention_mask,
                    output_hidden_states=True,
                )
            finally:
                torch.set_default_dtype(torch.float32)
            end = tokens.input_ids[0].tolist().index(text_model.tokenizer.eos_token_id)
            pooled = text_model.text_projection(inner.final_layer_norm(out.hidden_states[-1])[:, end])
            answer = unet(
                sample=x,
                timestep_ratio=torch.tensor([told], dtype=torch.float64),
                clip_text_pooled=pooled[:, None],
                clip_text=out.hidden_states[-1],
                clip_img=torch.zeros(1, 1, objective.image_width, dtype=torch.float64),
            ).sample
        loss = float(((answer - wanted) ** 2).mean())
        bucket = sum(1 for edge in range(299) if -10 + edge * 20 / 298 < log_snr)
        weight = {
            "p2": 1 / (1 + math.exp(log_snr)),
            "min_snr_inverse": min(1 / var, 20.0),
            "none": 1.0,
            "adaptive": min(max(1 / buckets.get(bucket, 1.0), 1e-7), 1e7),
        }[spec.loss_weight]
        losses.append(loss)
        weighted.append(weight * loss)
        seen.append((bucket, loss))
    return sum(losses) / len(losses), sum(weighted) / len(weighted), seen


@pytest.mark.parametrize(
    ("weight", "objective"),
    [("p2", "epsilon"), ("adaptive", "epsilon"), ("min_snr_inverse", "epsilon"), ("none", "v")],
)
def test_a_step_is_the_facts_written_out(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, weight: str, objective: str
) -> None:
    spec = studio.spec(
        "lora", models, loss_weight=weight, objective=objective, caption_dropout=0.3, seed=5, batch_size=4
    )
    trainer = Trainer(spec, studio.CountingHost(tmp_path))
    buckets: dict[int, float] = {}
    for _ in range(3):
        loss, weighted, seen = straight_step(trainer, spec, buckets)
        row = trainer.advance(Block(1))
        assert row["loss"] == pytest.approx(loss, rel=2e-5)
        assert row["weighted"] == pytest.approx(weighted, rel=1e-4)
        for place in {place for place, _ in seen}:
            here = [value for where, value in seen if where == place]
            buckets[place] = 0.99 * buckets.get(place, 1.0) + 0.01 * sum(here) / len(here)


def test_the_time_input_is_fp32_also_under_bf16_autocast(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    spec = studio.spec("lora", models, precision="bf16")
    trainer = Trainer(spec, studio.CountingHost(tmp_path))
    told = []
    objective: Any = trainer.objective
    objective.unet.register_forward_pre_hook(
        lambda module, args, kwargs: told.append(kwargs["timestep_ratio"]), with_kwargs=True
    )
    row = trainer.advance(Block(1))
    full = Trainer(replace(spec, precision="fp32"), studio.CountingHost(tmp_path)).advance(Block(1))
    assert told[0].dtype == torch.float32
    assert row["loss"] == pytest.approx(full["loss"], rel=0.02) and row["loss"] != full["loss"]
    assert all(value.dtype == torch.float32 for value in trainer.parameters.values())


def test_captions_are_dropped_as_often_as_asked_and_become_the_empty_one(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    spec = studio.spec("lora", models, caption_dropout=0.25, batch_size=4)
    trainer = Trainer(spec, studio.CountingHost(tmp_path))
    captions = []
    for step in range(200):
        (batch,) = trainer._micro_batches(step)
        captions += trainer.objective.captions(batch)  # type: ignore[attr-defined]
    assert captions.count("") / len(captions) == pytest.approx(0.25, abs=0.05)
    assert all(caption == "" or "a " in caption for caption in captions)


def test_image_embeddings_are_given_to_their_share_independently_of_captions(
    studio: ModuleType, models_folder: Path, tmp_path: Path
) -> None:
    """Models with a CLIP vision encoder; nano has none and gives zeros."""
    import json
    import shutil

    from cascade_train.models import build, weights
    from cascade_train.nano import widths

    folder = tmp_path / "with-image"
    shutil.copytree(models_folder, folder)
    config = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
        "projection_dim": widths.IMAGE_WIDTH,
    }
    torch.manual_seed(0)
    encoder = build.build("image", config)
    (folder / "image").mkdir()
    (folder / "image" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights.write_tensors(folder / "image" / "model.safetensors", encoder.state_dict())
    spec = studio.spec(
        "lora",
        library.models_in(folder, name="with image"),
        image_share=0.4,
        batch_size=6,
        caption_dropout=0.5,
    )
    trainer = Trainer(spec, studio.CountingHost(tmp_path))
    both = np.zeros((2, 2))
    for step in range(100):
        (batch,) = trainer._micro_batches(step)
        given = trainer.objective.image(batch).flatten(1).abs().sum(dim=1) > 0  # type: ignore[attr-defined]
        for image, caption in zip(given.tolist(), trainer.objective.captions(batch)):  # type: ignore[attr-defined]
            both[int(image), int(caption == "")] += 1
    shares = both / both.sum()
    assert shares[1].sum() == pytest.approx(0.4, abs=0.06)
    assert shares[1, 1] == pytest.approx(0.2, abs=0.05)
    # the embedding is the library's own answer for that picture
    (batch,) = trainer._micro_batches(0)
    given = trainer.objective.image(batch)  # type: ignore[attr-defined]
    row = int(given.flatten(1).abs().sum(dim=1).argmax())
    pixels = torch.from_numpy(trainer.objective.dataset.load(batch.draws[row]).pixels.copy())
    picture = pixels.permute(2, 0, 1)[None].float() / 255
    from cascade_train.models.image import encode_image

    torch.testing.assert_close(given[row], encode_image(encoder.eval(), picture)[0].detach())


def test_remembered_and_fresh_encodings_are_the_same_bits(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    spec = studio.spec("dora", models)
    warm = Trainer(spec, studio.CountingHost(tmp_path))
    for step in range(10):  # every sample and caption has been seen
        for batch in warm._micro_batches(step):
            warm.objective.score(batch)
    cold = Trainer(spec, studio.CountingHost(tmp_path))
    (batch,) = warm._micro_batches(3)
    assert torch.equal(warm.objective.score(batch).raw, cold.objective.score(batch).raw)
