"""What options that save memory cost in learning: a LoRA on nano, 200 steps with each.

    python tests/bench/nano_options.py [--steps 200] [--json]

For each option the mean loss of the last 50 steps, and the seconds that its steps took relative to the plain
ones of the same call. The last line of ``--json`` is one object, option → {"loss", "time"}.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cascade_train.data.spec import BucketSpec, Dataset, WeightedSource
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.models import library
from cascade_train.nano.world_source import WorldSource
from cascade_train.training import run
from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "int8": {"compact": "int8"},
    "fp8": {"compact": "fp8"},
    "offload": {"offload": True},
    "checkpointing": {"checkpointing": "on"},
    "adamw8bit": {"name": "adamw8bit"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    for name, option in OPTIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows = train(Path(folder), args.steps, option)
        seconds = sum(row["seconds"] for row in rows[len(rows) // 10 :])
        found[name] = {"loss": sum(row["loss"] for row in rows[-50:]) / len(rows[-50:]), "time": seconds}
        plain = found["plain"]["time"] if name != "plain" else seconds
        print(f"{name:<14} loss {found[name]['loss']:.4f}  time {seconds / plain:.2f}", flush=True)
    base = found["plain"]["time"]
    if args.json:
        print(
            json.dumps({name: {**row, "time": round(row["time"] / base, 3)} for name, row in found.items()})
        )


def train(folder: Path, steps: int, option: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of a LoRA's first ``steps`` under ``option``."""
    models = library.models_in(library.nano_folder(), name=library.NANO)
    models = replace(
        models, **{key: option[key] for key in ("precision", "compact", "offload") if key in option}
    )
    optimizer = OptimizerSpec(name=option.get("name", "adamw"), learning_rate=7e-4, warmup=20)
    spec = RunSpec(
        models,
        Dataset((WeightedSource(WorldSource("several", 3, 512)),), buckets=BucketSpec(crop="center")),
        LoRATarget(rank=8, alpha=8.0, modules="attn, channelwise"),
        optimizer,
        batch_size=16,
        total_steps=steps,
        precision=option.get("precision", "fp32"),
        loss_weight="min_snr_inverse",
        checkpointing=option.get("checkpointing", "off"),
    )
    host = HeadlessHost(headless_folders(folder), device="cpu")
    position, _ = run.train(run.start(spec, host), steps, host=host)
    run.release()
    library.forget()
    return run.metrics(position)


if __name__ == "__main__":
    main()
