"""A workflow is checked into one value that may run, or into all that is wrong with what would run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cascade_train.errors import CascadeError
from cascade_train.graph.check.checked import Checked, Wrong, checked
from cascade_train.graph.check.classes import Classes, object_info
from cascade_train.graph.check.reach import reached
from cascade_train.graph.run.loop import execute
from cascade_train.graph.run.plan import dry_run
from cascade_train.host.headless import HeadlessHost, headless_folders


class Number:
    RETURN_TYPES: tuple[str, ...] = ("INT",)
    FUNCTION = "run"
    USES_TORCH = False

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"value": ("INT", {"min": 0})}}

    def run(self, value: int) -> tuple[int]:
        return (value,)


class Total(Number):
    """Takes any number of further wires."""

    def run(self, value: int, **more: int) -> tuple[int]:
        return (value + sum(more.values()),)


class Show(Number):
    RETURN_TYPES = ()
    OUTPUT_NODE = True

    def run(self, value: int) -> dict[str, Any]:  # type: ignore[override]
        return {"ui": {"text": [str(value)]}}


CLASSES: dict[str, type] = {"Number": Number, "Total": Total, "Show": Show}


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, "_meta": {"title": f"A {class_type}"}}


def prompt() -> dict[str, Any]:
    return {
        "1": node("Number", value="2"),
        "2": node("Total", value=3, extra=["1", 0]),
        "10": node("Show", value=["2", 0]),
        "3": node("Show", value=7),
        "4": node("Number", value=5),
    }


def told(workflow: Any, **more: Any) -> list[str]:
    found = checked(workflow, Classes(CLASSES), None, **more)
    return [str(problem) for problem in found.problems] if isinstance(found, Wrong) else []


def sound(workflow: Any, **more: Any) -> Checked:
    found = checked(workflow, Classes(CLASSES), None, **more)
    assert isinstance(found, Checked), found
    return found


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(headless_folders(tmp_path))


def test_what_may_run_holds_all_that_running_it_needs(host: HeadlessHost) -> None:
    found = sound(prompt())
    assert found.roots == ("3", "10") and found.needed == ("3", "1", "2", "10")
    assert found.prompt["1"]["inputs"] == {"value": 2}, "in its input's type"
    assert [planned.node_id for planned in dry_run(found)] == list(found.needed)
    assert execute(found, host).outputs() == {"3": {"text": ["7"]}, "10": {"text": ["5"]}}


def test_settings_and_names_choose_what_runs(host: HeadlessHost) -> None:
    found = sound(prompt(), settings=["1.value=4"], only=["10"])
    assert found.roots == ("10",) and found.needed == ("1", "2", "10")
    assert execute(found, host).outputs() == {"10": {"text": ["7"]}}
    with pytest.raises(CascadeError, match="no node is called 'Shw'"):
        checked(prompt(), Classes(CLASSES), None, only=["Shw"])


def test_only_what_would_run_is_checked_and_all_of_that() -> None:
    wrong = prompt() | {"4": node("Number", value=-1), "5": node("Gone")}
    assert told(wrong) == [
        "A Gone (id 5): there is no node class 'Gone' here. "
        "Install its pack in a ComfyUI and run with --comfyui FOLDER."
    ]
    assert told(wrong, only=["10"]) == [], "what else is in the file does not matter"
    assert told(wrong, only=["4"]) == [
        "A Number (id 4): value = -1 is too small. Give a whole number of at least 0."
    ]
    assert [line[:13] for line in told(wrong, only=["5"])] == ["A Gone (id 5)"]


def test_a_wire_that_a_class_takes_without_declaring_it_is_checked_and_one_that_it_drops_is_not() -> None:
    wrong = prompt()
    wrong["2"]["inputs"]["extra"] = ["77", 0]
    assert told(wrong) == [
        "A Total (id 2): extra is wired to node '77', which is not in the prompt. Connect it again."
    ]
    wrong = prompt()
    wrong["3"]["inputs"]["extra"] = ["5", 0]
    wrong["5"] = node("Number", value="many")
    assert told(wrong) == [] and "5" not in sound(wrong).needed


def test_ids_that_a_script_wrote_as_numbers_are_ids(host: HeadlessHost) -> None:
    script = {int(key): entry for key, entry in prompt().items()}
    script[2]["inputs"]["extra"] = [1, 0]
    assert execute(sound(script), host).outputs()["10"] == {"text": ["5"]}


def test_a_circle_is_named_the_same_each_time() -> None:
    wrong = prompt()
    wrong["1"]["inputs"]["value"] = ["2", 0]
    assert told(wrong) == [
        "A Number (id 1): its inputs come from itself: "
        "'A Number' (id 1) → 'A Total' (id 2) → 'A Number' (id 1). Disconnect one wire of the circle."
    ]
    assert reached(wrong, ["10"]).circles == (("1", "2"),)


def test_entries_that_are_no_nodes_are_told() -> None:
    assert told({"1": "junk", "3": node("Show", value=1)}) == [
        "node (id 1): this is no node: it needs a text 'class_type' and an object 'inputs'. "
        "Export the prompt again."
    ]


def test_schemas_alone_check_the_same_and_run_nothing(host: HeadlessHost) -> None:
    schemas = Classes.from_schemas(object_info(CLASSES))
    found = checked(prompt(), schemas, None)
    assert isinstance(found, Checked) and found.needed == sound(prompt()).needed
    with pytest.raises(CascadeError, match="nothing can run"):
        execute(found, host)
