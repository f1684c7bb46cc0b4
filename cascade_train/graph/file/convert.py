"""A saved UI workflow to the API prompt that ComfyUI's frontend would queue for it.

Pure: no torch, no ComfyUI, no file. What the classes' inputs are comes in as ``object_info``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cascade_train.graph.check.schema import Schema
from cascade_train.graph.file.api import title_of, with_text_ids
from cascade_train.graph.file.document import Node, Slot, parse_document
from cascade_train.graph.file.expanded import PRIMITIVE, Scope
from cascade_train.graph.file.load import is_api
from cascade_train.graph.file.strings import dynamic_prompt, fill_in
from cascade_train.graph.file.widgets import reads, typed_in
from cascade_train.graph.file.wires import OutputSlot, Value, Wiring

FILLED_IN = frozenset(
    {
        "SaveImage",
        "SaveImageAdvanced",
        "SaveVideo",
        "SaveAnimatedWEBP",
        "SaveWEBM",
        "SaveAudio",
        "SaveAudioMP3",
        "SaveAudioOpus",
        "SaveAudioAdvanced",
        "SaveGLB",
        "SaveAnimatedPNG",
        "CLIPSave",
        "VAESave",
        "ModelSave",
        "LoraSave",
        "SaveLatent",
        "SaveSVGNode",
    }
)
"""Classes in whose ``filename_prefix`` the frontend replaces ``%date:…%`` and ``%node.widget%``."""


def to_prompt(
    workflow: dict[str, Any],
    object_info: Mapping[str, Schema],
    *,
    draw: int | None = None,
    now: datetime | None = None,
    group_nodes: bool = False,
) -> dict[str, dict[str, Any]]:
    """The API prompt of a UI workflow; an API prompt comes back as it is, ids as str, also in its links.

    Args:
        workflow: the parsed JSON.
        object_info: the schemas of the node classes. A class that is not in it keeps its wires and loses
            its widgets; `check.checked` names such nodes.
        draw: the seed with which ``{a|b}`` in strings that allow it is drawn; None leaves the braces.
        now: the time for ``%date:…%`` in file names; None takes the present.
        group_nodes: leave them in as they are, to be looked at; no class of theirs can run.

    Raises:
        CascadeError: the workflow is damaged, uses group nodes, or its wires run in a circle.
    """
    if is_api(workflow):
        return with_text_ids(workflow)
    wiring = Wiring(parse_document(workflow, group_nodes), object_info)
    _apply_primitives(wiring, now)
    prompt: dict[str, dict[str, Any]] = {}
    for scope, node in wiring.nodes():
        if wiring.is_emitted(node):
            prompt[scope.full_id(node)] = {
                "inputs": _inputs(wiring, scope, node, draw, now),
                "class_type": node.type,
                "_meta": {"title": node.title or _display_name(object_info, node)},
            }
    for entry in prompt.values():
        entry["inputs"] = {
            name: value
            for name, value in entry["inputs"].items()
            if not (isinstance(value, list) and value[0] not in prompt)
        }
    return prompt


def _display_name(object_info: Mapping[str, Schema], node: Node) -> str:
    return str((object_info.get(node.type) or {}).get("display_name") or node.type)


def _inputs(
    wiring: Wiring, scope: Scope, node: Node, draw: int | None, now: datetime | None
) -> dict[str, Any]:
    schema = wiring.object_info.get(node.type) or {}
    inputs: dict[str, Any] = {}
    for name, value in wiring.values(scope, node).items():
        if isinstance(value, str):
            value = _final_text(wiring, schema, node, name, value, draw, now)
        inputs[name] = _literal(value)
    for index, slot in enumerate(wiring.inputs(scope, node)):
        source = wiring.source(scope, node, index)
        if isinstance(source, OutputSlot):
            inputs[slot.name] = [source.id, source.slot]
        elif isinstance(source, Value):
            inputs[slot.name] = _literal(source.value)
    return inputs


def _literal(value: Any) -> Any:
    """A list is wrapped, since a bare one would be read as a wire."""
    return {"__value__": value} if isinstance(value, list) else value


def _final_text(
    wiring: Wiring, schema: Schema, node: Node, name: str, text: str, draw: int | None, now: datetime | None
) -> str:
    if name == "filename_prefix" and node.type in FILLED_IN:
        return fill_in(text, lambda title, widget: _look_up(wiring, title, widget), now)
    entry = reads(schema, name)
    if entry is not None and entry.options.get("dynamicPrompts"):
        return dynamic_prompt(text, draw)
    return text


def _look_up(wiring: Wiring, title: str, widget: str) -> Any:
    """The value of a root node's widget, the node by search name, else by title; None when not found."""
    found = wiring.called(title)
    return None if found is None else wiring.values(wiring.scopes[()], found).get(widget)


