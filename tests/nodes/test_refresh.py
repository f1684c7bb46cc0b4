"""``python start.py refresh``: made files are up to date, and nothing that people have is lost."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts import contract, pages, refresh, requirements

ROOT = Path(__file__).resolve().parents[2]


def test_made_files_are_up_to_date() -> None:
    files = refresh.made()
    assert len([name for name in files if name.startswith("web/docs/")]) >= 30
    assert refresh.stale(files) == [], "run python start.py refresh"
    on_disk = {path.relative_to(ROOT).as_posix() for path in (ROOT / "web" / "docs").glob("*.md")}
    assert on_disk <= files.keys(), "a page of no node"


def test_what_is_out_of_date_is_told_and_written(copied: Any) -> None:
    project, run = copied.root, copied.refresh
    node = project / "nodes" / "results.py"
    source = node.read_text(encoding="utf-8")

    first = run("--check")
    assert first.returncode == 0 and "up to date" in first.stdout, first.stdout + first.stderr

    node.write_text(source.replace("Pictures keep their size.", "Pictures keep their own size."), "utf-8")
    assert run("--check").stdout.split() == ["web/docs/CascadeCompareGrids.md"]
    assert run().stdout.split() == ["web/docs/CascadeCompareGrids.md"]
    page = project / "web" / "docs" / "CascadeCompareGrids.md"
    assert "own size" in page.read_text(encoding="utf-8")
    assert run("--check").returncode == 0

    node.write_text(source.replace('ID = "CascadeCompareGrids"', 'ID = "CascadeCompareSheets"'), "utf-8")
    refused = run()
    assert refused.returncode == 1 and "CascadeCompareGrids is gone" in refused.stderr
    assert not (project / "web" / "docs" / "CascadeCompareSheets.md").exists(), "nothing is written"


def test_the_contract_grows_and_nothing_else() -> None:
    before: dict[str, dict[str, Any]] = {
        "CascadeA": {
            "inputs": {"kind": ["COMBO", "lora", "dora"], "rank": "INT"},
            "outputs": [["target", "CASCADE_TARGET"]],
        }
    }
    grown = copy.deepcopy(before)
    grown["CascadeA"]["inputs"]["kind"].append("lokr")
    grown["CascadeA"]["inputs"]["alpha"] = "FLOAT"
    grown["CascadeA"]["outputs"].append(["report", "STRING"])
    grown["CascadeB"] = {"inputs": {}, "outputs": []}
    assert contract.broken(before, grown) == []

    def told(**changes: object) -> list[str]:
        return contract.broken(before, {"CascadeA": {**before["CascadeA"], **changes}})

    assert "CascadeA is gone" in contract.broken(before, {})[0]
    assert "inputs may only be appended" in told(inputs={"rank": "INT", "kind": ["COMBO", "lora", "dora"]})[0]
    assert "inputs may only be appended" in told(inputs={"kind": ["COMBO", "lora", "dora"]})[0]
    assert "choices may only be appended" in told(inputs={"kind": ["COMBO", "lora"], "rank": "INT"})[0]
    assert (
        "choices may only be appended" in told(inputs={"kind": ["COMBO", "dora", "lora"], "rank": "INT"})[0]
    )
    assert "CascadeA.rank was INT" in told(inputs={"kind": ["COMBO", "lora", "dora"], "rank": "FLOAT"})[0]
    assert "outputs may only be appended" in told(outputs=[["model", "CASCADE_TARGET"]])[0]


def test_prose_on_a_class_is_markdown_on_the_page() -> None:
    assert (
        pages.prose(
            """
        A paragraph that
        goes on.

        | a | b |
        |---|---|
        | 1 | 2 |

        - one
        - two
          goes on
        """
        )
        == "A paragraph that goes on.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- one\n- two   goes on"
    )


def test_requirements_are_those_of_the_project_that_comfyui_does_not_bring() -> None:
    wanted = requirements.wanted()
    assert set(requirements.COMFYUI_BRINGS) <= wanted.keys(), "left out of something that is not needed"
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    asked = {line for line in lines if not line.startswith("#")}
    assert asked == {line for name, line in wanted.items() if name not in requirements.COMFYUI_BRINGS}


def test_everything_required_is_used() -> None:
    """What only an extra needs is asked for by that extra."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "cascade_train").rglob("*.py"))
    modules = {"opencv-python-headless": "cv2", "pillow": "PIL", "pyyaml": "yaml"}
    unused = [
        name
        for name in requirements.wanted()
        if not re.search(rf"^\s*(import|from) {modules.get(name, name)}\b", sources, re.MULTILINE)
    ]
    assert not unused, f"required and imported nowhere: {unused}"


def test_one_version_number() -> None:
    from cascade_train import __version__

    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert not re.search(r'^version = "', project, re.MULTILINE), "the version stands in cascade_train alone"
    assert importlib.metadata.version("cascade-train") == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_made_json_is_read_as_written() -> None:
    assert json.loads(contract.files()[contract.FILE]) == contract.shipped()


@pytest.mark.parametrize("silent", ["", "   "])
def test_a_node_without_prose_is_refused(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cascade_train.graph.core.registry import pack_nodes

    monkeypatch.setattr(pack_nodes().NODES[0], "HELP", silent)
    with pytest.raises(ValueError, match="CascadeLoadStableCascade"):
        pages.files()
