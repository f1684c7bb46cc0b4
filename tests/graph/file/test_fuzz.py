"""Hypothesis makes up workflows, prompts and schemas: never anything but a result or a clear error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rule_nodes import NODE_CLASS_MAPPINGS as CLASSES

from cascade_train.errors import CascadeError
from cascade_train.graph.check.checked import Wrong, checked
from cascade_train.graph.check.classes import Classes, object_info
from cascade_train.graph.check.overrides import apply_settings
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.file.convert import to_prompt
from cascade_train.graph.file.strings import dynamic_prompt, fill_in
from cascade_train.graph.show.drawing import draw_graph
from cascade_train.graph.show.summary import summary_of

INFO = object_info(CLASSES)


def problems(workflow: Any, info: dict[str, Any]) -> tuple[Problem, ...]:
    found = checked(workflow, Classes.from_schemas(info), None)
    return found.problems if isinstance(found, Wrong) else ()


BOUNDED = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
FEWER = settings(BOUNDED, max_examples=40)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
KINDS = [*CLASSES, "Reroute", "PrimitiveNode", "SetNode", "GetNode", "Note", "Gone"]
kinds = st.sampled_from(KINDS)
types = st.sampled_from(["IMAGE", "MASK", "LATENT", "*", "INT", "FLOAT", "COMBO", 0, ["a"]])
names = st.sampled_from(
    ["image", "images", "mask", "strength", "latent", "seed", "", "*", "anything", "either"]
)
small = st.integers(-1, 3)
proxies = st.lists(st.tuples(st.sampled_from(["-1", "1", "2"]), names).map(list), max_size=3)


@st.composite
def graphs(draw: Any, kinds_here: list[str], name: str = "") -> dict[str, Any]:
    """A graph whose ids and wires are sound; what the wires connect is left to chance."""
    count = draw(st.integers(1, 5))
    graph: dict[str, Any] = {"nodes": [], "links": []}
    origins = [*range(1, count + 1), *([-10] if name else [])]
    for number in range(1, count + 1):
        inputs = []
        for slot in range(draw(st.integers(0, 3))):
            entry: dict[str, Any] = {"name": draw(names), "type": draw(types), "link": None}
            if draw(st.booleans()):
                entry["link"] = len(graph["links"]) + 1
                graph["links"].append(
                    [
                        entry["link"],
                        draw(st.sampled_from(origins)),
                        draw(st.integers(0, 1)),
                        number,
                        slot,
                        "IMAGE",
                    ]
                )
            if draw(st.booleans()):
                entry["widget"] = {"name": entry["name"]}
            inputs.append(entry)
        node = {
            "id": number,
            "type": draw(st.sampled_from(kinds_here)),
            "mode": draw(st.sampled_from([0, 0, 0, 2, 4])),
            "inputs": inputs,
            "outputs": [],
            "widgets_values": draw(st.lists(anything, max_size=5)),
        }
        if draw(st.booleans()):
            node["properties"] = {"proxyWidgets": draw(proxies)}
        graph["nodes"].append(node)
    if name:
        keys = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
        out = len(graph["links"]) + 1
        graph["links"].append([out, draw(st.sampled_from(origins)), 0, -20, 0, "IMAGE"])
        inside = [
            [link[0] for link in graph["links"] if link[1] == -10 and link[2] == port] for port in (0, 1)
        ]
        graph |= {
            "id": name,
            "name": name,
            "links": [dict(zip(keys, link)) for link in graph["links"]],
            "inputs": [{"name": draw(names), "type": "IMAGE", "linkIds": ids} for ids in inside],
            "outputs": [{"name": "IMAGE", "type": "IMAGE", "linkIds": [out]}],
        }
    return graph


@st.composite
def workflows(draw: Any, worst: int = 1) -> dict[str, Any]:
    """A root graph and two subgraphs, with up to ``worst`` parts replaced by anything at all."""
    workflow: dict[str, Any] = draw(graphs([*KINDS, "s1", "s2", "s1"]))
    workflow["definitions"] = {
        "subgraphs": [draw(graphs([*KINDS, "s2", "s2"], "s1")), draw(graphs(KINDS, "s2"))]
    }
    for _ in range(draw(st.integers(0, worst))):
        place: Any = workflow
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], (dict, list)) or not place[key] or draw(st.integers(0, 4)) == 0:
                place[key] = draw(anything)
                break
            place = place[key]
    return workflow


@BOUNDED
@given(workflows())
def test_made_up_workflows(workflow: dict[str, Any]) -> None:
    try:
        prompt = to_prompt(workflow, INFO, draw=1)
    except CascadeError as error:
        assert "\n" not in str(error)
        return
    for node in prompt.values():
        for value in node["inputs"].values():
            assert not isinstance(value, list) or value[0] in prompt
    for problem in problems(prompt, INFO):
        assert "\n" not in str(problem)
    assert all("\n" not in line for line in draw_graph(summary_of(workflow, INFO).nodes))


@BOUNDED
@given(anything | st.fixed_dictionaries({"nodes": anything, "links": anything, "definitions": anything}))
def test_any_json_as_a_workflow(value: Any) -> None:
    with suppress(CascadeError):
        problems(value, INFO)


prompts = st.dictionaries(
    st.sampled_from(["1", "2", "3", "4:5"]),
    st.fixed_dictionaries(
        {
            "class_type": kinds,
            "inputs": st.dictionaries(
                names | st.sampled_from(["resize", "resize.width", "images.image0", "label", "steps"]),
                anything | st.tuples(st.sampled_from(["1", "2", "3", "9"]), small).map(list),
                max_size=5,
            ),
        }
    )
    | anything,
    max_size=4,
)


@BOUNDED
@given(
    prompts,
    st.lists(
        st.text(max_size=12) | st.sampled_from(["1.strength=2", "RuleShow.label=x", "2.=", "."]), max_size=2
    ),
)
def test_any_prompt_is_checked(prompt: dict[str, Any], changes: list[str]) -> None:
    for problem in problems(prompt, INFO):
        assert str(problem) and "\n" not in str(problem)
        assert problem.as_json()["text"] == str(problem)
    sound = {
        key: node
        for key, node in prompt.items()
        if isinstance(node, dict) and "class_type" in node and isinstance(node.get("inputs"), dict)
    }
    try:
        apply_settings(sound, changes, INFO)
    except CascadeError as error:
        assert "\n" not in str(error)


@BOUNDED
@given(st.text(alphabet="ab{}|\\/*\n%.", max_size=40), st.integers(0, 99))
def test_any_text_is_filled_in(text: str, seed: int) -> None:
    assert dynamic_prompt(text, seed) == dynamic_prompt(text, seed)
    dynamic_prompt(text)
    fill_in(text, lambda node, widget: None)


@FEWER
@given(
    st.dictionaries(
        st.sampled_from(["RuleLoad", "RuleShow"]),
        st.fixed_dictionaries(
            {
                "input": st.dictionaries(
                    st.sampled_from(["required", "optional"]),
                    st.dictionaries(names, anything, max_size=3),
                    max_size=2,
                )
            },
            optional={
                "input_order": st.dictionaries(
                    st.sampled_from(["required", "optional"]), st.lists(names, max_size=3)
                ),
                "output": st.lists(types, max_size=2),
                "output_node": st.booleans(),
            },
        ),
        max_size=2,
    ),
    workflows(0),
)
def test_any_schema(info: dict[str, Any], workflow: dict[str, Any]) -> None:
    with suppress(CascadeError):
        problems(workflow, info)
