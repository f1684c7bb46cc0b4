"""Where an input's value comes from, through subgraphs, reroutes, Set/Get pairs and bypassed nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.document import (
    BYPASSED,
    INPUT_NODE,
    MUTED,
    Document,
    Graph,
    Link,
    Node,
    Port,
    Slot,
)
from cascade_train.graph.schema import Schema
from cascade_train.graph.widgets import MATCH_TYPE, MISSING, sent_values, sockets

MAX_NODES = 100_000
MAX_DEPTH = 64

REROUTES = frozenset({"Reroute", "Reroute (rgthree)"})
GETTER, SETTER, PRIMITIVE = "GetNode", "SetNode", "PrimitiveNode"
VIRTUAL = REROUTES | {
    GETTER, SETTER, PRIMITIVE, "Note", "MarkdownNote", "Label (rgthree)", "Bookmark (rgthree)",
    "Fast Muter (rgthree)", "Fast Bypasser (rgthree)", "Fast Groups Muter (rgthree)",
    "Fast Groups Bypasser (rgthree)", "Fast Actions Button (rgthree)", "Mute / Bypass Relay (rgthree)",
    "Mute / Bypass Repeater (rgthree)", "Random Unmuter (rgthree)", "Node Collector (rgthree)",
}
"""Nodes that exist in the frontend only."""


@dataclass(frozen=True)
class Source:
    """The output that a wire comes from at last, by the emitting node's full id."""

    id: str
    slot: int


@dataclass(frozen=True)
class Value:
    """An input fed by the value of a subgraph's promoted widget."""

    value: Any


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


