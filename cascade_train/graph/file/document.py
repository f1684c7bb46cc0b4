"""A UI workflow as data that can be trusted: every id a str, every link resolved to where it comes from.

Both saved forms are read (version 0.4 with link arrays, version 1 with link objects). Nothing here knows
what a node does; `widgets` and `wires` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import CascadeError

MUTED = 2
BYPASSED = 4
INPUT_NODE = "-10"
OUTPUT_NODE = "-20"


@dataclass(frozen=True)
class Wire:
    """A wire, by where it comes from. Where it goes is the business of the input that names it."""

    origin: str
    slot: int
    target: str
    target_slot: int
    type: str


@dataclass(frozen=True)
class Slot:
    """An input or output as saved. ``link`` is the id of the wire into it; ``widget`` the widget it feeds."""

    name: str
    type: str
    link: str | None = None
    widget: str | None = None


@dataclass(frozen=True)
class Node:
    """A node as saved. ``values`` are its widgets' values by position, or by name."""

    id: str
    type: str
    mode: int
    title: str
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    values: tuple[Any, ...] | Mapping[str, Any] = ()
    named: Mapping[str, Any] | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How messages name the node: title and id."""
        return f"'{self.title}' (id {self.id})"

    @property
    def active(self) -> bool:
        """Neither muted nor bypassed."""
        return self.mode not in (MUTED, BYPASSED)


@dataclass(frozen=True)
class Port:
    """An input or output of a subgraph, with the ids of the wires at it inside the subgraph."""

    name: str
    type: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """The root graph, or a subgraph's definition (then with ``inputs`` and ``outputs``)."""

    id: str
    name: str
    nodes: Mapping[str, Node]
    links: Mapping[str, Wire]
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()


@dataclass(frozen=True)
class Document:
    """A whole UI workflow."""

    root: Graph
    subgraphs: Mapping[str, Graph]


GROUP_NODE = ("workflow>", "workflow/")
"""How the types of group nodes begin."""


def parse_document(workflow: Any, group_nodes: bool = False) -> Document:
    """Read a UI workflow. With ``group_nodes`` those stay nodes, of types that no class has.

    Raises:
        CascadeError: it is damaged, uses group nodes, or has two nodes with one id.
    """
    if not isinstance(workflow, Mapping):
        raise CascadeError("a workflow is a JSON object with a list 'nodes'")
    if not group_nodes:
        _refuse_group_nodes(workflow)
    definitions = workflow.get("definitions")
    saved = definitions.get("subgraphs") if isinstance(definitions, Mapping) else None
    subgraphs: dict[str, Graph] = {}
    for number, entry in enumerate(_list(saved, "definitions.subgraphs")):
        entry = _object(entry, f"subgraph {number}")
        identity = str(entry.get("id"))
        if identity in subgraphs:
            raise CascadeError(
                f"two subgraphs have the id {identity}", fix="Save the workflow again in ComfyUI"
            )
        subgraphs[identity] = _graph(entry, identity, str(entry.get("name") or identity), inside=True)
    return Document(_graph(workflow, "", "workflow"), subgraphs)


def _refuse_group_nodes(workflow: Mapping[str, Any]) -> None:
    nodes = workflow.get("nodes")
    used = (
        sorted(
            {
                str(node["type"])
                for node in nodes
                if isinstance(node, Mapping) and str(node.get("type", "")).startswith(GROUP_NODE)
            }
        )
        if isinstance(nodes, list)
        else []
    )
    if used:
        raise CascadeError(
            f"the workflow uses group nodes ({', '.join(name[9:] for name in used)}), an old form that "
            "ComfyUI has replaced by subgraphs",
            fix="In ComfyUI right-click each group node, choose 'Convert to nodes', and save again",
        )


