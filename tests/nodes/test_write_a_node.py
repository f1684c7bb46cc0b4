"""The node that docs/write-a-node.md shows is written into the pack, as a newcomer would, and runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

GRAPH: dict[str, dict[str, Any]] = {
    "1": {"class_type": "CascadeImageFolder", "inputs": {"path": "bundled/crescent"}},
    "2": {"class_type": "CascadeFilterSamples", "inputs": {"dataset": ["1", 0], "filters": "width >= 32"}},
    "3": {"class_type": "CascadeCountSamples", "inputs": {"dataset": ["2", 0]}},
    "4": {"class_type": "PreviewAny", "inputs": {"source": ["3", 0]}},
}


@pytest.fixture
def pack(copied: Any) -> Any:
    """The project with the page's node in it."""
    (example,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "write-a-node.md").read_text("utf-8"), re.S
    )
    module = copied.root / "nodes" / "data.py"
    module.write_text(f"{module.read_text(encoding='utf-8')}\n\n{example}", encoding="utf-8")
    return copied


def test_the_example_runs(pack: Any, tmp_path: Path) -> None:
    defaults = json.loads(pack.main("cascade_train.cli", "nodes", "--json").stdout)
    graph = {
        node: {**entry, "inputs": {**given(defaults[entry["class_type"]]), **entry["inputs"]}}
        for node, entry in GRAPH.items()
    }
    (tmp_path / "graph.json").write_text(json.dumps(graph), encoding="utf-8")

    ran = pack.main(
        "cascade_train.cli",
        "run",
        str(tmp_path / "graph.json"),
        "--json",
        "--output-dir",
        str(tmp_path / "out"),
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    (shown,) = (node for node in report["nodes"] if node["id"] == "4")
    assert shown["ui"]["text"] == ["20"], "the pictures of the bundled crescent"


def test_refresh_does_the_rest(pack: Any) -> None:

    written = pack.refresh()

    assert written.stdout.split() == ["tests/nodes/contract.json", "web/docs/CascadeCountSamples.md"]
    page = (pack.root / "web" / "docs" / "CascadeCountSamples.md").read_text(encoding="utf-8")
    assert "Tells how many samples a dataset has." in page and "| `samples` | INT |" in page
    asked = pack.main("cascade_train.cli", "nodes", "CascadeCountSamples")
    assert asked.returncode == 0 and "dataset: CASCADE_DATASET" in asked.stdout


def given(schema: dict[str, Any]) -> dict[str, Any]:
    """The defaults of a class's widgets."""
    entries = {**schema["input"].get("required", {}), **schema["input"].get("optional", {})}
    return {name: entry[1]["default"] for name, entry in entries.items() if "default" in entry[1]}
