"""Graphs that several rules share, and the prompts they give."""

from __future__ import annotations

from typing import Any

from rule_nodes import NODE_CLASS_MAPPINGS as CLASSES
from workflow_builder import Graph

Expected = dict[str, tuple[str, dict[str, Any]]]


SUB = "aaaaaaaa-0000-4000-8000-000000000001"


SUB2 = "bbbbbbbb-0000-4000-8000-000000000002"


def chain(graph: Graph) -> None:
    """Load → image → show, ids 1, 2, 3."""
    graph.node(1, "RuleLoad", ["second"])
    graph.node(2, "RuleImage", [0.5, "plain"])
    graph.node(3, "RuleShow", ["a"])
    graph.wire(1, 0, 2, "image")
    graph.wire(2, 0, 3, "images")


CHAIN: Expected = {
    "1": ("RuleLoad", {"name": "second"}),
    "2": ("RuleImage", {"strength": 0.5, "method": "plain", "image": ["1", 0]}),
    "3": ("RuleShow", {"label": "a", "images": ["2", 0]}),
}


def boxed_image() -> tuple[Graph, Graph]:
    """Load (1) → subgraph instance (4) with an image node (10) → show (5)."""
    graph = Graph(CLASSES)
    inner = graph.subgraph(SUB, "Box")
    inner.port_in("image", "IMAGE")
    inner.port_out("IMAGE", "IMAGE")
    inner.node(10, "RuleImage", [0.25, "plain"])
    inner.wire("IN", 0, 10, "image")
    inner.wire(10, 0, "OUT", "IMAGE")
    graph.node(1, "RuleLoad", ["first"])
    graph.node(4, SUB)
    graph.node(5, "RuleShow", ["a"])
    graph.wire(1, 0, 4, "image")
    graph.wire(4, 0, 5, "images")
    return graph, inner


def promoted_strength(
    values: list[Any] | None, proxies: list[Any] | None = None, named: dict[str, Any] | None = None
) -> Graph:
    """The box with ``strength`` and ``method`` of its image node as inputs of the subgraph."""
    graph = Graph(CLASSES)
    inner = graph.subgraph(SUB, "Box")
    inner.port_in("image", "IMAGE")
    inner.port_in("strength", "FLOAT", widget=True)
    inner.port_in("method", "COMBO", widget=True)
    inner.port_out("IMAGE", "IMAGE")
    inner.node(10, "RuleImage", [0.25, "plain"])
    inner.wire("IN", 0, 10, "image")
    inner.wire("IN", 1, 10, "strength")
    inner.wire("IN", 2, 10, "method")
    inner.wire(10, 0, "OUT", "IMAGE")
    graph.node(1, "RuleLoad", ["first"])
    properties = {} if proxies is None else {"proxyWidgets": proxies}
    graph.node(4, SUB, values, properties=properties, named=named)
    graph.node(5, "RuleShow", ["a"])
    graph.wire(1, 0, 4, "image")
    graph.wire(4, 0, 5, "images")
    return graph


def boxed(strength: Any, method: Any) -> Expected:
    return {
        "1": ("RuleLoad", {"name": "first"}),
        "4:10": ("RuleImage", {"strength": strength, "method": method, "image": ["1", 0]}),
        "5": ("RuleShow", {"label": "a", "images": ["4:10", 0]}),
    }


def nested(outer_values: list[Any] | None) -> Graph:
    graph = Graph(CLASSES)
    outer = graph.subgraph(SUB, "Outer")
    inner = outer.subgraph(SUB2, "Inner")
    inner.port_in("image", "IMAGE")
    inner.port_in("strength", "FLOAT", widget=True)
    inner.port_out("IMAGE", "IMAGE")
    inner.node(20, "RuleImage", [0.25, "plain"])
    inner.wire("IN", 0, 20, "image")
    inner.wire("IN", 1, 20, "strength")
    inner.wire(20, 0, "OUT", "IMAGE")
    outer.port_in("image", "IMAGE")
    outer.port_in("strength", "FLOAT", widget=True)
    outer.port_out("IMAGE", "IMAGE")
    outer.node(10, SUB2, [0.75])
    outer.wire("IN", 0, 10, "image")
    outer.wire("IN", 1, 10, "strength")
    outer.wire(10, 0, "OUT", "IMAGE")
    graph.node(1, "RuleLoad", ["first"])
    graph.node(4, SUB, outer_values)
    graph.node(5, "RuleShow", ["a"])
    graph.wire(1, 0, 4, "image")
    graph.wire(4, 0, 5, "images")
    return graph


def nested_prompt(strength: float) -> Expected:
    return {
        "1": ("RuleLoad", {"name": "first"}),
        "4:10:20": ("RuleImage", {"strength": strength, "method": "plain", "image": ["1", 0]}),
        "5": ("RuleShow", {"label": "a", "images": ["4:10:20", 0]}),
    }
