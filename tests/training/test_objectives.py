"""Every part of a Stable Cascade is trained by the one loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import run
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import Block, FullTarget, OptimizerSpec
from cascade_train.training.trainer import Trainer


@pytest.mark.parametrize("kind", ["stage_c", "stage_b", "stage_a", "compressor", "previewer"])
def test_the_loss_of_every_part_falls(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    host = studio.CountingHost(tmp_path)
    spec = studio.spec(
        kind, models, batch_size=4, loss_weight="none", optimizer=OptimizerSpec(learning_rate=3e-3, warmup=5)
    )
    position, metrics = run.train(run.start(spec, host), 40, host=host)
    losses = [row["loss"] for row in metrics.rows]
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    # what was trained replaces the models' own, exactly and nowhere else
    state = run.trained(position)
    applied = apply_trained(models, position)
    parts = {"stage_c": ("stage_c", "text"), "compressor": ("compressor", "previewer")}.get(kind, (kind,))
    assert state.kind == "full" and {name.split(".")[0] for name in state.tensors} == set(parts)
    for part in parts:
        module = library.part(applied, part)  # type: ignore[arg-type]
        assert not module.training
        for name, value in module.state_dict().items():
            assert torch.equal(value, state.tensors[f"{part}.{name}"])


def test_full_stage_c_trains_with_dropout_that_belongs_to_the_step(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    trainer = Trainer(studio.spec("stage_c", models), studio.CountingHost(tmp_path))
    dropouts = [
        module
        for module in trainer.objective.modules["stage_c"].modules()
        if isinstance(module, torch.nn.Dropout) and module.p > 0
    ]
    assert dropouts and all(module.training for module in dropouts)
    (batch,) = trainer._micro_batches(0)
    first = trainer._micro(batch).raw
    torch.rand(5)
    assert torch.equal(trainer._micro(batch).raw, first)
    (later,) = trainer._micro_batches(1)
    assert not torch.equal(trainer._micro(replace(later, draws=batch.draws)).raw, first)


def test_running_statistics_are_part_of_the_state(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("compressor", models), host), 2, host=host)
    tensors = run.trained(position).tensors
    before = library.part(models, "compressor").state_dict()["mapper.1.running_var"]
    assert not torch.equal(tensors["compressor.mapper.1.running_var"], before)
    assert tensors["compressor.mapper.1.num_batches_tracked"] == 2


def test_a_throw_away_decoder_is_trained_but_not_the_result(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    spec = studio.spec("compressor", models, target=FullTarget("compressor"))
    position, _ = run.train(run.start(spec, host), 1, host=host)
    assert {name.split(".")[0] for name in run.trained(position).tensors} == {"compressor"}
    assert apply_trained(models, position).applied


def test_starting_from_nothing_takes_the_models_own_sizes(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    target = FullTarget("stage_c", init="random")
    first = Trainer(studio.spec("stage_c", models, target=target), studio.CountingHost(tmp_path))
    second = Trainer(studio.spec("stage_c", models, target=target), studio.CountingHost(tmp_path))
    other = Trainer(studio.spec("stage_c", models, target=target, seed=1), studio.CountingHost(tmp_path))
    own = library.part(models, "stage_c").state_dict()
    trained = first.objective.modules["stage_c"].state_dict()
    assert {name: value.shape for name, value in own.items()} == {
        name: value.shape for name, value in trained.items()
    }
    assert all(
        torch.equal(value, second.objective.modules["stage_c"].state_dict()[name])
        for name, value in trained.items()
    )
    assert not torch.equal(trained["embedding.1.weight"], own["embedding.1.weight"])
    assert not torch.equal(
        trained["embedding.1.weight"], other.objective.modules["stage_c"].state_dict()["embedding.1.weight"]
    )


def test_stage_b_sees_conditions_of_many_sizes_and_none_for_a_tenth(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    trainer = Trainer(studio.spec("stage_b", models, batch_size=8), studio.CountingHost(tmp_path))
    empty, sizes = 0, set()
    objective: Any = trainer.objective
    real = objective._latent_at

    def counted(draw: Any, factor: Any) -> torch.Tensor:
        sizes.add(real(draw, factor).shape[-2:])
        return real(draw, factor)

    objective._latent_at = counted
    for step in range(40):
        (batch,) = trainer._micro_batches(step)
        given = objective.condition(batch, (8, 8))
        empty += int((given.flatten(1).abs().sum(dim=1) == 0).sum())
    assert 12 <= empty <= 55
    assert sizes == {(4, 4), (5, 5), (6, 6), (7, 7)}


def test_what_cannot_be_trained_is_refused(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    host = studio.CountingHost(tmp_path)
    for target, message in (
        (FullTarget("text"), "nothing trains the target"),
        (FullTarget("stage_c", also=("stage_b",)), "'stage_b' cannot be trained together"),
        (FullTarget("stage_a", also=("text",)), "'text' cannot be trained together"),
    ):
        with pytest.raises(CascadeError, match=message):
            Trainer(studio.spec("stage_c", models, target=target), host)


def test_large_networks_compute_activations_again(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradient checkpointing comes by itself with size, and changes no bit of the result."""
    from cascade_train.training.objectives import base

    plain = Trainer(studio.spec("lora", models), studio.CountingHost(tmp_path))
    row = plain.advance(Block(1))
    monkeypatch.setattr(base, "LARGE", 1000)
    saving = Trainer(studio.spec("lora", models), studio.CountingHost(tmp_path))
    assert saving.objective.unet.gradient_checkpointing and not plain.objective.unet.gradient_checkpointing  # type: ignore[attr-defined]
    assert saving.advance(Block(1)) == row
    assert all(torch.equal(value, plain.parameters[name]) for name, value in saving.parameters.items())