class Wiring:
    """A document with every subgraph instance expanded, against the schemas of the classes in it."""

    def __init__(self, document: Document, object_info: Mapping[str, Schema]) -> None:
        self.document = document
        self.object_info = object_info
        self.scopes: dict[tuple[str, ...], Scope] = {}
        self._expand(Scope(document.root))
        self._inputs: dict[tuple[tuple[str, ...], str], tuple[Slot, ...]] = {}
        self._fed: dict[str, dict[str, tuple[Node, Slot]]] = {}

    def _expand(self, root: Scope) -> None:
        pending, count = [root], 0
        while pending:
            scope = pending.pop()
            self.scopes[scope.path] = scope
            count += len(scope.graph.nodes)
            if count > MAX_NODES:
                raise CascadeError(f"with its subgraphs laid out the workflow has more than {MAX_NODES} nodes",
                                   fix="A subgraph that holds several copies of another multiplies; use fewer")
            for node in scope.graph.nodes.values():
                definition = self.document.subgraphs.get(node.type)
                if definition is None or not node.active:
                    continue
                inside = Scope(definition, (*scope.path, node.id), node, scope)
                if self._contains_itself(inside):
                    raise CascadeError(f"the subgraph '{definition.name}' contains itself",
                                       where=f"node {node.label}", fix="Take the inner copy out of it")
                if len(inside.path) > MAX_DEPTH:
                    raise CascadeError(f"subgraphs lie more than {MAX_DEPTH} deep in each other",
                                       where=f"node {node.label}")
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

    # ------------------------------------------------------------------ inputs and values of one node

    def inputs(self, scope: Scope, node: Node) -> tuple[Slot, ...]:
        """The node's inputs in the frontend's order: as its class or subgraph declares them, then the rest."""
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
        """The node's widget values by input name; one dict for each node, so that a primitive can write it."""
        if node.id not in scope.values:
            schema = self.object_info.get(node.type)
            if schema is not None:
                scope.values[node.id] = sent_values(schema, node)
            else:
                named = node.values if isinstance(node.values, Mapping) else node.named or {}
                scope.values[node.id] = dict(named)
        return scope.values[node.id]

    # ------------------------------------------------------------------ promoted widgets

    def fed(self, graph: Graph) -> dict[str, tuple[Node, Slot]]:
        """Which node's input each wire of ``graph`` goes into, by the wire's id."""
        if graph.id not in self._fed:
            self._fed[graph.id] = {
                slot.link: (node, slot)
                for node in graph.nodes.values() for slot in node.inputs if slot.link is not None
            }
        return self._fed[graph.id]

    def promoted(self, graph: Graph, port: Port, depth: int = 0) -> tuple[Node, str] | None:
        """The inner node and widget that a subgraph's input stands for; None when it is a plain socket."""
        for link in port.links:
            node, slot = self.fed(graph).get(link, (None, None))
            if node is None or slot is None:
                continue
            inner = self.document.subgraphs.get(node.type)
            if inner is not None:
                deeper = next((p for p in inner.inputs if p.name == slot.name), None)
                if deeper is not None and depth < MAX_DEPTH and self.promoted(inner, deeper, depth + 1):
                    return node, slot.name
            elif node.type in self.object_info:
                name = slot.widget or slot.name
                if name in sent_values(self.object_info[node.type], node):
                    return node, name
            elif slot.widget:
                return node, slot.widget
        return None

    def instance_values(self, scope: Scope) -> dict[str, Any]:
        """Values that a subgraph instance keeps for its promoted widgets, by the subgraph's input name."""
        node = scope.instance
        if node is None:
            return {}
        key = ""  # no node has an empty id
        if key not in scope.values:
            scope.values[key] = dict(self._saved_instance_values(scope, node))
        return scope.values[key]

    def _saved_instance_values(self, scope: Scope, node: Node) -> Iterator[tuple[str, Any]]:
        ports = [(port, found) for port in scope.graph.inputs if (found := self.promoted(scope.graph, port))]
        if isinstance(node.values, Mapping):
            yield from ((port.name, node.values[port.name]) for port, _ in ports if port.name in node.values)
            return
        proxies = node.properties.get("proxyWidgets")
        if isinstance(proxies, list) and proxies:
            for proxy, value in zip(proxies, node.values):
                name = self._proxied(scope, ports, proxy, value)
                if name is not None and value is not None:
                    yield name, value
        elif node.named is not None and len(node.named) == len(node.values):
            yield from ((port.name, node.named[port.name]) for port, _ in ports if port.name in node.named)
        else:
            yield from ((port.name, value) for (port, _), value in zip(ports, node.values))

    def _proxied(self, scope: Scope, ports: list[tuple[Port, tuple[Node, str]]], proxy: Any, value: Any) -> str | None:
        """The input that an old file's ``[inner node id, widget]`` stands for; sets the inner widget if none."""
        if not isinstance(proxy, list) or len(proxy) < 2:
            return None
        inner_id, name = str(proxy[0]), str(proxy[1])
        for port, (node, widget) in ports:
            if (inner_id == "-1" and port.name == name) or (node.id == inner_id and widget == name):
                return port.name
        inner = scope.graph.nodes.get(inner_id)
        if inner is not None and value is not None and inner.type in self.object_info:
            values = self.values(scope, inner)
            if name in values:
                values[name] = value
        return None

    def promoted_value(self, scope: Scope, index: int) -> Any:
        """What the unlinked input ``index`` of the subgraph in ``scope`` holds; MISSING for a plain socket."""
        while True:
            port = scope.graph.inputs[index]
            kept = self.instance_values(scope)
            if port.name in kept:
                return kept[port.name]
            found = self.promoted(scope.graph, port)
            if found is None:
                return MISSING
            node, name = found
            inside = self.scopes.get((*scope.path, node.id))
            if inside is None:
                return MISSING if self.is_instance(node) else self.values(scope, node).get(name, MISSING)
            scope = inside
            index = next(i for i, inner in enumerate(scope.graph.inputs) if inner.name == name)

    # ------------------------------------------------------------------ following a wire

    def source(self, scope: Scope, node: Node, index: int) -> Source | Value | None:
        """What feeds input ``index`` of ``node``; None when nothing does.

        A muted source is returned as it is; it is not in the prompt.

        Raises:
            CascadeError: a wire leads nowhere, or in a circle.
        """
        visited: set[tuple[tuple[str, ...], str, int]] = set()
        wanted: str | None = None
        while True:
            here = (scope.path, node.id, index)
            if here in visited:
                raise CascadeError("the wires run in a circle", where=f"node {node.label} of the {scope.where()}",
                                   fix="Disconnect one of the reroutes or bypassed nodes in the circle")
            visited.add(here)
            slots = self.inputs(scope, node)
            if index >= len(slots) or slots[index].link is None:
                return None
            slot = slots[index]
            link = self._link(scope, node, slot)
            if link.origin == INPUT_NODE:
                entered = self._leave(scope, node, slot, link)
                if not isinstance(entered, tuple):
                    return entered
                scope, node, index = entered
                wanted = None
                continue
            wanted = wanted or slot.type
            found = self._output(scope, self._origin(scope, node, slot, link), link.slot, wanted)
            if not isinstance(found, tuple):
                return found
            scope, node, index, wanted = found

    def _link(self, scope: Scope, node: Node, slot: Slot) -> Link:
        link = scope.graph.links.get(slot.link or "")
        if link is None:
            raise CascadeError(f"input '{slot.name}' names the link {slot.link}, which is not in the file",
                               where=f"node {node.label} of the {scope.where()}", fix="Connect the input again")
        return link

    def _origin(self, scope: Scope, node: Node, slot: Slot, link: Link) -> Node:
        origin = scope.graph.nodes.get(link.origin)
        if origin is None:
            raise CascadeError(f"input '{slot.name}' is wired to node {link.origin}, which is not in the file",
                               where=f"node {node.label} of the {scope.where()}", fix="Connect the input again")
        return origin

    def _leave(
        self, scope: Scope, node: Node, slot: Slot, link: Link
    ) -> tuple[Scope, Node, int] | Value | None:
        """From a subgraph's input outwards: the instance's input, or the value of the promoted widget."""
        if scope.outer is None or scope.instance is None or link.slot >= len(scope.graph.inputs):
            raise CascadeError(f"input '{slot.name}' is wired to a subgraph input that does not exist",
                               where=f"node {node.label} of the {scope.where()}", fix="Connect the input again")
        outside = self.inputs(scope.outer, scope.instance)[link.slot]
        if outside.link is not None:
            return scope.outer, scope.instance, link.slot
        value = self.promoted_value(scope, link.slot)
        return None if value is MISSING else Value(value)

    def _output(
        self, scope: Scope, node: Node, slot: int, wanted: str
    ) -> tuple[Scope, Node, int, str | None] | Source | Value | None:
        """What an output stands for: the node itself, or the input to go on from with the type wanted there."""
        while True:
            if node.mode == MUTED:
                return Source(scope.full_id(node), slot)
            if node.mode == BYPASSED:
                index = self._bypass(scope, node, slot, wanted)
                return None if index is None else (scope, node, index, None)
            if not self.is_instance(node):
                break
            scope = self.scopes[(*scope.path, node.id)]
            ports = scope.graph.outputs
            links = [scope.graph.links[k] for k in (ports[slot].links if slot < len(ports) else ())
                     if k in scope.graph.links]
            if not links:
                return None
            if links[0].origin == INPUT_NODE:
                through = self._leave(scope, node, Slot(ports[slot].name, ports[slot].type), links[0])
                return (through[0], through[1], through[2], wanted) if isinstance(through, tuple) else through
            node, slot = self._origin(scope, node, Slot(ports[slot].name, "*"), links[0]), links[0].slot
        if node.type not in VIRTUAL:
            return Source(scope.full_id(node), slot)
        if node.type == GETTER:
            setter = self._setter(scope, node)
            return None if setter is None else (setter[0], setter[1], 0, wanted)
        if node.type in REROUTES or node.type == SETTER:
            return scope, node, 0, wanted
        return None

    def _setter(self, scope: Scope, getter: Node) -> tuple[Scope, Node] | None:
        """The SetNode that has the GetNode's name, in the same graph or the nearest one around it."""
        name = _first_value(getter)
        place: Scope | None = scope
        while place is not None:
            for node in place.graph.nodes.values():
                if node.type == SETTER and _first_value(node) == name:
                    return place, node
            place = place.outer
        return None

    def _bypass(self, scope: Scope, node: Node, slot: int, wanted: str) -> int | None:
        """Which input a bypassed node passes on: by type only."""
        slots = self.inputs(scope, node)
        made = self.output_type(node, slot)
        if wanted == "*":
            return slot if slot < len(slots) else 0 if slots else None
        if slot < len(slots) and fits(slots[slot].type, made) and fits(slots[slot].type, wanted):
            return slot
        for i, candidate in enumerate(slots):
            if candidate.type == wanted:
                return i
        for i, candidate in enumerate(slots):
            if fits(candidate.type, made) and fits(candidate.type, wanted):
                return i
        return None


def bound(port: Port, instance: Node) -> Slot | None:
    """The instance's input for a subgraph's input: by name and type, else by name."""
    named = [slot for slot in instance.inputs if slot.name == port.name]
    return next((slot for slot in named if slot.type == port.type), named[0] if named else None)


def fits(one: str, other: str) -> bool:
    """Whether two slot types may be wired: comma-separated sets that overlap, case ignored; ``*`` fits all."""
    if one == other or "*" in (one, other):
        return True
    return not {a.strip().lower() for a in one.split(",")}.isdisjoint(b.strip().lower() for b in other.split(","))


def _first_value(node: Node) -> Any:
    if isinstance(node.values, Mapping):
        return next(iter(node.values.values()), None)
    return node.values[0] if node.values else None
