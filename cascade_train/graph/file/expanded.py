"""A document with every subgraph instance expanded in place, against the schemas of its classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.check.schema import Schema
from cascade_train.graph.file.document import Document, Graph, Node, Port, Slot
from cascade_train.graph.file.widgets import MATCH_TYPE, sent_values, sockets

MAX_NODES = 100_000
MAX_DEPTH = 64

REROUTES = frozenset({"Reroute", "Reroute (rgthree)"})
GETTER, SETTER, PRIMITIVE = "GetNode", "SetNode", "PrimitiveNode"
VIRTUAL = REROUTES | {
    GETTER,
    SETTER,
    PRIMITIVE,
    "Note",
    "MarkdownNote",
    "Label (rgthree)",
    "Bookmark (rgthree)",
    "Fast Muter (rgthree)",
    "Fast Bypasser (rgthree)",
    "Fast Groups Muter (rgthree)",
    "Fast Groups Bypasser (rgthree)",
    "Fast Actions Button (rgthree)",
    "Mute / Bypass Relay (rgthree)",
    "Mute / Bypass Repeater (rgthree)",
    "Random Unmuter (rgthree)",
    "Node Collector (rgthree)",
}
"""Nodes that exist in the frontend only."""


@dataclass(frozen=True, eq=False)
class Scope:
    """One graph in place: the root, or the inside of one subgraph instance."""

    graph: Graph
    path: tuple[str, ...] = ()
    instance: Node | None = None
    outer: Scope | None = None
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Widget values by node id, once read; primitives write into them."""

    def full_id(self, node: Node) -> str:
        return ":".join((*self.path, node.id))

    def where(self) -> str:
        return f"subgraph '{self.graph.name}' at {':'.join(self.path)}" if self.path else "workflow"


