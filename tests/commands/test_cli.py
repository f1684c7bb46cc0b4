"""The command line as a person meets it: in its own process, on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAIRS = REPOSITORY / "tests" / "graph" / "file" / "pairs"
HEAVY = ("torch", "numpy", "diffusers", "transformers", "PIL", "cv2", "yaml")


def run(*words: str, cwd: Path | None = None, heavy: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command; unless ``heavy``, fail when it imported a heavy library."""
    script = (
        "import sys; from cascade_train.cli import main; code = main(sys.argv[1:]); "
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]; "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    start = ["-m", "cascade_train.cli"] if heavy else ["-c", script]
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    for name in ("run", "validate", "convert", "inspect", "nodes"):
        assert f"\n    {name} " in done.stdout


@pytest.mark.parametrize("name", ["run", "validate", "convert", "inspect", "nodes"])
def test_each_command_explains_itself(name: str) -> None:
    done = run(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"cascade-train {name}" in done.stdout


def test_a_wrong_command_lists_the_right_ones() -> None:
    done = run("validat")
    assert done.returncode == 2
    assert "validate" in done.stderr
    assert run().returncode == 2


def test_convert_prints_the_prompt_and_nothing_else() -> None:
    name = "flux_depth_lora_example"
    done = run(
        "convert",
        str(PAIRS / "templates" / f"{name}.json"),
        "--object-info",
        str(PAIRS / "templates" / "object_info.json"),
    )
    assert done.returncode == 0 and done.stderr == ""
    prompt = json.loads(done.stdout)
    wanted = json.loads((PAIRS / "templates" / f"{name}.api.json").read_text(encoding="utf-8"))
    assert {key: node["inputs"] for key, node in prompt.items()} == {
        key: node["inputs"] for key, node in wanted.items()
    }


def test_convert_names_all_classes_that_it_does_not_know() -> None:
    done = run("convert", str(PAIRS / "templates" / "flux_depth_lora_example.json"))
    assert done.returncode == 2 and done.stdout == ""
    assert "KSampler" in done.stderr and "UNETLoader" in done.stderr and "--comfyui" in done.stderr


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    (tmp_path / "input" / "cats").mkdir(parents=True)
    nodes = [
        {
            "id": 1,
            "type": "CascadeLoadPictures",
            "title": "Pictures",
            "mode": 0,
            "inputs": [],
            "outputs": [{"name": "images", "type": "IMAGE", "links": [1]}],
            "widgets_values": ["cats", 0, 4, 64, 64],
        },
        {
            "id": 2,
            "type": "ImageScale",
            "mode": 4,
            "inputs": [{"name": "image", "type": "IMAGE", "link": 1}],
            "outputs": [{"name": "IMAGE", "type": "IMAGE", "links": [2]}],
            "widgets_values": ["bilinear", 64, 64, "disabled"],
        },
        {
            "id": 3,
            "type": "PreviewImage",
            "title": "Look",
            "mode": 0,
            "inputs": [{"name": "images", "type": "IMAGE", "link": 2}],
            "outputs": [],
        },
        {"id": 4, "type": "Note", "mode": 0, "widgets_values": ["cats are fine"]},
    ]
    path = tmp_path / "cats.json"
    path.write_text(
        json.dumps(
            {"nodes": nodes, "links": [[1, 1, 0, 2, 0, "IMAGE"], [2, 2, 0, 3, 0, "IMAGE"]], "version": 0.4}
        ),
        encoding="utf-8",
    )
    return path


def test_validate_says_that_all_is_well_or_what_is_not(workflow: Path) -> None:
    done = run("validate", str(workflow), cwd=workflow.parent)
    assert (done.returncode, done.stdout) == (0, f"{workflow}: 2 nodes, no problem\n"), done.stderr
    done = run(
        "validate", str(workflow), "--set", "Pictures.count=0", "--set", "1.path=../..", cwd=workflow.parent
    )
    assert done.returncode == 2
    assert "Pictures (id 1): count = 0 is too small. Give a whole number from 1 to 256.\n" in done.stdout
    assert "path = '../..'" in done.stdout and done.stdout.endswith("2 nodes, 2 problems\n")


def test_validate_as_json_is_one_object_also_for_a_damaged_file(workflow: Path) -> None:
    found = json.loads(
        run("validate", str(workflow), "--json", "--set", "1.count=0", cwd=workflow.parent).stdout
    )
    assert found["ok"] is False and found["nodes"] == 2
    (problem,) = found["problems"]
    assert (problem["node"], problem["input"], problem["value"], problem["kind"]) == (
        "1",
        "count",
        0,
        "range",
    )
    workflow.write_text('{"nodes": [', encoding="utf-8")
    done = run("validate", str(workflow), "--json", cwd=workflow.parent)
    assert done.returncode == 2 and json.loads(done.stdout)["problems"][0]["kind"] == "file"


def test_inspect_draws_the_graph(workflow: Path) -> None:
    done = run("inspect", str(workflow), cwd=workflow.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{workflow}: UI workflow 0.4, 2 nodes, 1 wire, 1 muted or bypassed",
        "",
        "● Pictures (1)  CascadeLoadPictures",
        "│   path=cats  first=0  count=4  width=64  height=64",
        "■ Look (3)  PreviewImage",
        "    images ← Pictures (1) images",
        "bypassed: ImageScale (2)",
        "note: cats are fine",
    ]
    data = json.loads(run("inspect", str(workflow), "--json", cwd=workflow.parent).stdout)
    assert [node["id"] for node in data["nodes"]] == ["1", "3"]


def test_nodes_lists_ours_and_the_stand_ins(tmp_path: Path) -> None:
    done = run("nodes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("CascadeTrainSteps", "SaveImage", "LoadImage"):
        assert f"{name}  '" in done.stdout
    one = run("nodes", "Train Steps", cwd=tmp_path)
    assert "CascadeTrainSteps" in one.stdout and "SaveImage" not in one.stdout
    schemas: dict[str, Any] = json.loads(run("nodes", "--json", cwd=tmp_path).stdout)
    assert schemas["CascadeTrainSteps"]["input"]["required"]["steps"][0] == "INT"
    wrong = run("nodes", "Train Stepz", cwd=tmp_path)
    assert wrong.returncode == 2 and "Train Steps" in wrong.stderr
    assert list(tmp_path.iterdir()) == []


def test_schemas_from_a_file_must_be_schemas(workflow: Path) -> None:
    done = run("validate", str(workflow), "--object-info", str(workflow), cwd=workflow.parent)
    assert done.returncode == 2 and "no /object_info" in done.stderr


def test_an_error_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    for words in (["convert", "gone.json"], ["inspect", str(tmp_path)], ["validate", "gone.json"]):
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("cascade-train: ") and done.stderr.count("\n") == 1


def test_the_reader_of_a_pipe_may_leave_early(workflow: Path) -> None:
    """``cascade-train nodes | head -1`` ends quietly."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cascade_train.cli", "nodes", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=workflow.parent,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_what_a_class_itself_refuses_is_a_problem_too() -> None:
    from cascade_train.graph.check.checked import Wrong, checked
    from cascade_train.graph.check.classes import Classes

    class Even:
        RETURN_TYPES = ()
        FUNCTION = "run"
        OUTPUT_NODE = True

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"count": ("INT", {})}}

        @classmethod
        def VALIDATE_INPUTS(cls, count: int) -> bool | str:
            return count % 2 == 0 or f"{count} is odd"

        def run(self, count: int) -> tuple[()]:
            return ()

    prompt = {str(count): {"class_type": "Even", "inputs": {"count": count}} for count in (2, 3)}
    found = checked(prompt, Classes({"Even": Even}), None)
    assert isinstance(found, Wrong)
    assert [str(problem) for problem in found.problems] == ["Even (id 3): count = 3 is refused: 3 is odd."]


def test_a_command_ends_without_the_interpreter_taking_itself_apart(tmp_path: Path) -> None:
    """With torch loaded that takes seconds, which a person who has pressed Ctrl-C would wait for."""
    code = (
        "import atexit, sys\n"
        "class Kept:\n"
        "    def __del__(self): print('taken apart', flush=True)\n"
        "kept = Kept()\n"
        "atexit.register(print, 'registered')\n"
        "from cascade_train import cli\n"
        "cli.command()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "validate", "missing.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert (done.returncode, done.stdout) == (2, "registered\n") and "missing.json" in done.stderr