def _apply_primitives(wiring: Wiring, now: datetime | None) -> None:
    """Write each primitive's value into the widgets of the inputs that are wired directly to it."""
    for scope, node in wiring.nodes():
        if node.type == PRIMITIVE and not isinstance(node.values, Mapping) and node.values:
            value = node.values[0]
            if isinstance(value, str) and node.properties.get("Run widget replace on values"):
                value = fill_in(value, lambda title, widget: _look_up(wiring, title, widget), now)
            _write_to_targets(wiring, scope, node, value)


def _write_to_targets(wiring: Wiring, scope: Scope, primitive: Node, value: Any) -> None:
    for key in wiring.leaving(scope.graph, primitive):
        target, slot = wiring.fed(scope.graph).get(key, (None, None))
        if target is None or slot is None:
            continue
        inside = wiring.scopes.get((*scope.path, target.id))
        if inside is not None:
            _write_promoted(wiring, inside, slot.name, value)
            continue
        _write(wiring, scope, target, slot, value)


def _write_promoted(wiring: Wiring, scope: Scope, name: str, value: Any) -> None:
    """A primitive wired to a subgraph instance sets the inner widgets that the input stands for."""
    port = next((port for port in scope.graph.inputs if port.name == name), None)
    for link in port.links if port else ():
        node, slot = wiring.fed(scope.graph).get(link, (None, None))
        if node is None or slot is None:
            continue
        inside = wiring.scopes.get((*scope.path, node.id))
        if inside is not None:
            _write_promoted(wiring, inside, slot.name, value)
        else:
            _write(wiring, scope, node, slot, value)


def _write(wiring: Wiring, scope: Scope, node: Node, slot: Slot, value: Any) -> None:
    values, name = wiring.values(scope, node), slot.widget or slot.name
    if name in values:
        entry = reads(wiring.object_info.get(node.type) or {}, name)
        values[name] = value if entry is None else typed_in(entry, value)


def unknown_classes(
    workflow: Mapping[str, Any], object_info: Mapping[str, Schema]
) -> list[tuple[str, str, str]]:
    """(class, pack or "", example node) of every class in the workflow that ``object_info`` does not have.

    Only nodes that would be emitted count.
    """
    if is_api(workflow):
        found = {
            str(node["class_type"]): ("", f"'{title_of(node)}' (id {key})")
            for key, node in workflow.items()
            if node["class_type"] not in object_info
        }
    else:
        wiring = Wiring(parse_document(workflow), object_info)
        found = {
            node.type: (pack_hint(node), f"'{node.title or node.type}' (id {scope.full_id(node)})")
            for scope, node in wiring.nodes()
            if wiring.is_emitted(node) and node.type not in object_info
        }
    return [(name, pack, where) for name, (pack, where) in sorted(found.items())]


def pack_hint(node: Node) -> str:
    """The pack that a node's file says it is from: its registry id, else its GitHub name."""
    for key in ("cnr_id", "aux_id"):
        value = node.properties.get(key)
        if isinstance(value, str) and value and value != "comfy-core":
            return value
    return "ComfyUI itself" if node.properties.get("cnr_id") == "comfy-core" else ""
