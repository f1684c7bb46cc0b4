"""The command line as a host: folders, device, and Ctrl-C in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders

posix = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")


def test_everything_a_run_writes_lies_under_the_output_folder(tmp_path: Path) -> None:
    models, more = tmp_path / "models", tmp_path / "more"
    folders = headless_folders(tmp_path / "results", tmp_path / "in", [models], [more])
    for place in (folders.temp, folders.runs, folders.cache):
        assert place.is_relative_to(folders.output)
    assert folders.models["unet"] == (models / "unet", models / "diffusion_models")
    assert not folders.output.exists(), "asking makes nothing"


def test_a_workflow_reads_only_what_was_allowed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a", encoding="utf-8")
    (tmp_path / "more" / "b.txt").write_text("b", encoding="utf-8")
    secret = tmp_path / "secret.txt"
    secret.write_text("s", encoding="utf-8")
    closed = headless_folders(tmp_path / "out", tmp_path / "in")
    opened = headless_folders(tmp_path / "out", tmp_path / "in", (), [tmp_path / "more"])
    assert closed.resolve_read("a.txt").read_text(encoding="utf-8") == "a"
    assert opened.resolve_read(str(tmp_path / "more" / "b.txt")).name == "b.txt"
    for place in (str(secret), "../secret.txt", str(tmp_path / "more" / "b.txt")):
        with pytest.raises(CascadeError, match=r"outside the folders|does not exist"):
            closed.resolve_read(place)


def test_a_workflow_writes_under_the_output_folder_alone_and_alike_on_every_system(tmp_path: Path) -> None:
    folders = headless_folders(tmp_path / "out")
    assert folders.resolve_write("loras\\mine") == folders.resolve_write("loras/mine")
    assert folders.resolve_write("loras\\mine") == (tmp_path / "out" / "loras" / "mine").resolve()
    for name in ("..\\away", "a/../../away", str(tmp_path / "away")):
        with pytest.raises(CascadeError, match="leaves the output folder"):
            folders.resolve_write(name)
    for name in (".", "a/..", "folder/", "folder\\"):
        with pytest.raises(CascadeError, match="names a folder"):
            folders.resolve_write(name)
    for name in ("a\0b", "a\nb"):
        with pytest.raises(CascadeError, match="characters that no name can have"):
            folders.resolve_write(name)


def test_the_device_asked_for_must_be_there(tmp_path: Path) -> None:
    folders = headless_folders(tmp_path)
    assert HeadlessHost(folders, "cpu").device == "cpu"
    with pytest.raises(CascadeError, match="is not a device"):
        assert HeadlessHost(folders, "warp").device
    with pytest.raises(CascadeError, match="torch finds"):
        assert HeadlessHost(folders, "cuda:63").device


def test_a_host_that_was_told_to_stop_interrupts(tmp_path: Path) -> None:
    host = HeadlessHost(headless_folders(tmp_path))
    host.check_interrupt()
    host.progress(1, 2)
    host.stop()
    for asked in (host.check_interrupt, lambda: host.progress(2, 2)):
        with pytest.raises(Interrupted):
            asked()


WAITING = """
import sys, time
from pathlib import Path
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.host.signals import stop_on_signals
from cascade_train.errors import Interrupted
host = HeadlessHost(headless_folders(Path("out")))
with stop_on_signals(host, lambda text: print(text, flush=True)):
    print("ready", flush=True)
    for step in range(10_000):
        time.sleep(0.02)
        if "deaf" not in sys.argv:
            try:
                host.check_interrupt()
            except Interrupted:
                print("stopped at a step boundary", flush=True)
                sys.exit(130)
