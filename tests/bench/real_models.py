"""The real thing but for what it has learned: files of the lite models' true layouts with random weights are
loaded, compared with diffusers, drawn with and trained.

Some 6 GB in a temporary folder (with ComfyUI 11), which goes at the end, up to 10 GB of memory and a few
minutes of two cores.
Prints what each file takes to load, the peak of the process's memory in each phase (RSS, which counts pages
of mapped files), how far Stages C and B are from diffusers' own, and the losses of two LoRA steps at 256
pixels. With COMFYUI_PATH and COMFYUI_PYTHON (see tests/comfy) also what core's *Load Checkpoint* makes of an
export. With ``--json`` the last line is one object. The exit code is 1 where something misses its goal: a
file is read more than once, a stage is further than 1e-4 from diffusers', a loss is not finite.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LAYOUTS = Path(__file__).parents[1] / "models" / "layouts"
FILES = {
    "stage_c": "stage_c_lite",
    "stage_b": "stage_b_lite",
    "stage_a": "stage_a",
    "compressor": "effnet_encoder",
    "previewer": "previewer",
}
TEXT = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
    "vocab_size": 49408,
    "max_position_embeddings": 77,
}
IMAGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
    "projection_dim": 768,
}
SIDE, NEAR = 256, 1e-4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="the last line is one object")
    parser.add_argument("--folder", help="where the temporary folder is made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        numbers = measured(Path(made))
    missed = misses(numbers)
    print(f"misses its goal: {', '.join(missed) or 'nothing'}")
    if args.json:
        print(json.dumps(numbers))
    return 1 if missed else 0


def misses(numbers: Mapping[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    out = [
        f"{part} is read twice" for part, file in numbers["files"].items() if file["asked"] > file["bytes"]
    ]
    out += [f"{part} is far from diffusers'" for part, far in numbers["from diffusers"].items() if far > NEAR]
    if not all(map(math.isfinite, numbers["losses"])):
        out.append("a loss is not finite")
    if numbers.get("comfyui", {}).get("complaints"):
        out.append("ComfyUI complains")
    return out


def measured(folder: Path) -> dict[str, Any]:
    """All figures; ``folder`` takes the files."""
    from cascade_train.host.headless import HeadlessHost, headless_folders
    from cascade_train.models import library
    from cascade_train.training import run as runs

    phases = Phases()
    with phases("make"):
        make(folder / "models")
    host = HeadlessHost(headless_folders(folder / "output"), "cpu")
    numbers: dict[str, Any] = {}
    models = library.models_in(folder / "models", name="lite-shaped", precision="bf16")
    with phases("load"):
        numbers["files"] = load(models)
    with phases("draw"):
        draw(models)
    with phases("train"):
        numbers["losses"] = train(models, host)
    print("losses of two steps:", ", ".join(f"{loss:.4f}" for loss in numbers["losses"]))
    runs.release()
    library.forget()
    gc.collect()
    with phases("compare"):
        numbers["from diffusers"] = compare(models)
    if os.environ.get("COMFYUI_PATH") and os.environ.get("COMFYUI_PYTHON"):
        with phases("export"):
            numbers["comfyui"] = ask_comfyui(models, folder)
    return {**numbers, "peak RSS": phases.peaks, "seconds": phases.seconds}


class Phases:
    """Peak memory and time of what is done within each phase."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        done, peak, began = threading.Event(), [resident()], time.monotonic()

        def watch() -> None:
            while not done.wait(0.01):
                peak[0] = max(peak[0], resident())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
        self.peaks[name], self.seconds[name] = peak[0], round(time.monotonic() - began, 1)
        print(f"{name:<8} {self.seconds[name]:7.1f} s, peak RSS {peak[0] / 1e9:.2f} GB", flush=True)


def resident() -> int:
    """Bytes of memory that the process has now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return 0


def fetched() -> int:
    """Bytes that the process has had read from a disk so far; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)


