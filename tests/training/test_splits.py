"""How a batch is split, over time or over processes, changes memory and no result beyond rounding."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cascade_train.errors import CascadeError
from cascade_train.models import build, library, weights
from cascade_train.models.spec import ModelsSpec
from cascade_train.ranks.processes import joined, together
from cascade_train.training import run
from cascade_train.training.dropout import batch_norms
from cascade_train.training.spec import WHOLE_BATCHES, FullTarget, splits
from cascade_train.training.trainer import Trainer

STUDIO = Path(__file__).with_name("studio.py")


@pytest.fixture(scope="module")
def dropping_folder(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose Stages B and C both drop, in residual blocks and in attention."""
    folder = tmp_path_factory.mktemp("dropping") / "models"
    shutil.copytree(models_folder, folder)
    for part in ("stage_b", "stage_c"):
        file = folder / f"{part}.safetensors"
        module = build.load(part, file)
        config = build.module_config(part, module)
        config["dropout"] = [0.1] * len(config["block_out_channels"])
        weights.write_tensors(file, build.file_tensors(part, module), config)
    return folder


@pytest.fixture(scope="module")
def dropping(dropping_folder: Path) -> ModelsSpec:
    return library.models_in(dropping_folder, name="dropping")


def passed(trainer: Trainer, step: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses (n,) of this process's samples in one step, and the gradients that they leave."""
    trainer.optimizer.zero_grad(set_to_none=True)
    raw = torch.cat([trainer._micro(batch).raw for batch in trainer._micro_batches(step)])
    grads = {name: p.grad.clone() for name, p in trainer.parameters.items() if p.grad is not None}
    return raw, grads


@pytest.mark.parametrize("kind", ["lora", "stage_c", "stage_b"])
def test_a_batch_in_pieces_is_the_batch(
    studio: ModuleType, dropping: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    """Five samples do not divide evenly; captions, images and offsets are drawn for each too."""
    settings: dict[str, Any] = {
        "batch_size": 5,
        "caption_dropout": 0.4,
        "image_share": 0.5,
        "offset_noise": 0.1,
    }
    host = studio.CountingHost(tmp_path)
    whole = Trainer(studio.spec(kind, dropping, **settings), host)
    assert (whole._masks.layers > 0) == (kind != "lora"), "a LoRA trains a network at rest"
    raw, grads = passed(whole, step=3)
    assert len(set(raw.tolist())) == 5
    for pieces in (2, 4, 5):
        parts = Trainer(studio.spec(kind, dropping, accumulation=pieces, **settings), host)
        assert len(parts._micro_batches(3)) == pieces
        other, others = passed(parts, step=3)
        torch.testing.assert_close(other, raw, rtol=1e-6, atol=0)
        assert others.keys() == grads.keys()
        for name, grad in grads.items():
            torch.testing.assert_close(others[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["stage_c", "stage_b"])
def test_masks_are_of_the_sample_the_step_and_the_layer(
    studio: ModuleType, dropping: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    trainer = Trainer(studio.spec(kind, dropping, batch_size=4), studio.CountingHost(tmp_path))
    (batch,) = trainer._micro_batches(0)
    seen: list[torch.Tensor] = []
    for module in trainer.objective.modules.modules():
        if isinstance(module, torch.nn.Dropout) and module.p > 0:
            module.register_forward_hook(lambda _m, given, out: seen.append((out == 0) & (given[0] != 0)))
    first = trainer._micro(batch).raw
    masks, seen[:] = list(seen), []
    shares = torch.stack([mask.float().mean() for mask in masks])
    assert len(masks) >= trainer._masks.layers and 0.05 < float(shares.mean()) < 0.15
    order = [2, 0, 3, 1]
    turned = trainer._micro(replace(batch, draws=tuple(batch.draws[row] for row in order))).raw
    torch.testing.assert_close(turned, first[order], rtol=1e-6, atol=0)
    assert all(torch.equal(mask, before[order]) for mask, before in zip(seen, masks))
    alike = [mask for mask in masks if mask.shape == masks[0].shape]
    rows = [row for mask in alike for row in mask]
    assert len(rows) > 4 and not any(torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])
    seen.clear()
    trainer._micro(replace(batch, step=1))
    assert not torch.equal(seen[0], masks[0])
    seen.clear()
    trainer._micro(replace(batch, seed=1))
    assert not torch.equal(seen[0], masks[0])


@pytest.mark.parametrize(
    ("kind", "precision"), [("stage_c", "fp32"), ("stage_b", "fp32"), ("stage_c", "bf16")]
)
def test_activations_computed_again_meet_the_same_masks(
    studio: ModuleType, dropping: ModelsSpec, tmp_path: Path, kind: str, precision: str
) -> None:
    """Gradient checkpointing, which large networks train with, in pieces too."""
    host, results = studio.CountingHost(tmp_path), []
    for again, pieces in ((False, 1), (True, 1), (True, 3)):
        settings = {"batch_size": 4, "accumulation": pieces, "precision": precision}
        trainer = Trainer(studio.spec(kind, dropping, **settings), host)
        if again:
            trainer.objective.unet.enable_gradient_checkpointing()  # type: ignore[attr-defined]
        results.append(passed(trainer))
    loose = 1e-6 if precision == "fp32" else 1e-3
    for raw, grads in results[1:]:
        torch.testing.assert_close(raw, results[0][0], rtol=loose, atol=0)
        for name, grad in results[0][1].items():
            difference = float((grads[name] - grad).norm())
            assert difference <= (1e-4 if precision == "fp32" else 0.05) * float(grad.norm()) + 1e-7, name
    # masks that differ on the way back would show
    careless = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    trainer.objective.unet.enable_gradient_checkpointing(careless)  # type: ignore[attr-defined]
    raw, grads = passed(trainer)
    torch.testing.assert_close(raw, results[0][0], rtol=loose, atol=0)
    before = results[0][1]
    assert any((grads[name] - grad).norm() > 0.1 * grad.norm() for name, grad in before.items())


def first_step(folder: str, models: str, kind: str, accumulation: int) -> int:
    """One process's part of a first step; the first process writes what all saw together."""
    found = importlib.util.spec_from_file_location("training_studio", STUDIO)
    assert found is not None and found.loader is not None
    studio = importlib.util.module_from_spec(found)
    sys.modules["training_studio"] = studio
    found.loader.exec_module(studio)
    torch.set_num_threads(1)
    host = studio.CountingHost(Path(folder))
    with joined(host):
        described = library.models_in(Path(models), name="dropping")
        spec = studio.spec(kind, described, batch_size=5, accumulation=accumulation)
        _, metrics = run.train(run.start(spec, host), 1, host=host)
        if host.rank == 0:
            text = json.dumps([dict(row) for row in metrics.rows])
            (Path(folder) / "rows.json").write_text(text, encoding="utf-8")
    return 0


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_a_step_with_dropout(
    studio: ModuleType, dropping: ModelsSpec, dropping_folder: Path, tmp_path: Path, count: int
) -> None:
    host = studio.CountingHost(tmp_path / "one")
    spec = studio.spec("stage_c", dropping, batch_size=5)
    one, metrics = run.train(run.start(spec, host), 1, host=host)
    alone = metrics.rows[0]
    assert together(count, first_step, str(tmp_path / "many"), str(dropping_folder), "stage_c", 2) == 0
    (shared,) = json.loads((tmp_path / "many" / "rows.json").read_text(encoding="utf-8"))
    for name in ("loss", "weighted", "grad_norm"):
        assert shared[name] == pytest.approx(alone[name], rel=1e-6 if name != "grad_norm" else 1e-5), name
    many = replace(one, folder=one.folder.replace(str(tmp_path / "one"), str(tmp_path / "many")))
    for name, value in run.trained(one).tensors.items():
        torch.testing.assert_close(run.trained(many).tensors[name], value, rtol=1e-2, atol=1e-5)


def test_a_run_goes_on_under_another_accumulation(
    studio: ModuleType, dropping: ModelsSpec, tmp_path: Path
) -> None:
    """What an out-of-memory error advises: the same graph with more accumulation is the same run."""

    def spec(pieces: int) -> Any:
        return studio.spec("stage_c", dropping, batch_size=4, accumulation=pieces)

    assert spec(1).digest == spec(2).digest
    host = studio.CountingHost(tmp_path / "raised")
    first, _ = run.train(run.start(spec(1), host), 2, host=host)
    run.release()
    assert host.trained == 2
    later = studio.CountingHost(tmp_path / "raised")
    raised, metrics = run.train(run.start(spec(2), later), 5, host=later)
    assert raised.folder == first.folder and later.trained == 3, "the first two steps are there"
    assert len(metrics.rows) == 5
    straight_host = studio.CountingHost(tmp_path / "straight")
    straight, alone = run.train(run.start(spec(1), straight_host), 5, host=straight_host)
    assert straight.name == raised.name
    for ours, theirs in zip(metrics.rows, alone.rows):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    theirs = run.trained(straight).tensors
    for name, value in run.trained(raised).tensors.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-2, atol=2e-4)


def test_the_trainer_in_memory_takes_up_another_accumulation(
    studio: ModuleType, dropping: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", dropping, batch_size=4), host), 1, host=host)
    more = replace(position, spec=replace(position.settings, accumulation=4))
    run.train(more, 1, host=host)
    (trainer,) = run._live.values()
    assert len(trainer._micro_batches(0)) == 4 and host.trained == 2


@pytest.mark.parametrize("part", ["stage_c", "stage_b", "stage_a", "compressor", "previewer", "text"])
def test_batch_norms_are_where_they_are_said_to_be(models: ModelsSpec, part: Any) -> None:
    module = build.build(part, build.module_config(part, library.part(models, part))).train()
    assert bool(batch_norms(module)) == (part in WHOLE_BATCHES)


@pytest.mark.parametrize("part", WHOLE_BATCHES)
def test_a_part_with_batch_norms_is_not_split(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, part: str
) -> None:
    host = studio.CountingHost(tmp_path)
    assert not splits(FullTarget(part))  # type: ignore[arg-type]
    with pytest.raises(CascadeError, match="accumulation 2: this part has batch norms"):
        run.start(studio.spec(part, models, accumulation=2), host)


def test_another_source_of_chance_is_refused(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    trainer = Trainer(studio.spec("stage_c", models), studio.CountingHost(tmp_path))
    for module in trainer.objective.modules["text"].modules():
        if type(module).__name__.endswith("Attention"):  # of several classes before transformers 4.48
            module.dropout = 0.1  # type: ignore[assignment]
    with pytest.raises(CascadeError, match="drops at random in a way that would depend"):
        trainer._micro(trainer._micro_batches(0)[0])


def test_without_dropout_nothing_is_done(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    trainer = Trainer(studio.spec("stage_b", models), studio.CountingHost(tmp_path))
    assert trainer._masks.layers == 0
    assert not any(type(m).__name__ == "SampleDropout" for m in trainer.objective.modules.modules())
    torch.manual_seed(3)
    before = torch.get_rng_state()
    passed(trainer)
    assert torch.equal(torch.get_rng_state(), before)