def _graph(entry: Mapping[str, Any], identity: str, name: str, inside: bool = False) -> Graph:
    where = f"subgraph '{name}'" if inside else "workflow"
    nodes: dict[str, Node] = {}
    for number, saved in enumerate(_list(entry.get("nodes"), f"nodes of the {where}")):
        node = _node(_object(saved, f"node {number} of the {where}"), where)
        if node.id in nodes:
            raise CascadeError(
                f"two nodes have the id {node.id}: '{nodes[node.id].title}' and '{node.title}'",
                where=where,
                fix="Delete one of them, or save the workflow again in ComfyUI",
            )
        nodes[node.id] = node
    links: dict[str, Wire] = {}
    for saved in _list(entry.get("links"), f"links of the {where}"):
        if saved is not None:  # ComfyUI leaves a null where a link was deleted
            key, link = _link(saved, where)
            links[key] = link
    ports = [
        _ports(entry.get(side), f"{side} of the {where}") if inside else () for side in ("inputs", "outputs")
    ]
    return Graph(identity, name, nodes, links, ports[0], ports[1])


def _node(entry: Mapping[str, Any], where: str) -> Node:
    identity = node_id(entry.get("id"), f"a node of the {where}")
    kind = entry.get("type")
    if not isinstance(kind, str) or not kind:
        raise CascadeError(f"node {identity} has no type", where=where)
    spot = f"node {identity} of the {where}"
    mode = entry.get("mode")
    values: Any = entry.get("widgets_values")
    named = entry.get("widgets_values_named")
    properties = entry.get("properties")
    return Node(
        id=identity,
        type=kind,
        mode=mode if isinstance(mode, int) else 0,
        title=str(entry.get("title") or ""),
        inputs=_slots(entry.get("inputs"), f"inputs of {spot}"),
        outputs=_slots(entry.get("outputs"), f"outputs of {spot}"),
        values=dict(values)
        if isinstance(values, Mapping)
        else tuple(_list(values, f"widgets_values of {spot}")),
        named=named if isinstance(named, Mapping) else None,
        properties=properties if isinstance(properties, Mapping) else {},
    )


def _slots(entries: Any, where: str) -> tuple[Slot, ...]:
    slots = []
    for entry in _list(entries, where):
        entry = _object(entry, where)
        link, widget = entry.get("link"), entry.get("widget")
        slots.append(
            Slot(
                name=str(entry.get("name", "")),
                type=slot_type(entry.get("type", "*")),
                link=None if link is None else node_id(link, f"a link in the {where}"),
                widget=str(widget["name"]) if isinstance(widget, Mapping) and "name" in widget else None,
            )
        )
    return tuple(slots)


def slot_type(kind: Any) -> str:
    """A slot's type as a name: lists of choices are ``COMBO``, 0 and -1 are old spellings of ``*``."""
    if isinstance(kind, (list, tuple)):
        return "COMBO"
    return "*" if kind in (0, -1, None, "") else str(kind)


def _link(entry: Any, where: str) -> tuple[str, Wire]:
    if isinstance(entry, Mapping):
        parts = [entry.get(k) for k in ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")]
    elif isinstance(entry, list) and len(entry) >= 5:
        parts = [*entry[:5], entry[5] if len(entry) > 5 else "*"]
    else:
        raise CascadeError(
            f"a link is damaged: {_short(entry)}",
            where=where,
            fix="A link is [id, from, from slot, to, to slot, type]",
        )
    key, origin, slot, target, target_slot, kind = parts
    spot = f"link {_short(key)} of the {where}"
    return node_id(key, f"a link of the {where}"), Wire(
        node_id(origin, spot),
        _index(slot, spot),
        node_id(target, spot),
        _index(target_slot, spot),
        slot_type(kind),
    )


def _ports(entries: Any, where: str) -> tuple[Port, ...]:
    ports = []
    for entry in _list(entries, where):
        entry = _object(entry, where)
        links = tuple(node_id(link, where) for link in _list(entry.get("linkIds"), where))
        ports.append(Port(str(entry.get("name", "")), slot_type(entry.get("type", "*")), links))
    return tuple(ports)


def node_id(value: Any, where: str) -> str:
    """An id, saved as int, integral float or str, as a str."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    raise CascadeError(f"{_short(value)} is no id", where=where, fix="Ids are whole numbers or text")


def _index(value: Any, where: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CascadeError(f"{_short(value)} is no slot number", where=where, fix="Slots are counted from 0")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise CascadeError(f"expected a list, found {_short(value)}", where=where)
    return value


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CascadeError(f"expected an object, found {_short(value)}", where=where)
    return value


def _short(value: Any) -> str:
    if isinstance(value, (list, Mapping)):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
