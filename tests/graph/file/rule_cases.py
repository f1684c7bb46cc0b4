"""One small workflow for each rule of turning a saved workflow into a prompt, with the prompt it must give.

The function's name says the rule. `record_pairs.py` puts the same workflows through the official frontend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rule_graphs import (
    CHAIN,
    SUB,
    SUB2,
    Expected,
    boxed,
    boxed_image,
    chain,
    nested,
    nested_prompt,
    promoted_strength,
)
from rule_nodes import NODE_CLASS_MAPPINGS as CLASSES
from workflow_builder import Graph

Case = Callable[[], tuple[dict[str, Any], Expected]]


def rule_01_version_04_link_arrays() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    return graph.workflow(0.4), CHAIN


def rule_01_version_1_link_objects() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    return graph.workflow(1), CHAIN


def rule_01_subgraph_links_are_objects_in_both_versions() -> tuple[dict[str, Any], Expected]:
    graph, _ = boxed_image()
    return graph.workflow(1), {
        "1": ("RuleLoad", {"name": "first"}),
        "4:10": ("RuleImage", {"strength": 0.25, "method": "plain", "image": ["1", 0]}),
        "5": ("RuleShow", {"label": "a", "images": ["4:10", 0]}),
    }


def rule_02_links_are_followed_from_the_input_not_by_their_target_slot() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    graph.links[0][4] = 7
    return graph.workflow(), CHAIN


def rule_02_native_reroutes_are_cosmetic() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    data = graph.workflow()
    data["extra"] = {
        "reroutes": [{"id": 1, "pos": [50, 50], "linkIds": [1]}],
        "linkExtensions": [{"id": 1, "parentId": 1}],
    }
    return data, CHAIN


def rule_03_a_primitive_writes_into_the_widgets_it_is_wired_to() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    graph.node(6, "PrimitiveNode", [1.75, "fixed"])
    graph.nodes[6]["outputs"] = [
        {"name": "FLOAT", "type": "FLOAT", "links": [], "widget": {"name": "strength"}}
    ]
    graph.wire(6, 0, 2, "strength")
    expected = dict(CHAIN)
    expected["2"] = ("RuleImage", {"strength": 1.8, "method": "plain", "image": ["1", 0]})
    return graph.workflow(), expected


def rule_03_a_primitive_inside_a_subgraph_writes_there() -> tuple[dict[str, Any], Expected]:
    graph, inner = boxed_image()
    inner.node(11, "PrimitiveNode", [1.75, "fixed"])
    inner.nodes[11]["outputs"] = [
        {"name": "FLOAT", "type": "FLOAT", "links": [], "widget": {"name": "strength"}}
    ]
    inner.wire(11, 0, 10, "strength")
    return graph.workflow(), {
        "1": ("RuleLoad", {"name": "first"}),
        "4:10": ("RuleImage", {"strength": 1.8, "method": "plain", "image": ["1", 0]}),
        "5": ("RuleShow", {"label": "a", "images": ["4:10", 0]}),
    }


def rule_04_muted_and_bypassed_nodes_are_left_out_and_unwired_ones_stay() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    graph.node(7, "RuleSeeds", [1, "randomize", 2, "x"], mode=2)
    graph.node(8, "RuleSeeds", [1, "randomize", 2, "x"], mode=4)
    graph.node(9, "RuleText", ["lonely", ""])
    graph.node(10, "RuleText", ["on event", ""], mode=1)
    graph.node(11, "RuleText", ["on trigger", ""], mode=3)
    return graph.workflow(), CHAIN | {
        "9": ("RuleText", {"text": "lonely", "plain": ""}),
        "10": ("RuleText", {"text": "on event", "plain": ""}),
        "11": ("RuleText", {"text": "on trigger", "plain": ""}),
    }


def rule_04_ids_in_subgraphs_are_paths() -> tuple[dict[str, Any], Expected]:
    graph, inner = boxed_image()
    deeper = inner.subgraph(SUB2, "Deeper")
    deeper.port_out("IMAGE", "IMAGE")
    deeper.node(20, "RuleLoad", ["third"])
    deeper.wire(20, 0, "OUT", "IMAGE")
    inner.node(12, SUB2)
    inner.node(13, "RuleShow", ["inside"])
    inner.wire(12, 0, 13, "images")
    return graph.workflow(), {
        "1": ("RuleLoad", {"name": "first"}),
        "4:10": ("RuleImage", {"strength": 0.25, "method": "plain", "image": ["1", 0]}),
        "4:12:20": ("RuleLoad", {"name": "third"}),
        "4:13": ("RuleShow", {"label": "inside", "images": ["4:12:20", 0]}),
        "5": ("RuleShow", {"label": "a", "images": ["4:10", 0]}),
    }


def rule_05_a_link_overwrites_the_widget_of_its_name() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    graph.node(6, "RuleNumbers", [3, 0.125, "t"])
    graph.wire(6, 1, 2, "strength")
    expected = dict(CHAIN)
    expected["2"] = ("RuleImage", {"strength": ["6", 1], "method": "plain", "image": ["1", 0]})
    expected["6"] = ("RuleNumbers", {"whole": 3, "real": 0.125, "text": "t"})
    return graph.workflow(), expected


def rule_06_every_stored_widget_takes_a_slot_also_unsent_ones() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleSeed", [5, "increment", 30, "b", "fixed", "", 7.5])
    return graph.workflow(), {"1": ("RuleSeed", {"seed": 5, "steps": 30, "style": "b", "cfg": 7.5})}


def rule_06_named_values() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleNumbers", [3, 0.25, "t"], named={"whole": 3, "real": 0.25, "text": "t"})
    return graph.workflow(), {"1": ("RuleNumbers", {"whole": 3, "real": 0.25, "text": "t"})}


def rule_06_missing_values_are_defaults() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleNumbers", [3])
    graph.node(2, "RuleNumbers")
    return graph.workflow(), {
        "1": ("RuleNumbers", {"whole": 3, "real": 0.5, "text": ""}),
        "2": ("RuleNumbers", {"whole": 1, "real": 0.5, "text": ""}),
    }


def rule_07_the_upload_button_comes_last() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleUpload", ["dog.png", 2.5, "red", "image"])
    return graph.workflow(), {"1": ("RuleUpload", {"image": "dog.png", "scale": 2.5, "tint": "red"})}


def rule_08_forced_inputs_have_no_widget() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleForced", ["text", 9])
    graph.node(2, "RuleNumbers", [64, 0.5, ""])
    graph.wire(2, 0, 1, "width")
    return graph.workflow(), {
        "1": ("RuleForced", {"before": "text", "after": 9, "width": ["2", 0]}),
        "2": ("RuleNumbers", {"whole": 64, "real": 0.5, "text": ""}),
    }


def rule_08_old_files_hold_dummies_for_forced_inputs() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleForced", ["text", 8, 9])
    return graph.workflow(), {"1": ("RuleForced", {"before": "text", "after": 9})}


def rule_08_socketless_widgets_are_sent_and_stored() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleSocketless", [128, 3])
    return graph.workflow(), {"1": ("RuleSocketless", {"size": 128, "count": 3})}


def rule_09_seeds_take_one_more_slot_and_combos_two() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleSeed", [1, "fixed", 2, "c", "fixed", "/x/", 3.5])
    graph.node(2, "RuleSeeds", [4, "randomize", 5, "z"])
    return graph.workflow(), {
        "1": ("RuleSeed", {"seed": 1, "steps": 2, "style": "c", "cfg": 3.5}),
        "2": ("RuleSeeds", {"noise_seed": 4, "seed": 5, "last": "z"}),
    }


def bypassing(
    kind: str, wires: list[tuple[int, str]], out: int, target: str
) -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleLoad", ["first"])
    graph.node(2, kind, [], mode=4)
    graph.node(3, "RuleShow", ["a"])
    for slot, name in wires:
        graph.wire(1, slot, 2, name)
    graph.wire(2, out, 3, target)
    return graph.workflow(), {"1": ("RuleLoad", {"name": "first"}), "3": ("RuleShow", {"label": "a"})}


def with_input(
    case: tuple[dict[str, Any], Expected], name: str, value: Any
) -> tuple[dict[str, Any], Expected]:
    case[1]["3"][1][name] = value
    return case


def rule_10a_bypass_into_any_type_takes_the_same_slot() -> tuple[dict[str, Any], Expected]:
    case = bypassing("RuleTwo", [(1, "mask"), (0, "one"), (2, "latent")], 1, "anything")
    return with_input(case, "anything", ["1", 0])


def rule_10b_bypass_prefers_the_same_slot_when_it_fits() -> tuple[dict[str, Any], Expected]:
    return with_input(
        bypassing("RuleTwo", [(1, "mask"), (0, "one"), (0, "two")], 1, "images"), "images", ["1", 0]
    )


def rule_10c_bypass_takes_the_first_input_of_the_type() -> tuple[dict[str, Any], Expected]:
    return with_input(
        bypassing("RuleTwo", [(1, "mask"), (0, "one"), (2, "latent")], 0, "latent"), "latent", ["1", 2]
    )


def rule_10d_bypass_takes_the_first_input_that_fits() -> tuple[dict[str, Any], Expected]:
    return with_input(bypassing("RuleWide", [(0, "either"), (2, "latent")], 0, "images"), "images", ["1", 0])


def rule_10_bypass_with_no_input_that_fits_gives_nothing() -> tuple[dict[str, Any], Expected]:
    return bypassing("RuleUpload", [], 0, "images")


def rule_10_two_bypassed_nodes_in_a_row() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleLoad", ["first"])
    graph.node(2, "RuleImage", [1, "plain"], mode=4)
    graph.node(4, "RuleImage", [1, "plain"], mode=4)
    graph.node(3, "RuleShow", ["a"])
    graph.wire(1, 0, 2, "image")
    graph.wire(2, 0, 4, "image")
    graph.wire(4, 0, 3, "images")
    return graph.workflow(), {
        "1": ("RuleLoad", {"name": "first"}),
        "3": ("RuleShow", {"label": "a", "images": ["1", 0]}),
    }


def rule_11_a_muted_source_drops_the_input() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    graph.nodes[2]["mode"] = 2
    return graph.workflow(), {"1": CHAIN["1"], "3": ("RuleShow", {"label": "a"})}


def rule_11_a_bypassed_subgraph_is_not_expanded_and_passes_by_type() -> tuple[dict[str, Any], Expected]:
    graph, _ = boxed_image()
    graph.nodes[4]["mode"] = 4
    return graph.workflow(), {
        "1": ("RuleLoad", {"name": "first"}),
        "5": ("RuleShow", {"label": "a", "images": ["1", 0]}),
    }


def rule_11_a_muted_subgraph_is_not_expanded() -> tuple[dict[str, Any], Expected]:
    graph, _ = boxed_image()
    graph.nodes[4]["mode"] = 2
    return graph.workflow(), {"1": ("RuleLoad", {"name": "first"}), "5": ("RuleShow", {"label": "a"})}


def rule_12_reroutes_pass_their_input_and_notes_vanish() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    chain(graph)
    graph.node(6, "Reroute")
    graph.node(7, "Reroute")
    graph.node(8, "Note", ["do not forget"])
    graph.node(9, "MarkdownNote", ["# title"])
    graph.wire(1, 0, 6, "")
    graph.wire(6, 0, 7, "")
    graph.wire(7, 0, 2, "image", type_="IMAGE")
    graph.nodes[1]["outputs"][0]["links"] = [3]
    graph.links.pop(0)
    return graph.workflow(), CHAIN


def rule_12_set_and_get_pair_by_name() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleLoad", ["second"])
    graph.node(2, "RuleImage", [0.5, "plain"])
    graph.node(3, "RuleShow", ["a"])
    graph.node(6, "SetNode", ["picture"])
    graph.node(7, "GetNode", ["picture"])
    graph.wire(1, 0, 6, "*")
    graph.wire(7, 0, 2, "image", type_="IMAGE")
    graph.wire(2, 0, 3, "images")
    return graph.workflow(), CHAIN


def rule_13_instance_inputs_bind_by_name_not_by_index() -> tuple[dict[str, Any], Expected]:
    graph = promoted_strength([1.5, "fancy"])
    graph.nodes[4]["inputs"].reverse()
    return graph.workflow(), boxed(1.5, "fancy")


def rule_13_an_instance_value_beats_the_inner_widget() -> tuple[dict[str, Any], Expected]:
    return promoted_strength([1.5, "fancy"]).workflow(), boxed(1.5, "fancy")


def rule_13_a_wire_beats_the_instance_value() -> tuple[dict[str, Any], Expected]:
    graph = promoted_strength([1.5, "fancy"])
    graph.node(6, "RuleNumbers", [1, 0.75, ""])
    graph.wire(6, 1, 4, "strength")
    return graph.workflow(), boxed(["6", 1], "fancy") | {
        "6": ("RuleNumbers", {"whole": 1, "real": 0.75, "text": ""})
    }


def rule_13_outputs_take_the_first_link() -> tuple[dict[str, Any], Expected]:
    graph, inner = boxed_image()
    inner.node(14, "RuleLoad", ["third"])
    number = len(inner.links) + 1
    inner.links.append([number, 14, 0, -20, 0, "IMAGE"])
    inner.outputs[0]["linkIds"].append(number)
    inner.nodes[14]["outputs"][0]["links"].append(number)
    return graph.workflow(), {
        "1": ("RuleLoad", {"name": "first"}),
        "4:10": ("RuleImage", {"strength": 0.25, "method": "plain", "image": ["1", 0]}),
        "4:14": ("RuleLoad", {"name": "third"}),
        "5": ("RuleShow", {"label": "a", "images": ["4:10", 0]}),
    }


def rule_13_nested_the_outermost_value_wins() -> tuple[dict[str, Any], Expected]:
    return nested([1.25]).workflow(), nested_prompt(1.25)


def rule_13_nested_with_no_outer_value_the_inner_instance_has_it() -> tuple[dict[str, Any], Expected]:
    return nested(None).workflow(), nested_prompt(0.75)


def rule_13_two_instances_keep_their_own_values() -> tuple[dict[str, Any], Expected]:
    graph = promoted_strength([1.5, "fancy"])
    graph.node(6, SUB, [0.125, "plain"])
    graph.wire(1, 0, 6, "image")
    graph.node(7, "RuleShow", ["b"])
    graph.wire(6, 0, 7, "images")
    return graph.workflow(), boxed(1.5, "fancy") | {
        "6:10": ("RuleImage", {"strength": 0.125, "method": "plain", "image": ["1", 0]}),
        "7": ("RuleShow", {"label": "b", "images": ["6:10", 0]}),
    }


def rule_14_promoted_values_in_the_order_of_the_definition() -> tuple[dict[str, Any], Expected]:
    graph = promoted_strength([1.5, "fancy"], named={"strength": 1.5, "method": "fancy"})
    return graph.workflow(), boxed(1.5, "fancy")


def rule_14_proxy_widgets_of_older_files_go_by_position() -> tuple[dict[str, Any], Expected]:
    graph = promoted_strength(["fancy", 1.5], proxies=[["-1", "method"], ["-1", "strength"]])
    return graph.workflow(), boxed(1.5, "fancy")


def rule_14_proxies_without_values_leave_the_inner_ones() -> tuple[dict[str, Any], Expected]:
    graph = promoted_strength([], proxies=[["10", "strength"], ["10", "method"]])
    return graph.workflow(), boxed(0.25, "plain")


def rule_15_comments_are_stripped_from_dynamic_prompts_alone() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleText", ["a cat /* not\na dog */ sits // here\n\\{on\\} a mat", "keep // this"])
    return graph.workflow(), {
        "1": ("RuleText", {"text": "a cat  sits \n{on} a mat", "plain": "keep // this"})
    }


def rule_v3_dynamic_choices_bring_their_own_inputs() -> tuple[dict[str, Any], Expected]:
    graph = Graph(CLASSES)
    graph.node(1, "RuleLoad", ["first"])
    graph.node(2, "RuleDynamic", ["to size", 640, 480, "yes", "z"])
    for name, type_ in (("resize.width", "INT"), ("resize.height", "INT"), ("resize.crop", "COMBO")):
        graph.nodes[2]["inputs"].append({"name": name, "type": type_, "link": None, "widget": {"name": name}})
    graph.wire(1, 0, 2, "images.image0")
    graph.wire(1, 0, 2, "images.image1")
    return graph.workflow(), {
        "1": ("RuleLoad", {"name": "first"}),
        "2": (
            "RuleDynamic",
            {
                "resize": "to size",
                "resize.width": 640,
                "resize.height": 480,
                "resize.crop": "yes",
                "last": "z",
                "images.image0": ["1", 0],
                "images.image1": ["1", 0],
            },
        ),
    }


CASES: dict[str, Case] = {
    name: case for name, case in list(globals().items()) if name.startswith("rule_") and callable(case)
}
