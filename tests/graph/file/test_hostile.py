"""Workflows made to break a reader: each ends in a clear error or a right result, at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rule_graphs import SUB, SUB2, boxed_image, chain, nested, promoted_strength
from rule_nodes import NODE_CLASS_MAPPINGS as CLASSES
from workflow_builder import Graph

from cascade_train.errors import CascadeError
from cascade_train.graph.check.checked import Wrong, checked
from cascade_train.graph.check.classes import Classes
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.file.convert import to_prompt


def problems(workflow: Any, info: dict[str, Any]) -> tuple[Problem, ...]:
    found = checked(workflow, Classes.from_schemas(info), None)
    return found.problems if isinstance(found, Wrong) else ()


def chained() -> dict[str, Any]:
    graph = Graph(CLASSES)
    chain(graph)
    return graph.workflow()


def refused(workflow: Any, info: dict[str, Any], *words: str) -> None:
    with pytest.raises(CascadeError) as error:
        to_prompt(workflow, info)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_ids_as_floats(rule_info: dict[str, Any]) -> None:
    workflow = chained()
    for node in workflow["nodes"]:
        node["id"] = float(node["id"])
    for link in workflow["links"]:
        link[:5] = [float(part) for part in link[:5]]
    assert to_prompt(workflow, rule_info) == to_prompt(chained(), rule_info), "1.0 is 1"
    bad: Any
    for bad in (1.5, float("nan"), float("inf"), True, None, [], {}, ""):
        workflow["nodes"][0]["id"] = bad
        refused(workflow, rule_info, "is no id")


def test_two_nodes_with_one_id(rule_info: dict[str, Any]) -> None:
    workflow = chained()
    workflow["nodes"][1]["id"] = "1"
    refused(workflow, rule_info, "two nodes have the id 1")


def test_wires_to_nowhere(rule_info: dict[str, Any]) -> None:
    workflow = chained()
    workflow["nodes"][2]["inputs"][0]["link"] = 99
    refused(workflow, rule_info, "'images'", "link 99", "id 3")
    workflow = chained()
    workflow["links"][1][1] = 99
    refused(workflow, rule_info, "'images'", "node 99")
    workflow = chained()
    workflow["links"][1][1] = -10
    refused(workflow, rule_info, "subgraph input")


def test_a_slot_that_the_origin_does_not_have_is_a_problem_not_a_crash(rule_info: dict[str, Any]) -> None:
    workflow = chained()
    workflow["links"][1][2] = 7
    found = problems(workflow, rule_info)
    assert [str(problem) for problem in found] == [
        "RuleShow (id 3): images is wired to output 7 of 'RuleImage' (id 2), which has 2. Connect it again."
    ]


def test_reroutes_in_a_circle(rule_info: dict[str, Any]) -> None:
    graph = Graph(CLASSES)
    chain(graph)
    graph.node(6, "Reroute")
    graph.node(7, "Reroute")
    graph.wire(6, 0, 7, "")
    graph.wire(7, 0, 6, "")
    graph.wire(7, 0, 2, "image", type_="IMAGE")
    refused(graph.workflow(), rule_info, "circle")


def test_a_getter_that_gets_itself(rule_info: dict[str, Any]) -> None:
    graph = Graph(CLASSES)
    graph.node(1, "SetNode", ["x"])
    graph.node(2, "GetNode", ["x"])
    graph.node(3, "RuleShow", ["a"])
    graph.wire(2, 0, 1, "*")
    graph.wire(2, 0, 3, "images", type_="IMAGE")
    refused(graph.workflow(), rule_info, "circle")


def test_nodes_in_a_circle_through_a_subgraph(rule_info: dict[str, Any]) -> None:
    graph, _ = boxed_image()
    graph.node(6, "RuleImage", [1, "plain"], title="Around")
    graph.wire(4, 0, 6, "image")
    graph.wire(6, 0, 4, "image")
    found = problems(graph.workflow(), rule_info)
    assert len(found) == 1 and found[0].kind == "circle"
    assert "'Around' (id 6)" in str(found[0]) and "(id 4:10)" in str(found[0])


def test_a_subgraph_inside_itself(rule_info: dict[str, Any]) -> None:
    graph, inner = boxed_image()
    inner.node(11, SUB)
    refused(graph.workflow(), rule_info, "'Box' contains itself")
    graph = nested(None)
    graph.subgraphs[0].subgraphs[0].node(21, SUB)
    refused(graph.workflow(), rule_info, "contains itself")


def test_subgraphs_that_multiply_without_end(rule_info: dict[str, Any]) -> None:
    workflow = chained()
    definitions = []
    for level in range(60):
        definitions.append(
            {
                "id": f"s{level}",
                "name": f"s{level}",
                "nodes": [
                    {"id": side, "type": f"s{level + 1}", "inputs": [], "outputs": []} for side in (1, 2)
                ],
                "links": [],
            }
        )
    workflow["nodes"].append({"id": 50, "type": "s0", "inputs": [], "outputs": []})
    workflow["definitions"] = {"subgraphs": definitions}
    refused(workflow, rule_info, "more than")


def test_subgraphs_that_lie_too_deep(rule_info: dict[str, Any]) -> None:
    workflow = chained()
    workflow["nodes"].append({"id": 50, "type": "s0"})
    workflow["definitions"] = {
        "subgraphs": [
            {"id": f"s{level}", "name": "s", "nodes": [{"id": 1, "type": f"s{level + 1}"}]}
            for level in range(5000)
        ]
    }
    refused(workflow, rule_info, "deep")


def test_promoted_widgets_of_a_bypassed_subgraph_that_lie_without_end(rule_info: dict[str, Any]) -> None:
    """The inner instance is bypassed and not expanded; what its input stands for is looked up still."""
    definitions = [
        {
            "id": f"s{level}",
            "name": "s",
            "nodes": [
                {
                    "id": 1,
                    "type": f"s{level + 1}",
                    "mode": 4,
                    "inputs": [{"name": "x", "type": "INT", "link": 1}],
                }
            ],
            "links": [{"id": 1, "origin_id": -10, "origin_slot": 0, "target_id": 1, "target_slot": 0}],
            "inputs": [{"name": "x", "type": "INT", "linkIds": [1]}],
        }
        for level in range(5000)
    ]
    workflow = chained()
    workflow["nodes"].append({"id": 50, "type": "s0", "widgets_values": [3]})
    workflow["definitions"] = {"subgraphs": definitions}
    assert set(to_prompt(workflow, rule_info)) == {"1", "2", "3"}


def test_a_promoted_input_of_ports_that_promote_each_other(rule_info: dict[str, Any]) -> None:
    workflow = promoted_strength([1.5, "fancy"]).workflow()
    definition = workflow["definitions"]["subgraphs"][0]
    definition["inputs"][1]["linkIds"] = [2, 2, 77, 3]
    assert to_prompt(workflow, rule_info)["4:10"]["inputs"]["strength"] == 1.5


def test_two_subgraphs_with_one_id(rule_info: dict[str, Any]) -> None:
    graph = nested(None)
    workflow = graph.workflow()
    workflow["definitions"]["subgraphs"][1]["id"] = SUB
    refused(workflow, rule_info, "two subgraphs")
    assert SUB != SUB2


def test_a_chain_of_ten_thousand_reroutes(rule_info: dict[str, Any]) -> None:
    graph = Graph(CLASSES)
    graph.node(1, "RuleLoad", ["first"])
    previous, slot = 1, 0
    for number in range(10, 10_010):
        graph.node(number, "Reroute")
        graph.wire(previous, slot, number, "")
        previous = number
    graph.node(3, "RuleShow", ["a"])
    graph.wire(previous, 0, 3, "images", type_="IMAGE")
    assert to_prompt(graph.workflow(), rule_info)["3"]["inputs"]["images"] == ["1", 0]


def test_unicode_and_control_signs_in_titles_stay_on_one_line(rule_info: dict[str, Any]) -> None:
    graph = Graph(CLASSES)
    graph.node(1, "RuleShow", ["a"], title="猫 \ud800 \x1b[2J\nsecond line" + "x" * 5000)
    found = problems(graph.workflow(), rule_info)
    prompt = to_prompt(graph.workflow(), rule_info)
    assert prompt["1"]["_meta"]["title"].startswith("猫")
    line = str(found[0])
    assert "猫" in line and "\n" not in line and "\x1b" not in line and len(line) < 400


MANGLED: list[Any] = [None, 3, -1, 1e400, "x", "", [], {}, [[]], [None], {"a": {}}, True]


@pytest.mark.parametrize("replacement", MANGLED, ids=repr)
def test_any_part_replaced_by_anything_gives_an_error_or_a_prompt(
    rule_info: dict[str, Any], replacement: Any
) -> None:
    whole = promoted_strength([1.5, "fancy"], proxies=[["-1", "strength"], ["10", "method"]]).workflow()
    for path in _paths(whole):
        mangled = copy.deepcopy(whole)
        _replace(mangled, path, copy.deepcopy(replacement))
        try:
            prompt = checked(mangled, Classes.from_schemas(rule_info), None).prompt
        except CascadeError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(prompt, dict)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += _paths(inner, (*at, key))
    return found


def _replace(value: Any, path: tuple[Any, ...], replacement: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = replacement
