"""What a workflow holds: nodes in the order of the data, their values and wires, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cascade_train.graph.check.schema import Schema
from cascade_train.graph.file.api import Prompt, is_link, links_of, title_of, unwrapped
from cascade_train.graph.file.convert import to_prompt
from cascade_train.graph.file.document import GROUP_NODE, MUTED, parse_document
from cascade_train.graph.file.load import is_api
from cascade_train.graph.file.wires import Wiring


@dataclass(frozen=True)
class NodeView:
    """One node of the prompt. ``wires`` is (input, the id that feeds it, the output's name)."""

    id: str
    title: str
    class_type: str
    known: bool
    output_node: bool
    values: Mapping[str, Any]
    wires: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Summary:
    """A whole workflow. ``left_out`` is (id, title, why) of nodes that do not run; ``notes`` their texts;
    ``groups`` is (type, the types inside) of each group node, which has to be unpacked before it can run."""

    form: str
    nodes: tuple[NodeView, ...]
    subgraphs: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return asdict(self)


def summary_of(workflow: dict[str, Any], object_info: Mapping[str, Schema]) -> Summary:
    """Read a UI workflow or API prompt.

    Raises:
        CascadeError: the workflow is damaged.
    """
    prompt = to_prompt(workflow, object_info, group_nodes=True)
    nodes = tuple(_view(key, prompt[key], prompt, object_info) for key in _in_order(prompt))
    if is_api(workflow):
        return Summary("API prompt", nodes)
    wiring = Wiring(parse_document(workflow, group_nodes=True), object_info)
    left_out, notes = [], []
    for scope, node in wiring.nodes():
        if not node.active:
            why = "muted" if node.mode == MUTED else "bypassed"
            left_out.append((scope.full_id(node), node.title or node.type, why))
        elif node.type in ("Note", "MarkdownNote") and not isinstance(node.values, Mapping) and node.values:
            notes.append(str(node.values[0]))
    names = tuple(graph.name for graph in wiring.document.subgraphs.values())
    version = workflow.get("version")
    return Summary(
        f"UI workflow {version}" if version is not None else "UI workflow",
        nodes,
        names,
        tuple(left_out),
        tuple(notes),
        _groups(workflow, [node.class_type for node in nodes]),
    )


def _groups(workflow: Mapping[str, Any], types: list[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What the file says is inside each group node that is used."""
    extra = workflow.get("extra")
    saved = extra.get("groupNodes") if isinstance(extra, Mapping) else None
    saved = saved if isinstance(saved, Mapping) else {}
    found = []
    for kind in dict.fromkeys(each for each in types if each.startswith(GROUP_NODE)):
        entry = saved.get(kind[len(GROUP_NODE[0]) :])
        inner = entry.get("nodes") if isinstance(entry, Mapping) else None
        names = (
            [str(node.get("type")) for node in inner if isinstance(node, Mapping)]
            if isinstance(inner, list)
            else []
        )
        found.append((kind, tuple(names)))
    return tuple(found)


def _view(key: str, node: Mapping[str, Any], prompt: Prompt, object_info: Mapping[str, Schema]) -> NodeView:
    wires = []
    values = {}
    for name, value in node["inputs"].items():
        if is_link(value):
            wires.append((str(name), value[0], _output_name(prompt.get(value[0]), value[1], object_info)))
        else:
            values[str(name)] = unwrapped(value)
    schema = object_info.get(node["class_type"])
    return NodeView(
        key,
        title_of(node),
        node["class_type"],
        schema is not None,
        bool((schema or {}).get("output_node")),
        values,
        tuple(wires),
    )


def _output_name(node: Any, slot: Any, object_info: Mapping[str, Schema]) -> str:
    schema = object_info.get(node["class_type"]) if isinstance(node, Mapping) else None
    names = list((schema or {}).get("output_name") or ())
    return str(names[slot]) if isinstance(slot, int) and 0 <= slot < len(names) else str(slot)


def _in_order(prompt: Prompt) -> list[str]:
    """Ids with every node after those that feed it, else in the file's order; circles at the end."""
    feeding = {
        key: {f for _, f, _ in links_of(node) if f in prompt and f != key} for key, node in prompt.items()
    }
    fed: dict[str, list[str]] = {}
    for key, feeders in feeding.items():
        for feeder in feeders:
            fed.setdefault(feeder, []).append(key)
    ready = [key for key in reversed(list(prompt)) if not feeding[key]]
    ordered = []
    while ready:
        key = ready.pop()
        ordered.append(key)
        for target in reversed(fed.get(key, [])):
            feeding[target].discard(key)
            if not feeding[target]:
                ready.append(target)
    done = set(ordered)
    return ordered + [key for key in prompt if key not in done]


def heading(found: Summary) -> str:
    """One line: what the file is and how much is in it."""
    parts = [f"{len(found.nodes)} node{'s' if len(found.nodes) != 1 else ''}"]
    wires = sum(len(node.wires) for node in found.nodes)
    parts.append(f"{wires} wire{'s' if wires != 1 else ''}")
    if found.subgraphs:
        parts.append(f"{len(found.subgraphs)} subgraph{'s' if len(found.subgraphs) != 1 else ''}")
    if found.left_out:
        parts.append(f"{len(found.left_out)} muted or bypassed")
    return f"{found.form}, {', '.join(parts)}"
