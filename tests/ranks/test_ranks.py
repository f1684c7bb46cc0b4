"""One graph in two processes that a launcher started: they train one run, and neither waits for the dead."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from cascade_train.training import lock


def graph(folder: Path, export: str = "lora", format: str = "ComfyUI") -> Path:
    """Two blocks with a validation between them and an export, on the bundled models and pictures."""
    prompt = {
        "1": (
            "CascadeLoadStableCascade",
            {"source": "nano (bundled)", "variant": "full", "precision": "fp32"},
        ),
        "2": (
            "CascadeImageFolder",
            {
                "path": "bundled/crescent",
                "recursive": True,
                "on_bad": "skip",
                "max_bad": 0.5,
                "background": "white",
            },
        ),
        "3": ("CascadeLoRATarget", {"rank": 2, "alpha": 2.0, "modules": "attn", "kind": "lora"}),
        "4": (
            "CascadeOptimizer",
            {
                "name": "adamw",
                "learning_rate": 1e-3,
                "schedule": "constant",
                "warmup": 0,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
                "ema": 0.0,
                "beta1": 0.9,
                "beta2": 0.999,
            },
        ),
        "5": (
            "CascadeTrainingRun",
            {
                "models": ["1", 0],
                "dataset": ["2", 0],
                "target": ["3", 0],
                "optimizer": ["4", 0],
                "seed": 3,
                "batch_size": 4,
                "accumulation": 1,
                "total_steps": 4,
                "precision": "fp32",
                "caption_dropout": 0.05,
                "image_share": 0.1,
                "loss_weight": "p2",
                "objective": "epsilon",
                "offset_noise": 0.0,
                "label": "",
            },
        ),
        "6": (
            "CascadePrompts",
            {
                "texts": "a large red circle\na blue star",
                "negative": "",
                "pictures": 3,
                "seed": 0,
                "width": 0,
                "height": 0,
                "steps_c": 2,
                "cfg_c": 4.0,
                "rescale": 0.7,
                "steps_b": 1,
                "cfg_b": 1.1,
                "sampler": "ddpm",
                "shift": 1.0,
            },
        ),
        "7": ("CascadeTrainSteps", {"run": ["5", 0], "steps": 2, "learning_rate": 0.0}),
        "8": ("CascadeValidate", {"prompts": ["6", 0], "run": ["7", 0], "title": "", "strength": 1.0}),
        "9": ("SaveImage", {"images": ["8", 1], "filename_prefix": "between"}),
        "10": ("CascadeTrainSteps", {"run": ["7", 0], "steps": 2, "learning_rate": 0.0}),
        "11": (
            "CascadeExportRun",
            {"run": ["10", 0], "format": format, "filename": export, "precision": "fp32"},
        ),
    }
    file = folder / "graph.json"
    nodes = {key: {"class_type": kind, "inputs": inputs} for key, (kind, inputs) in prompt.items()}
    file.write_text(json.dumps(nodes), encoding="utf-8")
    return file


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **more}


def command(file: Path, output: Path) -> list[str]:
    return ["-m", "cascade_train.cli", "run", str(file), "--output-dir", str(output), "--device", "cpu"]


def together(file: Path, output: Path) -> list[subprocess.Popen[str]]:
    """Two processes as a launcher starts them, but with nobody to end one when the other does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [
        subprocess.Popen(
            [sys.executable, *command(file, output), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(2)
    ]


def ended(children: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    try:
        told = [child.communicate(timeout=600) for child in children]
        return [(child.returncode, *said) for child, said in zip(children, told)]
    finally:
        for child in children:
            child.kill()


def report(stdout: str) -> Any:
    return json.loads(stdout.splitlines()[-1])


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python run with ``arguments`` to its end, which must be a good one."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("launcher", ["torchrun", "--processes"])
def test_two_processes_make_what_one_makes(tmp_path: Path, launcher: str) -> None:
    file = graph(tmp_path)
    two = command(file, tmp_path / "two")
    if launcher == "torchrun":
        two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *two]
    else:
        two = [*two, "--processes", "2"]
    done = finished(*two)
    assert done.stdout.count("Finished after") == 1, "one of them speaks"
    finished(*command(file, tmp_path / "one"))

    def written(root: Path) -> list[str]:
        return sorted(
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and "index" not in path.parts and path.suffix != ".lock"
        )

    assert written(tmp_path / "two") == written(tmp_path / "one"), "each file once, under the same name"
    (run,) = (tmp_path / "two" / "cascade" / "runs").iterdir()
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    for number in range(1, 7):
        ours, theirs = (
            np.asarray(Image.open(tmp_path / name / f"between_{number:05d}_.png")).astype(int)
            for name in ("two", "one")
        )
        assert ours.shape == (64, 64, 3) and np.abs(ours - theirs).max() <= 2, "each drew its share"
    ours_file, theirs_file = (load_file(tmp_path / name / "lora.safetensors") for name in ("two", "one"))
    for key, value in theirs_file.items():
        assert (ours_file[key] - value).abs().max() < 2e-4, key


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT, which Windows has for consoles alone")
def test_stopping_the_command_stops_its_processes_at_one_step(tmp_path: Path) -> None:
    """Only the process that the person started is told; the same command goes on from where all stood."""
    file = graph(tmp_path)
    words = [*command(file, tmp_path), "--only", "7", "--json", "--processes", "2", "--set"]
    started = subprocess.Popen(
        [sys.executable, *words, "7.steps=100000"],
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment(),
    )
    try:
        assert started.stdout is not None
        for line in started.stdout:
            if '"progress"' in line and '"step' in line:
                break
        os.kill(started.pid, signal.SIGINT)
        rest = started.stdout.read()
        assert started.wait(timeout=120) == 130
    finally:
        started.kill()
    assert report(rest)["interrupted"]
    (run,) = (tmp_path / "cascade" / "runs").iterdir()
    steps = len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert steps > 0
    finished(*words, f"7.steps={steps + 1}")
    assert len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == steps + 1


def test_processes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    words = command(graph(tmp_path), tmp_path)
    for number, more, said in (
        ("0", {}, "Use 1 or more"),
        ("2", {"WORLD_SIZE": "2", "RANK": "0"}, "within a launcher's 2 processes"),
    ):
        done = subprocess.run(
            [sys.executable, *words, "--processes", number],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment(**more),
        )
        assert done.returncode == 2 and said in done.stderr, done.stderr


def test_a_run_that_is_held_is_refused_to_both(tmp_path: Path) -> None:
    file = graph(tmp_path)
    finished(*command(file, tmp_path), "--only", "5")
    (run,) = (tmp_path / "cascade" / "runs").iterdir()
    with lock.locked(run):
        (code, out, _), (other, _, err) = ended(together(file, tmp_path))
    assert code == other == 1
    failed = {node["id"]: node for node in report(out)["nodes"] if node["state"] == "failed"}
    assert list(failed) == ["7"] and f"process {os.getpid()}" in failed["7"]["error"]
    assert "cascade-train (process 1)" in err and f"process {os.getpid()}" in err


def test_a_failure_of_one_alone_ends_what_it_would_do_and_hangs_nobody(tmp_path: Path) -> None:
    """Only the first process writes, so only it finds that the folder's place is taken by a file. The other
    goes on to the next node, Validate, where the first does not come any more."""
    file = graph(tmp_path, export="taken", format="diffusers")
    (tmp_path / "taken").write_bytes(b"")
    (code, out, _), (other, _, err) = ended(together(file, tmp_path))
    assert (code, other) == (1, 1), err
    assert "another process that works with this one has ended" in err and "gloo" not in err
    states = {node["id"]: node["state"] for node in report(out)["nodes"]}
    assert "taken is a file" in next(node["error"] for node in report(out)["nodes"] if node["id"] == "11")
    assert (states["10"], states["11"], states["8"]) == ("ran", "failed", "skipped")


def test_half_of_what_a_launcher_sets_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cascade_train.errors import CascadeError
    from cascade_train.host.headless import HeadlessHost, headless_folders
    from cascade_train.ranks.processes import joined

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(CascadeError, match=r"WORLD_SIZE is 2, but .*MASTER_ADDR.* torchrun"),
        joined(HeadlessHost(headless_folders(tmp_path), "cpu")),
    ):
        pass
