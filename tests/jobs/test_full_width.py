"""The count against live bytes of the real trainer and sampler, on two layers as wide as the 3.6B model's.

One Stage C of one layer down and one up, 2048 wide, with random weights in bf16, beside a small model's other
parts. What a kernel takes inside itself is seen by neither side.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cascade_train.data.spec import BucketSpec
from cascade_train.jobs.measured import measure
from cascade_train.jobs.phases import drawing, training
from cascade_train.jobs.ways import LITE_B
from cascade_train.models import build, library, weights
from cascade_train.models.live import Live, held, tensors_of
from cascade_train.models.spec import AppliedRun, ModelsSpec
from cascade_train.nano import widths
from cascade_train.sampling import stages
from cascade_train.sampling.conditioning import Conditioning
from cascade_train.sampling.sizes import picture_size
from cascade_train.training import run
from cascade_train.training.spec import Block, LoRATarget, OptimizerSpec, RunSpec
from cascade_train.training.trainer import Trainer

CONFIG: dict[str, Any] = {
    **LITE_B,
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 1,
    "block_out_channels": [2048],
    "num_attention_heads": [32],
    "conditioning_dim": 2048,
    "down_num_layers_per_block": [1],
    "up_num_layers_per_block": [1],
    "down_blocks_repeat_mappers": [1],
    "up_blocks_repeat_mappers": [1],
    "dropout": [0.1],
    "block_types_per_layer": [LITE_B["block_types_per_layer"][3]],
    "clip_text_in_channels": widths.TEXT_WIDTH,
    "clip_text_pooled_in_channels": widths.TEXT_WIDTH,
    "clip_image_in_channels": 768,
    "effnet_in_channels": None,
    "pixel_mapper_in_channels": None,
    "switch_level": [],
    "timestep_conditioning_type": ["sca", "crp"],
}
SIDE = 128
"""Of the pictures: 16×16 latents."""


@pytest.fixture(scope="module")
def wide(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelsSpec]:
    folder = tmp_path_factory.mktemp("wide")
    shutil.copytree(models_folder, folder, dirs_exist_ok=True)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]), torch.device("meta"):
        module = build.build("stage_c", CONFIG)
    torch.manual_seed(0)
    state = {
        key: torch.empty(value.shape, dtype=torch.bfloat16).normal_(std=0.02)
        for key, value in build.file_tensors("stage_c", module).items()
    }
    weights.write_tensors(folder / "stage_c.safetensors", state, CONFIG)
    del state
    yield replace(library.models_in(folder, name="wide"), precision="bf16")
    library.forget()
    shutil.rmtree(folder)


def spec_of(studio: ModuleType, models: ModelsSpec, **changes: Any) -> RunSpec:
    target = changes.pop("target", LoRATarget(rank=16, alpha=16.0))
    dataset = replace(studio.world(), buckets=BucketSpec(size=SIDE, crop="center"))
    optimizer = OptimizerSpec(name=changes.pop("optimizer", "adamw"))
    return replace(
        RunSpec(models, dataset, target, optimizer, batch_size=1, total_steps=50, precision="bf16"), **changes
    )


def state_of(trainer: Trainer) -> list[torch.Tensor]:
    """Every tensor that a trainer holds between two steps, on whatever device."""
    objective: Any = trainer.objective
    tensors = [
        each for module in (*objective.modules.values(), objective.unet) for each in tensors_of(module)
    ]
    for moments in trainer.optimizer.state.values():
        tensors += [value for value in moments.values() if isinstance(value, torch.Tensor)]
    return tensors + [each.grad for each in trainer.parameters.values() if each.grad is not None]


CASES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "checkpointed": {"checkpointing": "on"},
    "dora": {"target": LoRATarget(rank=16, alpha=16.0, kind="dora")},
    "fp32 base": {"models": {"precision": "fp32"}},
    "dora, fp32 base": {
        "target": LoRATarget(rank=16, alpha=16.0, kind="dora"),
        "models": {"precision": "fp32"},
    },
    "int8": {"models": {"compact": "int8"}},
    "fp8, checkpointed": {"models": {"compact": "fp8"}, "checkpointing": "on"},
    "8-bit moments": {"optimizer": "adamw8bit"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_the_real_trainer_takes_what_was_counted(
    case: str, studio: ModuleType, wide: ModelsSpec, tmp_path: Path
) -> None:
    changes = dict(CASES[case])
    if changes.get("optimizer") == "adamw8bit":
        pytest.importorskip("bitsandbytes")
    spec = spec_of(studio, replace(wide, **changes.pop("models", {})), **changes)
    (said,) = (each for each in training(spec, measure).phases if each.name == "training")
    library.forget()
    with torch.inference_mode(False), torch.enable_grad(), Live() as live:
        trainer = Trainer(spec, studio.CountingHost(tmp_path))
        trainer.advance(Block(1))  # moments are made
        own = held(state_of(trainer))
        before, live.peak = live.now, live.now
        trainer.advance(Block(1))
        beside = live.peak - before
    library.forget()
    print(case, said, "own", own, "beside", beside, said.total / (own + beside))
    assert said.total == pytest.approx(own + beside, rel=0.05), (said, own, beside)
    assert said.activations == pytest.approx(beside, rel=0.05, abs=0.01 * own), (said, own, beside)


@pytest.mark.parametrize("changes", [{}, {"compact": "int8"}], ids=["bf16", "int8"])
def test_validation_takes_what_was_counted(
    changes: dict[str, Any], studio: ModuleType, wide: ModelsSpec, tmp_path: Path
) -> None:
    """A trained LoRA laid over the base, guided, as Validate draws it."""
    models = replace(wide, **changes)
    spec = spec_of(studio, models)
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(spec, host), 1, host=host)
    run.release()
    library.forget()
    size = picture_size(library.geometry(models), SIDE, SIDE)
    needs = drawing(models, size, measure, parts=("stage_c",), laid=spec.target)  # type: ignore[arg-type]
    applied = AppliedRun(position.name, 1.0, str(run.checkpoint_of(position)))
    with_run = replace(models, applied=(applied,))
    width = widths.TEXT_WIDTH
    text = Conditioning(torch.zeros(1, widths.TEXT_LENGTH, width), torch.zeros(1, 1, width))
    settings = replace(stages.STAGE_C, steps=2)
    with torch.no_grad(), library.use(with_run, "stage_c") as module, Live() as live:
        live.add(tensors_of(module))
        stages.sample_c(with_run, text, text, seeds=[0], size=size.stage_c, settings=settings, preview=False)
        really = live.peak
    library.forget()
    print("drawing", needs.peak, really, needs.peak.total / really)
    assert needs.peak.total == pytest.approx(really, rel=0.05)