def test_pictures_in_a_folder_are_trained_on(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """Photos of two shapes with captions beside them, random crops, two aspect buckets."""
    import numpy as np
    from PIL import Image

    from cascade_train.data.readers import folder_source
    from cascade_train.data.spec import BucketSpec, CacheSpec, Dataset, WeightedSource

    folder = tmp_path / "pictures"
    folder.mkdir()
    source = np.random.default_rng(0)
    for number in range(6):
        size = (90, 70) if number % 2 else (130, 64)
        pixels = source.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"a [concept] circle number {number}", encoding="utf-8")
    host = studio.CountingHost(tmp_path)
    described = folder_source(folder, True, host.folders.cache / "index")
    buckets = BucketSpec(ratios=("1/1", "1/2"), crops=2)
    dataset = Dataset((WeightedSource(described),), buckets=buckets)
    spec = studio.spec("lora", models, dataset=dataset, batch_size=2)
    position, metrics = run.train(run.start(spec, host), 4, host=host)
    assert len(metrics.rows) == 4
    # caches on disk change nothing in the result, cold or warm
    cached = replace(spec, dataset=replace(dataset, cache=CacheSpec()))
    assert cached.digest == spec.digest
    for _ in range(2):
        run.release()
        other = studio.CountingHost(tmp_path / "cached")
        same, _ = run.train(run.start(cached, other), 4, host=other)
        assert studio.fingerprint(same) == studio.fingerprint(position)
        import shutil

        shutil.rmtree(same.folder)
    assert list((other.folders.cache / "latents").rglob("*.safetensors"))


@pytest.mark.parametrize("kind", ["compressor", "stage_b"])
def test_latent_noise_is_heard_and_belongs_to_the_step(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    """A little changes a little, much changes more, and drawing again changes nothing."""
    host = studio.CountingHost(tmp_path)
    losses = []
    for amount in (0.0, 1e-3, 2.0):
        spec = studio.spec(kind, models, batch_size=4, target=FullTarget(kind, latent_noise=amount))  # type: ignore[arg-type]
        trainer = Trainer(spec, host)
        (batch,) = trainer._micro_batches(0)
        losses.append(trainer._micro(batch).raw)
        assert torch.equal(Trainer(spec, host)._micro(batch).raw, losses[-1])
    clean, little, much = losses
    assert 0 < float((little - clean).abs().max()) < 0.1 * float((much - clean).abs().max())
