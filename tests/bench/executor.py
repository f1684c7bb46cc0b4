"""What the executor itself costs: a graph of trivial nodes, run by ours and (COMFYUI_PATH) by ComfyUI's own.

    python tests/bench/executor.py [--nodes 1000] [--runs 5] [--json]

With COMFYUI_PATH (and COMFYUI_PYTHON, the Python that can import it) the same graph also runs in ComfyUI's
PromptExecutor, in a process of its own. The last line with --json is one object: milliseconds a node, best
of the runs, for a first run and for one that finds everything cached, of a chain and of a wide graph.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT = 1.0
"""Milliseconds a node that the executor may cost."""


class Step:
    RETURN_TYPES: tuple[str, ...] = ("INT",)
    FUNCTION = "run"
    CATEGORY = "bench"
    USES_TORCH = False

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"a": ("INT", {"default": 0}), "b": ("INT", {"default": 0})}}

    def run(self, a: int, b: int) -> tuple[int]:
        return (a + b,)


class End(Step):
    RETURN_TYPES = ()
    OUTPUT_NODE = True

    def run(self, a: int, b: int) -> dict[str, Any]:  # type: ignore[override]
        return {"ui": {"text": [str(a + b)]}}


CLASSES = {"BenchStep": Step, "BenchEnd": End}


def chain(count: int, salt: int) -> dict[str, Any]:
    """Each node takes the one before."""
    prompt = {"0": {"class_type": "BenchStep", "inputs": {"a": salt, "b": 1}}}
    for n in range(1, count - 1):
        prompt[str(n)] = {"class_type": "BenchStep", "inputs": {"a": [str(n - 1), 0], "b": n}}
    prompt["end"] = {"class_type": "BenchEnd", "inputs": {"a": [str(count - 2), 0], "b": 0}}
    return prompt


def wide(count: int, salt: int) -> dict[str, Any]:
    """One source, and many short branches with an output each."""
    prompt = {"0": {"class_type": "BenchStep", "inputs": {"a": salt, "b": 1}}}
    for n in range(1, count - 1, 2):
        prompt[str(n)] = {"class_type": "BenchStep", "inputs": {"a": ["0", 0], "b": n}}
        prompt[str(n + 1)] = {"class_type": "BenchEnd", "inputs": {"a": [str(n), 0], "b": 0}}
    return prompt


SHAPES: dict[str, Callable[[int, int], dict[str, Any]]] = {"chain": chain, "wide": wide}


def measure(run: Callable[[dict[str, Any]], None], nodes: int, runs: int) -> dict[str, float]:
    """Milliseconds a node, best of ``runs``, for each shape: first run, and again with everything cached."""
    found: dict[str, float] = {}
    for shape, make in SHAPES.items():
        first: list[float] = []
        again: list[float] = []
        for salt in range(runs):
            prompt = make(nodes, salt)
            for times in (first, again):
                began = time.perf_counter()
                run(prompt)
                times.append(time.perf_counter() - began)
        found[shape] = round(min(first) / nodes * 1000, 4)
        found[f"{shape}_cached"] = round(min(again) / nodes * 1000, 4)
    return found


def ours(nodes: int, runs: int) -> dict[str, float]:
    from cascade_train.graph.check.checked import Checked, checked
    from cascade_train.graph.check.classes import Classes
    from cascade_train.graph.run.cache import ResultCache
    from cascade_train.graph.run.loop import execute
    from cascade_train.host.headless import HeadlessHost, headless_folders

    cache = ResultCache()
    with tempfile.TemporaryDirectory() as folder:
        host = HeadlessHost(headless_folders(Path(folder)))

        def run(prompt: dict[str, Any]) -> None:
            found = checked(prompt, Classes(CLASSES), host)
            assert isinstance(found, Checked) and execute(found, host, cache=cache).ok

        return measure(run, nodes, runs)


def comfyuis(nodes: int, runs: int) -> dict[str, float]:
    """Inside ComfyUI's Python: its executor without its server."""
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    from comfy.cli_args import args

    args.cpu = True
    logging.disable(logging.WARNING)
    sys.setrecursionlimit(100_000)  # its cache keys recurse once for each node of a chain
    import execution

    core = importlib.import_module("nodes")

    class NoServer:
        client_id = None
        last_node_id = None

        def send_sync(self, *ignored: Any) -> None:
            return None

    core.NODE_CLASS_MAPPINGS.update(CLASSES)
    executor = execution.PromptExecutor(NoServer())

    def run(prompt: dict[str, Any]) -> None:
        outputs = [key for key, node in prompt.items() if node["class_type"] == "BenchEnd"]
        executor.execute(prompt, "bench", {}, outputs)
        assert executor.success

    return measure(run, nodes, runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inside-comfyui", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside_comfyui:
        print(json.dumps(comfyuis(args.nodes, args.runs)))
        return 0
    results = {"ours": ours(args.nodes, args.runs)}
    if os.environ.get("COMFYUI_PATH"):
        done = subprocess.run(
            [
                os.environ.get("COMFYUI_PYTHON", sys.executable),
                __file__,
                "--inside-comfyui",
                "--nodes",
                str(args.nodes),
                "--runs",
                str(args.runs),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"ComfyUI's executor did not run:\n{done.stderr[-2000:]}", file=sys.stderr)
        else:
            results["comfyui"] = json.loads(done.stdout.splitlines()[-1])
    for who, found in results.items():
        print(f"{who:>8}  " + "  ".join(f"{name} {value:.3f} ms" for name, value in found.items()))
    ok = max(results["ours"].values()) < LIMIT
    if args.json:
        print(json.dumps({"nodes": args.nodes, "limit_ms": LIMIT, "ok": ok, **results}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
