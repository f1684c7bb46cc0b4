"""How long the one-line answer of memory takes: ``run --dry-run`` and Training Run, on the full models.

    python tests/bench/planning.py [--json]

Makes a folder of headers of the official files, which is all that is read. For each question the seconds of
a fresh process, by the clock and of its CPU: with counts that come with the package (``bundled``), with one
that does not for the first time (``new``), and again (``remembered``). The last line of ``--json`` is one
object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT = 2.0
"""Seconds that the line may take, where nothing has to be counted."""

LINE = """
import sys, time
from pathlib import Path
from cascade_train.data.spec import BucketSpec, Dataset
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.jobs.memory import run_line
from cascade_train.models import library
from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec
host = HeadlessHost(headless_folders(Path("output"), None, [Path(sys.argv[1])]), "cpu")
models = library.load_models("files", host=host, variant="full", precision="bf16")
dataset = Dataset((), buckets=BucketSpec(size=int(sys.argv[2])))
spec = RunSpec(models, dataset, LoRATarget(16, 16.0), OptimizerSpec(), batch_size=1, precision="bf16")
began = time.perf_counter()
print(run_line(spec, host), round(time.perf_counter() - began, 3), sep="|")
"""
"""The line of Training Run, and how long it takes where all else is loaded."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parent / "jobs"))
    real = importlib.import_module("headers")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        real.write_full_size(root / "models")
        (root / "input" / "mine").mkdir(parents=True)
        from PIL import Image

        Image.new("RGB", (800, 800)).save(root / "input" / "mine" / "cat.png")
        graph = real.defaults(real.graph(root / "input" / "mine"))
        (root / "lora.json").write_text(json.dumps(graph), encoding="utf-8")
        asked = ["run", "lora.json", "--dry-run", "--models-dir", "models"]
        command = [sys.executable, "-m", "cascade_train.cli", *asked]
        other = [*command, "--set", "Prompts.width=768", "--set", "Prompts.height=768"]
        for name, words in (("dry run, bundled", command), ("dry run, new", other)):
            found[name] = timed(words, root)
        found["dry run, remembered"] = timed(other, root)
        for name, size in (("line, bundled", "768"), ("line, new", "640"), ("line, remembered", "640")):
            found[name] = timed([sys.executable, "-c", LINE, "models", size], root)
    for name, row in found.items():
        print(f"{name:<22} {row['seconds']:6.2f} s, {row['cpu']:6.2f} s of CPU  {row['said']}")
    if args.json:
        print(json.dumps(found))
    quick = [row["cpu"] for name, row in found.items() if "new" not in name]
    print(f"at most {max(quick):.2f} s of CPU where nothing has to be counted (wanted: {LIMIT:g})")


def timed(words: list[str], root: Path) -> dict[str, Any]:
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    after, seconds = os.times(), time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": round(seconds, 2), "cpu": round(cpu, 2), "said": done.stdout.strip().splitlines()[-1]}


if __name__ == "__main__":
    main()