class Expanded:
    """A document with every subgraph instance expanded, against the schemas of the classes in it."""

    def __init__(self, document: Document, object_info: Mapping[str, Schema]) -> None:
        self.document = document
        self.object_info = object_info
        self.scopes: dict[tuple[str, ...], Scope] = {}
        self._expand(Scope(document.root))
        self._inputs: dict[tuple[tuple[str, ...], str], tuple[Slot, ...]] = {}
        self._fed: dict[str, dict[str, tuple[Node, Slot]]] = {}
        self._leaving: dict[str, dict[str, list[str]]] = {}
        self._called: dict[str, Node] | None = None

    def _expand(self, root: Scope) -> None:
        pending, count = [root], 0
        while pending:
            scope = pending.pop()
            self.scopes[scope.path] = scope
            count += len(scope.graph.nodes)
            if count > MAX_NODES:
                raise CascadeError(
                    f"with its subgraphs laid out the workflow has more than {MAX_NODES} nodes",
                    fix="A subgraph that holds several copies of another multiplies; use fewer",
                )
            for node in scope.graph.nodes.values():
                definition = self.document.subgraphs.get(node.type)
                if definition is None or not node.active:
                    continue
                inside = Scope(definition, (*scope.path, node.id), node, scope)
                if self._contains_itself(inside):
                    raise CascadeError(
                        f"the subgraph '{definition.name}' contains itself",
                        where=f"node {node.label}",
                        fix="Take the inner copy out of it",
                    )
                if len(inside.path) > MAX_DEPTH:
                    raise CascadeError(
                        f"subgraphs lie more than {MAX_DEPTH} deep in each other", where=f"node {node.label}"
                    )
                pending.append(inside)

    @staticmethod
    def _contains_itself(scope: Scope) -> bool:
        outer = scope.outer
        while outer is not None:
            if outer.graph.id == scope.graph.id:
                return True
            outer = outer.outer
        return False

    def nodes(self) -> Iterator[tuple[Scope, Node]]:
        """Every node of every graph, root first, with the place it is in; subgraph instances included."""
        for scope in self.scopes.values():
            for node in scope.graph.nodes.values():
                yield scope, node

    def is_instance(self, node: Node) -> bool:
        """Whether the node stands for a subgraph."""
        return node.type in self.document.subgraphs

    def is_emitted(self, node: Node) -> bool:
        """Whether the node itself goes into the prompt."""
        return node.active and not self.is_instance(node) and node.type not in VIRTUAL

    def inputs(self, scope: Scope, node: Node) -> tuple[Slot, ...]:
        """The node's inputs in the frontend's order: as its class or subgraph declares them, then others."""
        key = (scope.path, node.id)
        if key not in self._inputs:
            self._inputs[key] = tuple(self._list_inputs(node))
        return self._inputs[key]

    def _list_inputs(self, node: Node) -> Iterator[Slot]:
        if self.is_instance(node):
            for port in self.document.subgraphs[node.type].inputs:
                yield bound(port, node) or Slot(port.name, port.type)
            return
        schema = self.object_info.get(node.type)
        if schema is None or node.type in VIRTUAL:
            yield from node.inputs
            return
        saved = {slot.name: slot for slot in node.inputs}
        declared = set()
        for entry in sockets(schema, node):
            declared.add(entry.name)
            slot = saved.get(entry.name)
            kind = slot.type if slot is not None and entry.type == MATCH_TYPE else entry.type
            yield Slot(entry.name, kind, slot.link if slot else None, slot.widget if slot else None)
        yield from (slot for slot in node.inputs if slot.name not in declared)

    def output_type(self, node: Node, slot: int) -> str:
        """The type of one of a node's outputs."""
        if self.is_instance(node):
            ports = self.document.subgraphs[node.type].outputs
            return ports[slot].type if slot < len(ports) else "*"
        declared = (self.object_info.get(node.type) or {}).get("output") or ()
        kind = declared[slot] if slot < len(declared) else None
        if kind is None or kind == MATCH_TYPE:
            return node.outputs[slot].type if slot < len(node.outputs) else "*"
        return "COMBO" if isinstance(kind, (list, tuple)) else str(kind)

    def values(self, scope: Scope, node: Node) -> dict[str, Any]:
        """The node's widget values by input name; one dict a node, so that a primitive can write it."""
        if node.id not in scope.values:
            schema = self.object_info.get(node.type)
            if schema is not None:
                scope.values[node.id] = sent_values(schema, node)
            else:
                named = node.values if isinstance(node.values, Mapping) else node.named or {}
                scope.values[node.id] = dict(named)
        return scope.values[node.id]

    def fed(self, graph: Graph) -> dict[str, tuple[Node, Slot]]:
        """Which node's input each wire of ``graph`` goes into, by the wire's id."""
        if graph.id not in self._fed:
            self._fed[graph.id] = {
                slot.link: (node, slot)
                for node in graph.nodes.values()
                for slot in node.inputs
                if slot.link is not None
            }
        return self._fed[graph.id]

    def leaving(self, graph: Graph, node: Node) -> list[str]:
        """The ids of the wires of ``graph`` that come from ``node``."""
        if graph.id not in self._leaving:
            wires: dict[str, list[str]] = {}
            for key, link in graph.links.items():
                wires.setdefault(link.origin, []).append(key)
            self._leaving[graph.id] = wires
        return self._leaving[graph.id].get(node.id, [])

    def called(self, name: str) -> Node | None:
        """The first node of the root graph with this search name, else with this title."""
        if self._called is None:
            nodes = list(self.scopes[()].graph.nodes.values())
            self._called = {}
            for names in (
                [str(node.properties.get("Node name for S&R")) for node in nodes],
                [node.title or node.type for node in nodes],
            ):
                for each, node in zip(names, nodes):
                    self._called.setdefault(each, node)
        return self._called.get(name)


def bound(port: Port, instance: Node) -> Slot | None:
    """The instance's input for a subgraph's input: by name and type, else by name."""
    named = [slot for slot in instance.inputs if slot.name == port.name]
    return next((slot for slot in named if slot.type == port.type), named[0] if named else None)
