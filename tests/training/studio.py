"""A small Stable Cascade with random weights, and trainings on it. Also a program: one training in a process.

    python studio.py ROOT MODELS KIND STEPS [JSON of settings for the process]

prints ``step N`` as it goes and at the end ``done`` and a digest of the whole state.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cascade_train.data.spec import BucketSpec, CaptionSpec, Dataset, WeightedSource
from cascade_train.errors import Interrupted
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.models import build, library, weights
from cascade_train.models.spec import ModelsSpec
from cascade_train.nano import widths
from cascade_train.nano.world_source import WorldSource
from cascade_train.training import run
from cascade_train.training.spec import FullTarget, LoRATarget, OptimizerSpec, Position, RunSpec, TokenSpec

TOKENS = TokenSpec(new=(("concept", "^(star|cross)</w>$"),), existing=("^circle</w>$",), learning_rate=0.01)


def make_models(folder: Path) -> Path:
    """Write models of nano's smaller widths with random weights; the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for part in ("stage_c", "stage_b", "stage_a", "compressor", "previewer"):
            config = widths.config(part, "quick")
            if part == "stage_c":
                config = {**config, "dropout": [0.1, 0.1]}
            module = build.build(part, config)
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if name.endswith("clf.1.weight") or "gammas" in name or ".mapper" in name:
                        parameter.normal_(std=0.05)
            weights.write_tensors(folder / f"{part}.safetensors", build.file_tensors(part, module), config)
        widths.write_tokenizer(folder / "text")
        config = widths.config("text")
        text = build.build("text", config)
        weights.write_tensors(folder / "text" / "model.safetensors", text.state_dict())
    described = {**config, "cascade_geometry": {"native_side": 64}}
    (folder / "text" / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


class Told(Quiet):
    """Remembers progress and warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.texts: list[str] = []

    def progress(self, done: int, total: int, text: str, preview: Any) -> None:
        self.steps.append(done)
        self.texts.append(text)


class CountingHost(HeadlessHost):
    """A headless host that counts the steps it was asked about, and interrupts before one of them."""

    def __init__(self, root: Path, interrupt_before: int | None = None) -> None:
        super().__init__(headless_folders(root), "cpu", Told())
        self.trained = 0
        self.interrupt_before = interrupt_before

    def check_interrupt(self) -> None:
        if sys._getframe(1).f_code.co_name != "check_interrupt":
            return  # asked while a dataset is opened
        if self.interrupt_before is not None and self.trained == self.interrupt_before:
            raise Interrupted("the person pressed stop")
        self.trained += 1


def world(count: int = 12) -> Dataset:
    """Pictures whose captions say the words of `TOKENS`."""
    return Dataset(
        (WeightedSource(WorldSource("captioned", 0, count)),),
        buckets=BucketSpec(crop="center"),
        captions=CaptionSpec(prefix="[concept] circle "),
    )


def spec(kind: str, models: ModelsSpec, **changes: Any) -> RunSpec:
    """A run of ``kind``: lora, dora, tokens, stage_c, stage_b, stage_a, compressor, previewer."""
    targets: dict[str, Any] = {
        "lora": LoRATarget(rank=2, alpha=2.0, tokens=TOKENS),
        "dora": LoRATarget(rank=2, alpha=2.0, kind="dora"),
        "tokens": LoRATarget(modules="", tokens=TOKENS),
        "stage_c": FullTarget("stage_c", also=("text",)),
        "compressor": FullTarget("compressor", also=("previewer",)),
    }
    part: Any = kind
    target = targets.get(kind) or FullTarget(part)
    optimizer = OptimizerSpec(learning_rate=1e-3, ema=0.9, warmup=2)
    return replace(
        RunSpec(models, world(), target, optimizer, batch_size=3, total_steps=50, loss_weight="adaptive"),
        **changes,
    )


def fingerprint(position: Position) -> str:
    """A digest of everything in the checkpoint of ``position``."""
    folder = run.checkpoint_of(position)
    whole = b"".join((folder / name).read_bytes() for name in ("state.safetensors", "trained.safetensors"))
    return hashlib.sha256(whole).hexdigest()


class Printing(Told):
    def progress(self, done: int, total: int, text: str, preview: Any) -> None:
        if text.startswith("step"):
            print(f"step {done}", flush=True)


def main(root: str, models: str, kind: str, steps: str, settings: str = "{}") -> None:
    """One process's training. ``file_limit`` caps the size of files it may write, ``pause`` slows steps."""
    wanted = json.loads(settings)
    torch.set_num_threads(1)
    host = CountingHost(Path(root))
    host.sink = Printing()
    run.PROGRESS_SECONDS = 0.0
    position = run.start(spec(kind, library.models_in(Path(models), name="tiny")), host)
    if wanted.get("pause"):
        real = host.check_interrupt

        def slowly() -> None:
            time.sleep(wanted["pause"])
            real()

        host.check_interrupt = slowly  # type: ignore[method-assign]
    if wanted.get("file_limit"):
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        position, _ = run.train(position, wanted["first"], host=host)
        resource.setrlimit(resource.RLIMIT_FSIZE, (wanted["file_limit"], resource.RLIM_INFINITY))
    position, _ = run.train(position, int(steps), host=host, save_seconds=wanted.get("save_seconds", 60.0))
    print(f"done {fingerprint(position)} trained {host.trained}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
