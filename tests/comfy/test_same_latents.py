"""What Validate shows is what ComfyUI draws: the same latents from the same noise and settings.

Random weights of the lite models' true widths, one block of each kind a level. Core computes with its own
networks, LoRA loader, nodes and samplers, in a process of its own (`draw_with_core.py`).
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from cascade_train.diffusion.noise import batch_noise
from cascade_train.diffusion.samplers import STAGE_B_NOISE, STAGE_C_NOISE, SamplerSettings
from cascade_train.files import write_json
from cascade_train.formats.export import export_trained
from cascade_train.models.spec import AppliedRun, ModelsSpec, Part, PartFile
from cascade_train.models.weights import read_tensors, write_tensors
from cascade_train.sampling.conditioning import Conditioning
from cascade_train.sampling.stages import sample_b, sample_c

LAYOUTS = Path(__file__).parents[1] / "models" / "layouts"
NEAR = 1e-3
"""Of the latents' norm."""
SEED, GRID, PICTURE = 7, (4, 6), (16, 24)
"""Sides of Stage C's and of Stage B's latents."""
RANK, ALPHA, STRENGTH = 4, 6.0, 0.8


@dataclass(frozen=True)
class Case:
    """One drawing with core's settings. ``rescale`` 0 is a graph without the node RescaleCFG, ``shift`` None
    one without ModelSamplingStableCascade."""

    name: str
    stage: Literal["c", "b"]
    sampler: Literal["ddpm", "euler"]
    steps: int
    cfg: float
    rescale: float = 0.0
    shift: float | None = None
    lora: str = ""
    strength: float = STRENGTH
    scheduler: str = "simple"

    def ours(self) -> SamplerSettings:
        """The settings of this library that mean the same."""
        return SamplerSettings(
            steps=self.steps,
            cfg=self.cfg,
            rescale=self.rescale,
            sampler="ddim" if self.sampler == "euler" else self.sampler,
            shift=(2.0 if self.stage == "c" else 1.0) if self.shift is None else self.shift,
            rescale_of="v",
        )


CASES = (
    Case("c", "c", "ddpm", 4, 4.0),
    Case("c with a LoRA", "c", "ddpm", 4, 4.0, lora="lora.safetensors"),
    Case("c rescaled", "c", "ddpm", 2, 6.0, rescale=0.7, shift=1.0, lora="lora.safetensors"),
    Case("c without noise", "c", "euler", 4, 4.0, shift=4.0, lora="lora.safetensors"),
    Case("b", "b", "ddpm", 4, 1.1),
    Case("b rescaled", "b", "ddpm", 2, 1.5, rescale=0.7, shift=2.0),
    Case("b without guidance", "b", "euler", 4, 1.0),
)


def shallow(name: str) -> dict[str, list[int]]:
    """The shapes of an official file with one block of each kind a level."""
    grouped = json.loads((LAYOUTS / f"{name}.json").read_text(encoding="utf-8"))
    shapes = {key: json.loads(shape) for shape, keys in grouped.items() for key in keys.split()}
    attends = {key.rpartition(".attention.")[0] for key in shapes if ".attention." in key}
    levels = {".".join(place.split(".")[:2]) for place in attends}
    kept = {}
    for key, shape in shapes.items():
        block = re.match(r"((?:down|up)_blocks\.\d+)\.(\d+)\.", key)
        if block is None or int(block[2]) < (3 if block[1] in levels else 2):
            kept[key] = shape
    return kept


def random_weights(shapes: Mapping[str, list[int]], seed: int) -> dict[str, Tensor]:
    """Values in bf16 under which every layer says something."""
    generator, out = torch.Generator().manual_seed(seed), {}
    for key, shape in shapes.items():
        spread = 0.7 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.05
        if key.endswith(("gamma", "beta")):
            spread = 0.05
        out[key] = torch.empty(shape).normal_(0, spread, generator=generator).bfloat16()
    return out