"""


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, *words], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_the_first_signal_stops_at_the_next_boundary(tmp_path: Path, number: int) -> None:
    process = start(folder=tmp_path)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert "running the same file again continues" in said and "step boundary" in said
    assert process.returncode == 130


@posix
def test_a_second_ctrl_c_ends_work_that_does_not_listen(tmp_path: Path) -> None:
    process = start("deaf", folder=tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and "Ctrl-C again stops at once" in process.stdout.readline()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


BUSY = """
import hashlib, sys, time
from contextlib import nullcontext
from pathlib import Path
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.host.signals import stop_on_signals
host = HeadlessHost(headless_folders(Path("out")))
with stop_on_signals(host, lambda text: None, lambda: print("ended", flush=True)):
    with host.keeping() if "keeping" in sys.argv else nullcontext():
        print("ready", flush=True)
        # one call into C, in which Python hears of nothing
        hashlib.pbkdf2_hmac("sha256", b"", b"", 4_000_000 if "keeping" in sys.argv else 2_000_000_000)
        host.keeping().__enter__()
        print("saved", flush=True)
"""


@posix
def test_work_that_hears_nothing_is_ended(tmp_path: Path) -> None:
    """Reading a model of gigabytes, say: a minute and more in one call."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert (said, process.returncode) == ("ended\n", 130)


@posix
def test_work_that_would_be_lost_is_saved_first(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, "keeping"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == ("saved\n", 0)


@posix
def test_ctrl_c_in_a_training_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    """A real training is stopped; the same graph again goes on from the step where it was."""
    from cascade_train.graph.check.checked import Checked, checked
    from cascade_train.graph.check.classes import Classes, object_info
    from cascade_train.graph.check.schema import inputs_of
    from cascade_train.graph.core.registry import node_classes
    from cascade_train.graph.run.loop import execute

    info = object_info(node_classes(HeadlessHost(headless_folders(tmp_path))))

    def node(name: str, **inputs: Any) -> dict[str, Any]:
        wanted = [entry for entry in inputs_of(info[name]) if entry.required and entry.default is not None]
        return {"class_type": name, "inputs": {**{e.name: e.default for e in wanted}, **inputs}}

    prompt = {
        "1": node("CascadeLoadStableCascade"),
        "2": node("CascadeImageFolder", path="bundled/crescent"),
        "3": node("CascadeLoRATarget", rank=2),
        "4": node("CascadeOptimizer"),
        "5": node(
            "CascadeTrainingRun",
            models=["1", 0],
            dataset=["2", 0],
            target=["3", 0],
            optimizer=["4", 0],
            batch_size=1,
            total_steps=100_000,
        ),
        "6": node("CascadeTrainSteps", run=["5", 0], steps=100_000),
        "7": node("PreviewAny", source=["6", 2]),
    }
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(prompt), encoding="utf-8")

    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cascade_train.cli",
            "run",
            str(file),
            "--output-dir",
            "out",
            "--json",
            "--device",
            "cpu",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    events = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "progress" and events[-1]["node"] == "6" and events[-1]["done"] > 1:
            process.send_signal(signal.SIGINT)
            break
    events += [json.loads(line) for line in process.stdout]
    assert process.wait(60) == 130
    report = events[-1]
    assert report["event"] == "report" and report["interrupted"] and not report["ok"]
    states = {entry["id"]: entry["state"] for entry in report["nodes"]}
    assert states["6"] == states["7"] == "stopped" and states["5"] == "ran"
    (run,) = (tmp_path / "out" / "cascade" / "runs").iterdir()
    reached = max(int(entry.name.split("-")[0]) for entry in (run / "checkpoints").iterdir())
    assert 0 < reached < 100_000

    seen: list[int] = []
    host = HeadlessHost(headless_folders(tmp_path / "out"), "cpu")

    class Watch(Quiet):
        def progress(self, done: int, total: int, text: str, preview: object) -> None:
            if total == 100_000:
                seen.append(done)
                if done > reached:
                    host.stop()

    host.sink = Watch()
    found = checked(prompt, Classes(node_classes(host)), host)
    assert isinstance(found, Checked) and execute(found, host).interrupted
    assert min(seen) >= reached, "it went on, and did not start again"
