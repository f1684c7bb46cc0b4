"""Each numbered rule of turning a saved workflow into a prompt, on a workflow as small as the rule allows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rule_cases import CASES
from rule_graphs import boxed_image, promoted_strength
from rule_nodes import NODE_CLASS_MAPPINGS
from workflow_builder import Graph

from cascade_train.errors import CascadeError
from cascade_train.graph.file.convert import to_prompt, unknown_classes
from cascade_train.graph.file.strings import dynamic_prompt


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str, rule_info: dict[str, Any]) -> None:
    workflow, expected = CASES[name]()
    saved = json.loads(json.dumps(workflow))
    prompt = to_prompt(saved, rule_info)
    assert {key: (node["class_type"], node["inputs"]) for key, node in prompt.items()} == expected
    assert saved == workflow, "the workflow itself is left as it was"


def test_rule_01_ids_may_be_text(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    graph.node("load me", "RuleLoad", ["first"])
    graph.node("show", "RuleShow", ["a"])
    graph.wire("load me", 0, "show", "images")
    prompt = to_prompt(graph.workflow(), rule_info)
    assert prompt["show"]["inputs"]["images"] == ["load me", 0]


def test_rule_01_an_api_prompt_comes_back_as_it_is(rule_info: dict[str, Any]) -> None:
    prompt = {"3": {"class_type": "RuleShow", "inputs": {"images": ["1", 0]}}}
    assert to_prompt(prompt, rule_info) == prompt


def test_rule_03_a_primitive_wired_to_a_subgraph_sets_the_inner_widget(rule_info: dict[str, Any]) -> None:
    graph = promoted_strength([1.5, "fancy"])
    graph.node(6, "PrimitiveNode", [0.5, "fixed"])
    graph.wire(6, 0, 4, "strength", type_="FLOAT")
    assert to_prompt(graph.workflow(), rule_info)["4:10"]["inputs"]["strength"] == 0.5


def test_rule_03_a_whole_number_is_rounded_to_its_step() -> None:
    class Stepped:
        RETURN_TYPES = ()
        OUTPUT_NODE = True

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"width": ("INT", {"default": 512, "min": 16, "max": 4096, "step": 8})}}

    from cascade_train.graph.check.classes import object_info

    classes = {"Stepped": Stepped}
    graph = Graph(classes)
    graph.node(1, "Stepped", [515])
    graph.node(2, "Stepped", [515])
    graph.node(6, "PrimitiveNode", [1023, "fixed"])
    graph.wire(6, 0, 1, "width", type_="INT")
    prompt = to_prompt(graph.workflow(), object_info(classes))
    assert prompt["1"]["inputs"]["width"] == 1024
    assert prompt["2"]["inputs"]["width"] == 515, "a value from the file is taken as it is"


def test_rule_05_a_widget_with_a_muted_source_is_dropped_like_any_input(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    graph.node(1, "RuleNumbers", [3, 0.5, ""], mode=2)
    graph.node(2, "RuleImage", [0.25, "plain"])
    graph.wire(1, 1, 2, "strength")
    assert to_prompt(graph.workflow(), rule_info)["2"]["inputs"] == {"method": "plain"}


def test_rule_05_a_list_is_wrapped_so_that_it_is_no_wire(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    graph.node(1, "RuleNumbers", [3, 0.5, ["7", 0]])
    assert to_prompt(graph.workflow(), rule_info)["1"]["inputs"]["text"] == {"__value__": ["7", 0]}


def test_rule_06_values_in_an_object_are_by_name(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    graph.node(1, "RuleSeed", {"cfg": 2.5, "seed": 9, "videopreview": {"hidden": True}})
    assert to_prompt(graph.workflow(), rule_info)["1"]["inputs"] == {
        "seed": 9,
        "steps": 20,
        "style": "a",
        "cfg": 2.5,
    }


def test_rule_06_names_are_right_where_an_older_class_lacks_a_widget(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    named = {"whole": 3, "added later": True, "real": 0.25, "text": "t"}
    graph.node(1, "RuleNumbers", list(named.values()), named=named)
    assert to_prompt(graph.workflow(), rule_info)["1"]["inputs"] == {"whole": 3, "real": 0.25, "text": "t"}


def test_rule_11_an_input_behind_a_muted_subgraph_is_dropped(rule_info: dict[str, Any]) -> None:
    graph = promoted_strength([1.5, "fancy"])
    graph.nodes[4]["mode"] = 2
    prompt = to_prompt(graph.workflow(), rule_info)
    assert set(prompt) == {"1", "5"}
    assert "images" not in prompt["5"]["inputs"]


def test_rule_12_a_getter_in_a_subgraph_finds_a_setter_around_it(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    inner = graph.subgraph("aaaaaaaa-0000-4000-8000-000000000001", "Box")
    inner.port_out("IMAGE", "IMAGE")
    inner.node(10, "GetNode", ["picture"])
    inner.wire(10, 0, "OUT", "IMAGE")
    graph.node(1, "RuleLoad", ["first"])
    graph.node(2, "SetNode", ["picture"])
    graph.node(4, inner.uuid)
    graph.node(5, "RuleShow", ["a"])
    graph.wire(1, 0, 2, "*")
    graph.wire(4, 0, 5, "images")
    assert to_prompt(graph.workflow(), rule_info)["5"]["inputs"]["images"] == ["1", 0]


def test_rule_13_a_subgraph_may_pass_an_input_straight_on(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    inner = graph.subgraph("aaaaaaaa-0000-4000-8000-000000000001", "Wire")
    inner.port_in("image", "IMAGE")
    inner.port_out("IMAGE", "IMAGE")
    inner.wire("IN", 0, "OUT", "IMAGE")
    graph.node(1, "RuleLoad", ["first"])
    graph.node(4, inner.uuid)
    graph.node(5, "RuleShow", ["a"])
    graph.wire(1, 0, 4, "image")
    graph.wire(4, 0, 5, "images")
    assert to_prompt(graph.workflow(), rule_info)["5"]["inputs"]["images"] == ["1", 0]


def test_rule_14_a_proxy_with_no_input_sets_the_inner_widget(rule_info: dict[str, Any]) -> None:
    graph, _ = boxed_image()
    graph.nodes[4]["properties"] = {"proxyWidgets": [["10", "method"], ["10", "$$canvas-image-preview"]]}
    graph.nodes[4]["widgets_values"] = ["fancy", None]
    inputs = to_prompt(graph.workflow(), rule_info)["4:10"]["inputs"]
    assert inputs == {"strength": 0.25, "method": "fancy", "image": ["1", 0]}


def test_rule_15_choices_stay_as_they_are_unless_a_seed_draws_them(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    text = "a {red|green|{light|dark} blue} cat, {big|small}"
    graph.node(1, "RuleText", [text, "{a|b}"])
    workflow = graph.workflow()
    assert to_prompt(workflow, rule_info)["1"]["inputs"] == {"text": text, "plain": "{a|b}"}
    drawn = [to_prompt(workflow, rule_info, draw=seed)["1"]["inputs"] for seed in range(40)]
    assert drawn == [to_prompt(workflow, rule_info, draw=seed)["1"]["inputs"] for seed in range(40)]
    assert {entry["text"] for entry in drawn} == {
        f"a {colour} cat, {size}"
        for colour in ("red", "green", "light blue", "dark blue")
        for size in ("big", "small")
    }
    assert {entry["plain"] for entry in drawn} == {"{a|b}"}, "only inputs that allow it"


def test_rule_15_a_choice_that_is_not_closed_ends_with_the_text() -> None:
    assert dynamic_prompt("one } two", 0) == "one } two"
    assert dynamic_prompt("x {a|a", 3) == "x a"


def test_rule_16_group_nodes_are_refused_by_name(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    graph.node(1, "workflow>My old group")
    with pytest.raises(CascadeError, match=r"group nodes \(My old group\).*Convert to nodes"):
        to_prompt(graph.workflow(), rule_info)


def test_rule_16_unknown_classes_are_named_all_at_once_with_their_packs(rule_info: dict[str, Any]) -> None:
    graph = Graph(NODE_CLASS_MAPPINGS)
    graph.node(1, "Upscaler", [], properties={"cnr_id": "some-pack"})
    graph.node(2, "Sharpener", [], title="Make it crisp", properties={"aux_id": "someone/their-nodes"})
    graph.node(3, "Vanished")
    graph.node(4, "AlsoGone", mode=4)
    assert unknown_classes(graph.workflow(), rule_info) == [
        ("Sharpener", "someone/their-nodes", "'Make it crisp' (id 2)"),
        ("Upscaler", "some-pack", "'Upscaler' (id 1)"),
        ("Vanished", "", "'Vanished' (id 3)"),
    ]


def test_file_names_are_filled_in_as_the_frontend_does() -> None:
    from datetime import datetime

    from cascade_train.graph.check.classes import object_info

    class SaveImage:
        RETURN_TYPES = ()
        OUTPUT_NODE = True

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"filename_prefix": ("STRING", {"default": "ComfyUI"})}}

    classes = {**NODE_CLASS_MAPPINGS, "SaveImage": SaveImage}
    graph = Graph(classes)
    graph.node(1, "RuleNumbers", [12, 0.5, "a/b"], title="Numbers")
    graph.node(2, "SaveImage", ["%date:yyyy-MM-dd%/run %Numbers.whole% %Numbers.text% %year% %Gone.x%"])
    prompt = to_prompt(graph.workflow(), object_info(classes), now=datetime(2031, 4, 5, 6, 7, 8))
    assert prompt["2"]["inputs"]["filename_prefix"] == "2031-04-05/run 12 a_b %year% %Gone.x%"
