"""Saved workflows, written down as nodes and wires; fills in what the frontend wants to see in a file."""

from __future__ import annotations

from typing import Any

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
ANY_NODES = {
    "Reroute": ([("", "*")], [("", "*")]),
    "PrimitiveNode": ([], [("connect to widget input", "*")]),
    "SetNode": ([("*", "*")], [("*", "*")]),
    "GetNode": ([], [("*", "*")]),
}


class Graph:
    """A root graph, or with ``uuid`` a subgraph."""

    def __init__(self, classes: dict[str, type], uuid: str = "", name: str = "") -> None:
        self.classes = classes
        self.uuid, self.name = uuid, name
        self.nodes: dict[Any, dict[str, Any]] = {}
        self.links: list[list[Any]] = []
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.subgraphs: list[Graph] = []

    def node(
        self,
        number: Any,
        kind: str,
        values: Any = None,
        *,
        mode: int = 0,
        title: str | None = None,
        properties: dict[str, Any] | None = None,
        named: dict[str, Any] | None = None,
    ) -> None:
        inputs, outputs = self._sockets(kind)
        self.nodes[number] = {
            "id": number,
            "type": kind,
            "pos": [200 * len(self.nodes), 100],
            "size": [180, 100],
            "flags": {},
            "order": len(self.nodes),
            "mode": mode,
            "inputs": inputs,
            "outputs": outputs,
            "properties": properties or {"Node name for S&R": kind},
        }
        if values is not None:
            self.nodes[number]["widgets_values"] = values
        if named is not None:
            self.nodes[number]["widgets_values_named"] = named
        if title is not None:
            self.nodes[number]["title"] = title

    def _sockets(self, kind: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        subgraph = next((graph for graph in self._all_subgraphs() if graph.uuid == kind), None)
        if subgraph is not None:
            return (
                [
                    {**socket(port["name"], port["type"]), **port.get("as_widget", {})}
                    for port in subgraph.inputs
                ],
                [output(port["name"], port["type"]) for port in subgraph.outputs],
            )
        if kind in ANY_NODES:
            ins, outs = ANY_NODES[kind]
            return [socket(*port) for port in ins], [output(*port) for port in outs]
        if kind not in self.classes:
            return [], []
        groups = self.classes[kind].INPUT_TYPES()  # type: ignore[attr-defined]
        entries = {**groups.get("required", {}), **groups.get("optional", {})}
        plain, widgets = [], []
        for name, entry in entries.items():
            type_ = "COMBO" if isinstance(entry[0], list) else entry[0]
            options = entry[1] if len(entry) > 1 else {}
            if type_ == "COMFY_AUTOGROW_V3":
                plain.append(socket(f"{name}.image0", "IMAGE"))
            elif (type_ in WIDGETS or type_ == "COMFY_DYNAMICCOMBO_V3") and not options.get("forceInput"):
                widgets.append({**socket(name, type_), "widget": {"name": name}})
            else:
                plain.append(socket(name, type_))
        made = self.classes[kind].RETURN_TYPES  # type: ignore[attr-defined]
        return plain + widgets, [output(type_, type_) for type_ in made]

    def _all_subgraphs(self) -> list[Graph]:
        return [deeper for graph in self.subgraphs for deeper in (graph, *graph._all_subgraphs())]

    def wire(self, origin: Any, slot: int, target: Any, name: str, *, type_: str | None = None) -> int:
        """Wire an output to the input called ``name``; "IN" and "OUT" are a subgraph's own ports."""
        number = len(self.links) + 1
        if type_ is None:
            type_ = (
                self.inputs[slot]["type"] if origin == "IN" else self.nodes[origin]["outputs"][slot]["type"]
            )
        if origin == "IN":
            self.inputs[slot]["linkIds"].append(number)
        else:
            self.nodes[origin]["outputs"][slot]["links"].append(number)
        if target == "OUT":
            place = next(i for i, port in enumerate(self.outputs) if port["name"] == name)
            self.outputs[place]["linkIds"].append(number)
        else:
            inputs = self.nodes[target]["inputs"]
            place = next((i for i, entry in enumerate(inputs) if entry["name"] == name), len(inputs))
            if place == len(inputs):
                inputs.append(socket(name, type_))
            inputs[place]["link"] = number
        self.links.append(
            [
                number,
                -10 if origin == "IN" else origin,
                slot,
                -20 if target == "OUT" else target,
                place,
                type_,
            ]
        )
        return number

    def port_in(self, name: str, type_: str, widget: bool = False) -> int:
        extra = {"as_widget": {"widget": {"name": name}}} if widget else {}
        self.inputs.append(
            {
                "id": f"{self.uuid[:8]}-1111-4111-8111-{len(self.inputs):012d}",
                "name": name,
                "type": type_,
                "linkIds": [],
                "pos": [0, 0],
                **extra,
            }
        )
        return len(self.inputs) - 1

    def port_out(self, name: str, type_: str) -> None:
        self.outputs.append(
            {
                "id": f"{self.uuid[:8]}-2222-4222-8222-{len(self.outputs):012d}",
                "name": name,
                "type": type_,
                "linkIds": [],
                "pos": [0, 0],
            }
        )

    def subgraph(self, uuid: str, name: str) -> Graph:
        graph = Graph(self.classes, uuid, name)
        self.subgraphs.append(graph)
        return graph

    def _link_objects(self) -> list[dict[str, Any]]:
        keys = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
        return [dict(zip(keys, link)) for link in self.links]

    def _definition(self) -> dict[str, Any]:
        ports = [
            [{key: value for key, value in port.items() if key != "as_widget"} for port in side]
            for side in (self.inputs, self.outputs)
        ]
        return {
            "id": self.uuid,
            "version": 1,
            "name": self.name,
            "revision": 0,
            "config": {},
            "groups": [],
            "state": {"lastGroupId": 0, "lastNodeId": 900, "lastLinkId": 900, "lastRerouteId": 0},
            "inputNode": {"id": -10, "bounding": [-300, 0, 120, 60]},
            "outputNode": {"id": -20, "bounding": [900, 0, 120, 60]},
            "inputs": ports[0],
            "outputs": ports[1],
            "widgets": [],
            "nodes": list(self.nodes.values()),
            "links": self._link_objects(),
            "extra": {},
        }

    def workflow(self, version: float = 0.4) -> dict[str, Any]:
        """The file's JSON, in the form of ``version``."""
        last = max([number for number in self.nodes if isinstance(number, int)], default=0)
        data: dict[str, Any] = {
            "id": "00000000-0000-4000-8000-000000000000",
            "revision": 0,
            "config": {},
            "groups": [],
            "extra": {},
            "nodes": list(self.nodes.values()),
            "version": version,
        }
        if version == 1:
            data["state"] = {
                "lastGroupId": 0,
                "lastNodeId": last,
                "lastLinkId": len(self.links),
                "lastRerouteId": 0,
            }
            data["links"] = self._link_objects()
        else:
            data |= {"last_node_id": last, "last_link_id": len(self.links), "links": self.links}
        if self.subgraphs:
            data["definitions"] = {"subgraphs": [graph._definition() for graph in self._all_subgraphs()]}
        return data


def socket(name: str, type_: str) -> dict[str, Any]:
    return {"name": name, "type": type_, "link": None}


def output(name: str, type_: str) -> dict[str, Any]:
    return {"name": name, "type": type_, "links": []}
