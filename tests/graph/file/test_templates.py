"""All official templates go through, with whatever classes happen to be known."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from cascade_train.graph.check.checked import Wrong, checked
from cascade_train.graph.check.classes import Classes
from cascade_train.graph.file.convert import unknown_classes
from cascade_train.graph.file.load import is_ui

PAIRS = Path(__file__).resolve().parent / "pairs"


def templates() -> list[Path]:
    spec = importlib.util.find_spec("comfyui_workflow_templates_json")
    if spec is None or spec.origin is None:
        pytest.skip("comfyui-workflow-templates-json is not installed")
    return sorted((Path(spec.origin).parent / "templates").glob("*.json"))


def test_every_official_template_converts_and_is_checked() -> None:
    info: dict[str, Any] = json.loads((PAIRS / "templates" / "object_info.json").read_text(encoding="utf-8"))
    count = 0
    for path in templates():
        workflow = json.loads(path.read_text(encoding="utf-8"))
        if not is_ui(workflow):
            continue
        count += 1
        result = checked(workflow, Classes.from_schemas(info), None)
        found = result.problems if isinstance(result, Wrong) else ()
        for node in result.prompt.values():
            for value in node["inputs"].values():
                known = not isinstance(value, list) or value[0] in result.prompt
                assert known, f"{path.name}: a wire leads nowhere"
        missing = {name for name, _, _ in unknown_classes(workflow, info)}
        assert {problem.value for problem in found if problem.kind == "unknown class"} == missing, path.name
    assert count > 500
