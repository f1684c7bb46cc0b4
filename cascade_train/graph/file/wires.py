"""Where an input's value comes from, through subgraphs, reroutes, Set/Get pairs and bypassed nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.check.schema import Schema
from cascade_train.graph.file.document import BYPASSED, INPUT_NODE, MUTED, Document, Node, Slot, Wire
from cascade_train.graph.file.expanded import GETTER, REROUTES, SETTER, VIRTUAL, Expanded, Scope
from cascade_train.graph.file.promoted import Promoted
from cascade_train.graph.file.widgets import MISSING


@dataclass(frozen=True)
class OutputSlot:
    """The output that a wire comes from at last, by the emitting node's full id."""

    id: str
    slot: int


@dataclass(frozen=True)
class Value:
    """An input fed by the value of a subgraph's promoted widget."""

    value: Any


class Wiring(Expanded):
    """An expanded document whose wires can be followed."""

    def __init__(self, document: Document, object_info: Mapping[str, Schema]) -> None:
        super().__init__(document, object_info)
        self.promoted = Promoted(self)

    def source(self, scope: Scope, node: Node, index: int) -> OutputSlot | Value | None:
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
                raise CascadeError(
                    "the wires run in a circle",
                    where=f"node {node.label} of the {scope.where()}",
                    fix="Disconnect one of the reroutes or bypassed nodes in the circle",
                )
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

    def _link(self, scope: Scope, node: Node, slot: Slot) -> Wire:
        link = scope.graph.links.get(slot.link or "")
        if link is None:
            raise CascadeError(
                f"input '{slot.name}' names the link {slot.link}, which is not in the file",
                where=f"node {node.label} of the {scope.where()}",
                fix="Connect the input again",
            )
        return link

    def _origin(self, scope: Scope, node: Node, slot: Slot, link: Wire) -> Node:
        origin = scope.graph.nodes.get(link.origin)
        if origin is None:
            raise CascadeError(
                f"input '{slot.name}' is wired to node {link.origin}, which is not in the file",
                where=f"node {node.label} of the {scope.where()}",
                fix="Connect the input again",
            )
        return origin

    def _leave(
        self, scope: Scope, node: Node, slot: Slot, link: Wire
    ) -> tuple[Scope, Node, int] | Value | None:
        """From a subgraph's input outwards: the instance's input, or the value of the promoted widget."""
        if scope.outer is None or scope.instance is None or link.slot >= len(scope.graph.inputs):
            raise CascadeError(
                f"input '{slot.name}' is wired to a subgraph input that does not exist",
                where=f"node {node.label} of the {scope.where()}",
                fix="Connect the input again",
            )
        outside = self.inputs(scope.outer, scope.instance)[link.slot]
        if outside.link is not None:
            return scope.outer, scope.instance, link.slot
        value = self.promoted.value(scope, link.slot)
        return None if value is MISSING else Value(value)

    def _output(
        self, scope: Scope, node: Node, slot: int, wanted: str
    ) -> tuple[Scope, Node, int, str | None] | OutputSlot | Value | None:
        """What an output stands for: the node itself, or the input to go on from and the type wanted."""
        while True:
            if node.mode == MUTED:
                return OutputSlot(scope.full_id(node), slot)
            if node.mode == BYPASSED:
                index = self._bypass(scope, node, slot, wanted)
                return None if index is None else (scope, node, index, None)
            if not self.is_instance(node):
                break
            inside = (*scope.path, node.id)
            scope = self.scopes[inside]
            ports = scope.graph.outputs
            links = [
                scope.graph.links[k]
                for k in (ports[slot].links if slot < len(ports) else ())
                if k in scope.graph.links
            ]
            if not links:
                return None
            if links[0].origin == INPUT_NODE:
                through = self._leave(scope, node, Slot(ports[slot].name, ports[slot].type), links[0])
                return (through[0], through[1], through[2], wanted) if isinstance(through, tuple) else through
            node, slot = self._origin(scope, node, Slot(ports[slot].name, "*"), links[0]), links[0].slot
        if node.type not in VIRTUAL:
            return OutputSlot(scope.full_id(node), slot)
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


def fits(one: str, other: str) -> bool:
    """Whether two slot types may be wired: comma-separated sets that overlap; ``*`` fits all."""
    if one == other or "*" in (one, other):
        return True
    return not {a.strip().lower() for a in one.split(",")}.isdisjoint(
        b.strip().lower() for b in other.split(",")
    )


def _first_value(node: Node) -> Any:
    if isinstance(node.values, Mapping):
        return next(iter(node.values.values()), None)
    return node.values[0] if node.values else None
