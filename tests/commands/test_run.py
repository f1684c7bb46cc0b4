"""``cascade-train run`` as people use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cascade_train.cli import main
from cascade_train.graph.file.load import read_workflow


class Command:
    """``cascade-train`` called in the folder of the test."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.stdout = self.stderr = ""

    def __call__(self, *words: str) -> int:
        self.capsys.readouterr()
        code = main(list(words))
        self.stdout, self.stderr = self.capsys.readouterr()
        return code

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(capsys)


def node(class_type: str, title: str = "", **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, "_meta": {"title": title}}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Two pictures from one number, and a text; saved as an API prompt."""
    prompt = {
        "1": node("PrimitiveInt", "Side", value=8),
        "2": node("EmptyImage", "Blue", width=["1", 0], height=["1", 0], batch_size=1, color=255),
        "3": node("SaveImage", "Keep it", images=["2", 0], filename_prefix="blue"),
        "4": node("PreviewAny", "Show the side", source=["1", 0]),
    }
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(prompt), encoding="utf-8")
    return file


def test_a_run_says_what_ran_and_where_the_pictures_are(graph: Path, tmp_path: Path) -> None:
    """In a process of its own, as from a shell."""
    done = subprocess.run(
        [sys.executable, "-m", "cascade_train.cli", "run", "graph.json"],
        cwd=tmp_path,
        timeout=300,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "done     Keep it (#3)" in done.stdout
    assert str(tmp_path / "output" / "blue_00001_.png") in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("Finished after") and "4 ran." in done.stdout


def test_a_saved_picture_runs_again_as_the_graph_that_made_it(
    graph: Path, command: Command, tmp_path: Path
) -> None:
    assert command("run", "graph.json") == 0
    picture = tmp_path / "output" / "blue_00001_.png"
    assert read_workflow(picture) == json.loads(graph.read_text(encoding="utf-8"))
    assert command("run", str(picture)) == 0
    assert (tmp_path / "output" / "blue_00002_.png").read_bytes() == picture.read_bytes()


def test_settings_and_one_node_alone(graph: Path, command: Command, tmp_path: Path) -> None:
    assert command("run", "graph.json", "--set", "Side.value=11", "--only", "Show the side") == 0
    assert "           11" in command.stdout
    assert not (tmp_path / "output" / "blue_00001_.png").exists()


def test_json_is_one_object_a_line_and_the_report_is_last(
    graph: Path, command: Command, tmp_path: Path
) -> None:
    assert command("run", "graph.json", "--json") == 0
    events = command.lines()
    assert events[0]["event"] == "start" and set(events[0]["outputs"]) == {"3", "4"}
    ended = {event["node"]: event["state"] for event in events if event["event"] == "node_end"}
    assert ended == dict.fromkeys("1234", "ran")
    report = events[-1]
    assert report["event"] == "report" and report["ok"] and not report["interrupted"]
    (saved,) = [entry for entry in report["nodes"] if entry["id"] == "3"]
    assert saved["files"] == [str(tmp_path / "output" / "blue_00001_.png")]


def test_a_failure_ends_with_1_and_the_other_outputs_are_there(command: Command, tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "broken.png").write_bytes(b"no picture at all")
    prompt = {
        "1": node("LoadImage", "Broken one", image="broken.png"),
        "2": node("PreviewImage", "A", images=["1", 0]),
        "3": node("EmptyImage", width=4, height=4, batch_size=1, color=0),
        "4": node("SaveImage", "B", images=["3", 0], filename_prefix="b"),
    }
    (tmp_path / "graph.json").write_text(json.dumps(prompt), encoding="utf-8")
    assert command("run", "graph.json") == 1
    said = command.stdout
    assert "FAILED   Broken one (#1): this is not a picture" in said
    assert "skipped  A (#2): Broken one (#1) failed" in said and "ran      B (#4)" in said
    assert "b_00001_.png" in said and "Finished with errors" in said


@pytest.mark.parametrize(
    "words, said",
    [
        (("nothing.json",), "no such file"),
        (("graph.json", "--only", "Keep"), "Nearest: 'Keep it'"),
        (("graph.json", "--set", "Side.valu=3"), "Nearest: 'value'"),
        (("graph.json", "--set", "Blue.color=-1"), "color"),
        (("graph.json", "--input-dir", "nowhere"), "--input-dir: there is no folder 'nowhere'"),
        (("graph.json", "--comfyui", "."), "there is no ComfyUI"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_nothing_runs(
    graph: Path, command: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert command("run", *words) == 2 and said in command.stderr, command.stderr
    assert "Traceback" not in command.stderr and not (tmp_path / "output").exists()


def test_all_problems_are_told_at_once_and_as_objects_with_json(command: Command, tmp_path: Path) -> None:
    prompt = {
        "1": node("NoSuchNode"),
        "2": node("EmptyImage", width=0, height=4, batch_size=1, color=0),
        "3": node("PreviewImage", images=["2", 0]),
        "4": node("PreviewImage"),
    }
    (tmp_path / "graph.json").write_text(json.dumps(prompt), encoding="utf-8")
    assert command("run", "graph.json", "--json") == 2
    (report,) = command.lines()
    assert not report["ok"] and {problem["node"] for problem in report["problems"]} == {"1", "2", "4"}
    assert "3 problems; nothing ran" in command.stderr


def test_mistakes_on_the_command_line_are_told_before_anything_runs(
    command: Command, graph: Path, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("", encoding="utf-8")
    assert command("run", str(graph), "--output-dir", str(tmp_path / "a file"), "--json") == 2
    report = command.lines()[-1]
    assert report["event"] == "report" and not report["ok"]
    assert "--output-dir" in report["problems"][0]["text"]
    assert command("run", str(graph), "--device", "cudda") == 2 and "'cudda'" in command.stderr
    assert command("run", str(graph), "--set", "Side.vale=3", "--set", "Sid.value=3") == 2
    assert "'vale'" in command.stderr and "'Sid'" in command.stderr
    (tmp_path / "empty.json").write_text("", encoding="utf-8")
    assert command("run", str(tmp_path / "empty.json")) == 2 and "is empty" in command.stderr
    (tmp_path / "page.json").write_text("<html></html>", encoding="utf-8")
    assert command("run", str(tmp_path / "page.json")) == 2 and "no JSON" in command.stderr
    assert not (tmp_path / "output").exists()


def test_runs_alone_lists_the_runs(command: Command) -> None:
    assert command("runs") == 0 and "no runs in" in command.stdout


def test_a_dry_run_trains_nothing_and_knows_what_is_there(command: Command, tmp_path: Path) -> None:
    """The main job's training, on a folder of pictures alone: what is trained is known beforehand."""
    shipped = Path(__file__).resolve().parents[2] / "workflows" / "teach_a_concept.json"
    assert command("convert", str(shipped)) == 0
    prompt = json.loads(command.stdout)
    folder = next(key for key, value in prompt.items() if value["class_type"] == "CascadeImageFolder")
    for value in prompt.values():
        if value["class_type"] == "CascadeTrainingRun":
            value["inputs"]["dataset"] = [folder, 0]
    workflow = str(tmp_path / "folder_alone.json")
    Path(workflow).write_text(json.dumps(prompt), encoding="utf-8")
    assert command("run", workflow, "--dry-run", "--json") == 0
    plan = command.lines()[-1]
    blocks = [entry for entry in plan["nodes"] if entry["class_type"] == "CascadeTrainSteps"]
    assert blocks[0]["text"].startswith("trains ") and ", 0 to " in blocks[0]["text"]
    assert {entry["will"] for entry in blocks} == {"runs"}
    wrong = "Train Tokens (target).new_tokens=[crescent] = ^xyzzy</w>$"
    assert command("run", workflow, "--dry-run", "--json", "--set", wrong) == 0
    (told,) = (entry for entry in command.lines()[-1]["nodes"] if entry["will"] == "fails")
    assert told["class_type"] == "CascadeTrainingRun" and "no vocabulary entry matches" in told["text"]
    assert "See Train Tokens (target) (#14): new_tokens = '[crescent] = ^xyzzy</w>$'" in told["text"]
    assert not list(tmp_path.rglob("checkpoints")) and not list(tmp_path.rglob("run.json"))