def random_lora(shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """Adapters on every attention projection, by the names of a trained state."""
    generator, out = torch.Generator().manual_seed(3), {}
    width = shapes["down_blocks.0.0.depthwise.weight"][0]
    for side in ("down", "up"):
        for level in (0, 1):
            for layer in ("to_q", "to_k", "to_v", "to_out.0"):
                stem = f"stage_c.{side}_blocks.{level}.2.attention.{layer}"
                out[f"{stem}.lora_A.weight"] = 0.03 * torch.randn(RANK, width, generator=generator)
                out[f"{stem}.lora_B.weight"] = 0.3 * torch.randn(width, RANK, generator=generator)
    return out


@dataclass(frozen=True)
class Given:
    """What both sides are given."""

    plain: ModelsSpec
    with_lora: ModelsSpec
    positive: Conditioning
    negative: Conditioning
    stage_c: Tensor


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Given]:
    folder = tmp_path_factory.mktemp("same")
    shapes: dict[Part, dict[str, list[int]]] = {
        "stage_c": shallow("stage_c_lite"),
        "stage_b": shallow("stage_b_lite"),
    }
    parts = []
    for number, (part, own) in enumerate(shapes.items()):
        write_tensors(folder / f"{part}.safetensors", random_weights(own, number))
        parts.append(PartFile(part, f"random {number}", str(folder / f"{part}.safetensors")))
    plain = ModelsSpec("random", tuple(parts))
    tensors = random_lora(shapes["stage_c"])
    settings = {"parts": ["stage_c"], "rank": RANK, "alpha": ALPHA, "variant": "lora"}
    write_tensors(folder / "run" / "trained.safetensors", tensors)
    write_json(folder / "run" / "trained.json", {"format": 1, "kind": "lora", "settings": settings})
    export_trained("lora", tensors, settings, folder / "lora.safetensors", models=plain)
    run = AppliedRun("random run", STRENGTH, str(folder / "run"))
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 77, 1280, generator=generator)
    pooled = torch.randn(2, 1, 1280, generator=generator)
    stage_c = torch.randn(1, 16, *GRID, generator=generator)
    positive, negative = (Conditioning(hidden[row : row + 1], pooled[row : row + 1]) for row in (0, 1))
    return folder, Given(
        plain,
        ModelsSpec("random", tuple(parts), applied=(run,)),
        positive,
        negative,
        stage_c,
    )


def written(folder: Path, what: Given) -> None:
    """What `draw_with_core.py` reads."""
    values = {"stage_c": what.stage_c}
    for side, condition in (("positive", what.positive), ("negative", what.negative)):
        values |= {f"hidden.{side}": condition.hidden, f"pooled.{side}": condition.pooled[:, 0]}
    for stage, shape, stream in (
        ("c", (16, *GRID), STAGE_C_NOISE),
        ("b", (4, *PICTURE), STAGE_B_NOISE),
    ):
        values[f"noise.{stage}"] = batch_noise([SEED], 0, shape, stream)
        values[f"fresh.{stage}"] = torch.stack(
            [batch_noise([SEED], step, shape, stream) for step in range(1, 4)]
        )
    write_tensors(folder / "given.safetensors", values)
    networks: dict[str, Any] = {
        "c": {
            "file": "stage_c.safetensors",
            "config": {
                "c_cond": 1536,
                "c_hidden": [1536, 1536],
                "nhead": [24, 24],
                "blocks": [[1, 1], [1, 1]],
            },
        },
        "b": {
            "file": "stage_b.safetensors",
            "config": {
                "c_hidden": [320, 576, 1152, 1152],
                "nhead": [-1, 9, 18, 18],
                "blocks": [[1, 1, 1, 1], [1, 1, 1, 1]],
                "block_repeat": [[1, 1, 1, 1], [2, 2, 2, 2]],
            },
        },
    }
    write_json(folder / "cases.json", {"networks": networks, "cases": [vars(case) for case in CASES]})


def test_core_draws_what_validate_shows(
    comfyui: Path, comfyui_python: str, given: tuple[Path, Given]
) -> None:
    folder, what = given
    written(folder, what)
    script = Path(__file__).with_name("draw_with_core.py")
    done = subprocess.run(
        [comfyui_python, str(script), str(comfyui), str(folder)],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = read_tensors(folder / "drawn.safetensors")
    assert theirs.keys() == {case.name for case in CASES}
    away = {}
    for case in CASES:
        models = what.with_lora if case.lora else what.plain
        if case.stage == "c":
            ours = sample_c(
                models, what.positive, what.negative, seeds=[SEED], size=GRID, settings=case.ours()
            )
        else:
            ours = sample_b(
                models,
                what.stage_c,
                what.positive,
                what.negative,
                seeds=[SEED],
                size=PICTURE,
                settings=case.ours(),
            )
        away[case.name] = float((ours - theirs[case.name]).norm() / theirs[case.name].norm())
    print({name: f"{value:.1e}" for name, value in away.items()})
    assert max(away.values()) < NEAR, away
    different = float((theirs["c with a LoRA"] - theirs["c"]).norm() / theirs["c"].norm())
    assert different > 0.05, "the LoRA says something"