def make(folder: Path) -> None:
    """Write the models: true names and shapes, random values in bf16 that let every layer say something."""
    import torch

    from cascade_train.files import write_json
    from cascade_train.models import build, weights
    from cascade_train.models.tensor_file import Later
    from cascade_train.nano import widths

    pool = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0))

    def value(name: str, shape: list[int]) -> Later:
        if name.endswith("num_batches_tracked"):
            return Later.of(torch.zeros((), dtype=torch.long))
        if name.endswith("running_var") or (len(shape) == 1 and name.endswith("weight")):
            return Later.of(torch.ones(shape, dtype=torch.bfloat16))
        spread = 0.7 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.02
        count = math.prod(shape)

        def fill() -> torch.Tensor:
            values = pool.repeat(-(-count // len(pool)))[:count] if count > len(pool) else pool[:count]
            return (values * spread).bfloat16().view(shape)

        return Later(tuple(shape), torch.bfloat16, fill)

    for part, layout in FILES.items():
        grouped = json.loads((LAYOUTS / f"{layout}.json").read_text(encoding="utf-8"))
        shapes = {key: json.loads(shape) for shape, keys in grouped.items() for key in keys.split()}
        weights.write_tensors(
            folder / f"{part}.safetensors", {name: value(name, shape) for name, shape in shapes.items()}
        )
    widths.write_tokenizer(folder / "text")
    ids = widths.text_config(len(widths.token_ids()))
    text = {**TEXT, **{name: number for name, number in ids.items() if name.endswith("_token_id")}}
    for part, config in (("text", text), ("image", IMAGE)):
        with torch.device("meta"):
            state = build.build(part, config).state_dict()  # type: ignore[arg-type]
        named = {name: value(name, list(each.shape)) for name, each in state.items()}
        weights.write_tensors(folder / part / "model.safetensors", named)
        write_json(folder / part / "config.json", config)


def compare(models: Any) -> dict[str, float]:
    """How far one answer of Stages C and B is from that of diffusers' network, which diffusers itself reads
    from the same file: relative to its norm, fp32, one in memory at a time."""
    import torch
    from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet

    from cascade_train.files import write_json
    from cascade_train.models import build, library

    out = {}
    parts: tuple[Any, ...] = ("stage_c", "stage_b")
    for part in parts:
        file = library.part_file(models, part)
        config, _ = build.described(file)
        given: dict[str, Any] = {
            "sample": torch.randn(1, config["in_channels"], 32, 32),
            "timestep_ratio": torch.tensor([0.37]),
            "clip_text_pooled": torch.randn(1, 1, 1280),
        }
        if part == "stage_c":
            given["sample"] = given["sample"][..., :6, :6]
            given |= {"clip_text": torch.randn(1, 77, 1280), "clip_img": torch.randn(1, 1, 768)}
        else:
            given["effnet"] = torch.randn(1, 16, 6, 6)
        answers = []
        about = Path(file.path).parent / f"{part} for diffusers"
        write_json(about / "config.json", {"_class_name": "StableCascadeUNet", **config})
        for theirs in (False, True):
            if theirs:
                network: Any = StableCascadeUNet.from_single_file(
                    file.path, config=str(about), torch_dtype=torch.float32, local_files_only=True
                )
            else:
                network = build.load(part, Path(file.path), torch.float32)
            with torch.no_grad():
                answers.append(network.eval()(**given, return_dict=False)[0])
            del network
        out[part] = float((answers[0] - answers[1]).norm() / answers[1].norm())
        print(f"{part} is {out[part]:.1e} from diffusers'", flush=True)
    return out


def load(models: Any) -> dict[str, dict[str, float]]:
    """Each part loaded; from the disk itself where the system can be asked to forget what it keeps of it."""
    from cascade_train.models import library, reading

    out = {}
    for file in models.parts:
        stored = reading.files_of(Path(file.path))
        for each in stored:
            drop(each)
        size, before, began = sum(each.stat().st_size for each in stored), fetched(), time.monotonic()
        with counted() as asked:
            library.part(models, file.part)
        seconds = time.monotonic() - began
        out[file.part] = {
            "bytes": size,
            "asked": asked(),
            "fetched": fetched() - before,
            "seconds": round(seconds, 2),
        }
        told = out[file.part]
        print(
            f"{file.part:<10} {size / 1e6:7.1f} MB: asked for {told['asked'] / 1e6:7.1f}, "
            f"from disk {told['fetched'] / 1e6:7.1f}, {seconds:.1f} s",
            flush=True,
        )
    return out


def drop(path: Path) -> None:
    """Let the system forget what it keeps of ``path``."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def counted() -> Iterator[Callable[[], int]]:
    """Counts the bytes of the tensors that files are asked for within the block."""
    import safetensors

    real, total = safetensors.safe_open, [0]

    class Counting:
        def __init__(self, *args: Any, **settings: Any) -> None:
            self.inner = real(*args, **settings)

        def __enter__(self) -> Any:
            self.inner.__enter__()
            return self

        def __exit__(self, *error: Any) -> Any:
            return self.inner.__exit__(*error)

        def get_tensor(self, name: str) -> Any:
            value = self.inner.get_tensor(name)
            total[0] += value.nbytes
            return value

    safetensors.safe_open = Counting  # type: ignore[misc, assignment]
    try:
        yield lambda: total[0]
    finally:
        safetensors.safe_open = real  # type: ignore[misc]


def draw(models: Any) -> None:
    """One picture of all stages."""
    from cascade_train.sampling.pipeline import text_to_image

    picture = text_to_image(
        models, ["a red circle"], seeds=[1], width=SIDE, height=SIDE, steps_c=2, steps_b=1, preview=False
    )
    assert tuple(picture.shape) == (1, SIDE, SIDE, 3)


def train(models: Any, host: Any) -> list[float]:
    """The losses of two steps of a LoRA of rank 4, batch 1."""
    from dataclasses import replace

    from cascade_train.data.sources import folder_dataset
    from cascade_train.training import run
    from cascade_train.training.metrics import read_metrics
    from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec

    pictures = folder_dataset("bundled/crescent", recursive=True, host=host)
    pictures = replace(pictures, buckets=replace(pictures.buckets, size=SIDE))
    spec = RunSpec(models, pictures, LoRATarget(rank=4), OptimizerSpec(), batch_size=1, total_steps=2)
    position, _ = run.train(run.start(spec, host), 2, host=host)
    return [float(row["loss"]) for row in read_metrics(position).rows]


CORE = """
import json, logging, sys
comfyui, file = sys.argv[1:3]
sys.argv = sys.argv[:1] + ["--cpu"]
sys.path.insert(0, comfyui)
import comfy.options
comfy.options.enable_args_parsing()
import comfy.sd
complaints = []
class Keep(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage()[:300])
logging.getLogger().addHandler(Keep(level=logging.WARNING))
model, clip, vae, sight = comfy.sd.load_checkpoint_guess_config(file, output_clipvision=True)
print(json.dumps({"model": type(model.model).__name__, "clip": clip is not None, "vision": sight is not None,
                  "vae": type(vae.first_stage_model).__name__, "complaints": complaints}))
"""


def ask_comfyui(models: Any, folder: Path) -> dict[str, Any]:
    """What core's *Load Checkpoint* makes of Stage C exported with all that it needs."""
    import torch

    from cascade_train.formats import full

    whole = folder / "whole.safetensors"
    full.write_checkpoint(whole, "stage_c", models, {}, torch.bfloat16)
    done = subprocess.run(
        [os.environ["COMFYUI_PYTHON"], "-c", CORE, os.environ["COMFYUI_PATH"], str(whole)],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        return {"complaints": [done.stderr[-1000:]]}
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"ComfyUI: {told}")
    return told


if __name__ == "__main__":
    sys.exit(main())
