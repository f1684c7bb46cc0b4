"""Draws workflows in ComfyUI's UI form (version 0.4) from a short description.

Widgets are written in the order of the schemas, so that files and nodes stay in step; nodes are stacked in
columns, groups drawn around them.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from typing import Any

from cascade_train.graph.check.schema import Input, inputs_of

GAP, COLUMN_GAP, TITLE, SLOT, WIDGET = 60, 90, 34, 24, 34
"""In pixels. A slot and a widget are as high as the taller of the frontend's two canvases draws them, the one
whose nodes are HTML."""

MARGIN, GROUP_TITLE = 20, 44
PROGRESS = {
    "CascadeImageFolder",
    "CascadeTrainSteps",
    "CascadeValidate",
    "CascadeSampleStageC",
    "CascadeDecodeStageB",
    "CascadeDatasetPreview",
}
"""Nodes that the frontend makes higher by a line of text while they run."""

PREVIEW = {
    "CascadeTrainSteps": 280,
    "CascadeTrainAndValidate": 280,
    "CascadeValidate": 220,
    "CascadeSampleStageC": 220,
    "CascadeDatasetPreview": 440,
    "CascadeExportRun": 170,
}
"""Room in pixels for the picture or text that a node shows, so that it does not grow over the next."""

LINES = 30
"""Lines of text that a box shows at most; the rest scrolls."""

WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"}
COLOURS = {
    "models": "#3f789e",
    "data": "#3f7858",
    "training": "#8a5a2b",
    "validation": "#6b4c8c",
    "result": "#7d3f3f",
}


@dataclass
class Node:
    id: int
    kind: str
    title: str | None
    links: dict[str, tuple[str, int]]
    widgets: dict[str, Any]
    width: int
    height: int
    x: int = 0
    y: int = 0


@dataclass
class Sheet:
    """A workflow in the making; ``schemas`` is an ``/object_info``."""

    schemas: dict[str, Any]
    nodes: dict[str, Node] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    x: int = 0

    def node(
        self, key: str, kind: str, *, called: str | None = None, wide: int = 320, high: int = 0, **inputs: Any
    ) -> str:
        """Add a node titled ``called``; an input is a literal or ``(key of a node, output's name)``."""
        entries = {entry.name: entry for entry in inputs_of(self.schemas[kind])}
        unknown = inputs.keys() - entries.keys()
        if unknown:
            raise KeyError(f"{kind} has no input {sorted(unknown)}")
        links = {}
        widgets = {name: entry.default for name, entry in entries.items() if entry.type in WIDGETS}
        for name, value in inputs.items():
            if isinstance(value, tuple):
                source = self.schemas[self.nodes[value[0]].kind]
                links[name] = (value[0], source["output_name"].index(value[1]))
            else:
                widgets[name] = value
        self.nodes[key] = Node(
            len(self.nodes) + 1,
            kind,
            called,
            links,
            widgets,
            wide,
            high or self._height(kind, list(entries.values()), wide, widgets),
        )
        return key

    def note(self, key: str, text: str, *, title: str = "Note", width: int = 320) -> str:
        """A MarkdownNote as high as its text."""
        lines = sum(len(textwrap.wrap(line, width // 7)) or 1 for line in text.splitlines())
        self.nodes[key] = Node(
            len(self.nodes) + 1, "MarkdownNote", title, {}, {"text": text}, width, TITLE + 30 + 21 * lines
        )
        return key

    def column(self, title: str, colour: str, *keys: str) -> None:
        """Stack nodes under each other to the right of the columns before, in a group of that title."""
        y = 0
        width = max(self.nodes[key].width for key in keys)
        for key in keys:
            node = self.nodes[key]
            node.x, node.y, node.width = self.x, y, width
            y += node.height + GAP
        self.groups.append(
            {
                "id": len(self.groups) + 1,
                "title": title,
                "color": COLOURS[colour],
                "font_size": 24,
                "flags": {},
                "bounding": [
                    self.x - MARGIN,
                    -TITLE - GROUP_TITLE,
                    width + 2 * MARGIN,
                    y - GAP + TITLE + GROUP_TITLE + MARGIN,
                ],
            }
        )
        self.x += width + COLUMN_GAP

    def _height(self, kind: str, entries: list[Input], width: int, widgets: dict[str, Any]) -> int:
        slots = max(sum(entry.type not in WIDGETS for entry in entries), len(self.schemas[kind]["output"]))
        height = 22 + slots * SLOT + (40 if kind in PROGRESS else 0) + PREVIEW.get(kind, 0)
        for entry in entries:
            if entry.options.get("multiline"):
                lines = sum(
                    len(textwrap.wrap(line, width // 7)) or 1 for line in str(widgets[entry.name]).split("\n")
                )
                height += 28 + min(max(3, lines), LINES) * 16
            elif entry.type in WIDGETS:
                height += WIDGET
        return height

    def document(self) -> dict[str, Any]:
        """The workflow as JSON data."""
        links: list[list[Any]] = []
        out = []
        targets: dict[tuple[str, int], list[int]] = {}
        inputs_at: dict[str, list[dict[str, Any]]] = {}
        for key, node in self.nodes.items():
            slots: list[dict[str, Any]] = []
            for entry in inputs_of(self.schemas[node.kind]) if node.kind in self.schemas else ():
                is_widget = entry.type in WIDGETS
                if is_widget and entry.name not in node.links:
                    continue
                slot: dict[str, Any] = {"name": entry.name, "type": entry.type, "link": None}
                if is_widget:
                    slot["widget"] = {"name": entry.name}
                if not entry.required:
                    slot["shape"] = 7
                if entry.name in node.links:
                    origin, index = node.links[entry.name]
                    number = len(links) + 1
                    links.append(
                        [
                            number,
                            self.nodes[origin].id,
                            index,
                            node.id,
                            len(slots),
                            self.schemas[self.nodes[origin].kind]["output"][index],
                        ]
                    )
                    targets.setdefault((origin, index), []).append(number)
                    slot["link"] = number
                slots.append(slot)
            inputs_at[key] = slots
        for order, (key, node) in enumerate(self.nodes.items()):
            schema = self.schemas.get(node.kind, {})
            outputs = [
                {"name": name, "type": kind, "slot_index": index, "links": targets.get((key, index))}
                for index, (name, kind) in enumerate(
                    zip(schema.get("output_name", ()), schema.get("output", ()))
                )
            ]
            virtual = node.kind == "MarkdownNote"
            if node.kind in ("SaveImage", "PreviewImage"):  # later cores pass pictures on, earlier do not
                outputs = []
            drawn: dict[str, Any] = {
                "id": node.id,
                "type": node.kind,
                "pos": [node.x, node.y],
                "size": [node.width, node.height],
                "flags": {},
                "order": order,
                "mode": 0,
                "inputs": inputs_at[key],
                "outputs": [] if virtual else outputs,
                "properties": {} if virtual else properties(node.kind),
                "widgets_values": list(node.widgets.values()),
            }
            if node.title:
                drawn["title"] = node.title
            if virtual:
                drawn |= {"color": "#432", "bgcolor": "#653"}
            out.append(drawn)
        return {
            "id": "",
            "revision": 0,
            "last_node_id": len(self.nodes),
            "last_link_id": len(links),
            "nodes": out,
            "links": links,
            "groups": self.groups,
            "config": {},
            "extra": {"ds": {"scale": 0.7, "offset": [80, 140]}},
            "version": 0.4,
        }


def properties(kind: str) -> dict[str, Any]:
    pack = "cascade-train" if kind.startswith("Cascade") else "comfy-core"
    return {"cnr_id": pack, "Node name for S&R": kind}


def text(name: str, sheet: Sheet) -> str:
    """``sheet`` as a workflow file; its id is a function of its name."""
    import uuid

    document = sheet.document()
    document["id"] = str(uuid.uuid5(uuid.NAMESPACE_URL, f"cascade-train/{name}"))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
