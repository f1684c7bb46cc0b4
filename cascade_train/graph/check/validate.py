"""Everything that is wrong with a prompt, found before anything runs, each one line to act on.

Works from the schemas alone: no torch, no node code. What only a class can say (``VALIDATE_INPUTS``) is the
executor's to ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cascade_train.graph.check.near import a, nearest, shown
from cascade_train.graph.check.overrides import apply_settings
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.check.reach import circles, needed
from cascade_train.graph.check.schema import Input, Schema, inputs_of
from cascade_train.graph.check.values import value_problem
from cascade_train.graph.file.convert import to_prompt, unknown_classes
from cascade_train.graph.file.load import is_api
from cascade_train.graph.file.widgets import (
    AUTOGROW,
    DYNAMIC_COMBO,
    MATCH_TYPE,
    choice_inputs,
    is_widget,
    reads,
)
from cascade_train.graph.file.wires import fits
from cascade_train.host.base import Host

__all__ = ["Problem", "check", "problems"]


def check(
    workflow: dict[str, Any],
    object_info: Mapping[str, Schema],
    host: Host | None,
    settings: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Problem]]:
    """The prompt of a UI workflow or API prompt, ``node.input=value`` settings in it, and what is wrong.

    Raises:
        CascadeError: the file is too damaged to be converted, or a setting fits nothing.
    """
    prompt = apply_settings(to_prompt(workflow, object_info), settings, object_info)
    packs = (
        {} if is_api(workflow) else {name: pack for name, pack, _ in unknown_classes(workflow, object_info)}
    )
    return prompt, problems(prompt, object_info, host, packs)


def problems(
    prompt: Mapping[str, Any],
    object_info: Mapping[str, Schema],
    host: Host | None,
    packs: Mapping[str, str] | None = None,
) -> list[Problem]:
    """All that is wrong with an API prompt, in the order of its nodes.

    Only nodes that an output node needs are checked, as only they run; unknown classes are named wherever
    they are.

    Args:
        prompt: the API prompt.
        object_info: the schemas of the classes that can run here.
        host: whose folders files are looked for in; None skips the check of files.
        packs: the pack of an unknown class, where the file knows it.
    """
    nodes = {str(key): node for key, node in prompt.items()} if isinstance(prompt, Mapping) else {}
    found = list(_shapes(nodes))
    nodes = {key: node for key, node in nodes.items() if is_node(node)}
    unknown = list(_unknown(nodes, object_info, packs or {}))
    outputs = [
        key for key, node in nodes.items() if (object_info.get(node["class_type"]) or {}).get("output_node")
    ]
    if not outputs and not unknown and not found:
        return [
            Problem(
                what="no node of the workflow is an output, so nothing would run",
                fix="Add a node that saves or shows something, such as Export Run or Preview Image, "
                "and see that it is not muted or bypassed",
                kind="no output",
            )
        ]
    found += unknown
    wanted = needed(nodes, outputs)
    for key, node in nodes.items():
        schema = object_info.get(node["class_type"])
        if schema is not None and key in wanted:
            found += _node(key, node, schema, nodes, object_info, host)
    for circle in circles(nodes, wanted):
        chain = " → ".join(_name(nodes[key], key) for key in [*circle, circle[0]])
        found.append(
            _problem(
                circle[0],
                nodes[circle[0]],
                "",
                f"its inputs come from itself: {chain}",
                "Disconnect one wire of the circle",
                kind="circle",
            )
        )
    return found


def is_node(node: Any) -> bool:
    """Whether ``node`` has the shape of a prompt's node."""
    return (
        isinstance(node, Mapping)
        and isinstance(node.get("class_type"), str)
        and isinstance(node.get("inputs"), Mapping)
    )


def _shapes(nodes: Mapping[str, Any]) -> Iterator[Problem]:
    for key, node in nodes.items():
        if not is_node(node):
            yield Problem(
                node=key,
                what="this is no node: it needs a text 'class_type' and an object 'inputs'",
                fix="Export the prompt again",
                kind="shape",
            )


def _unknown(
    nodes: Mapping[str, Any], object_info: Mapping[str, Schema], packs: Mapping[str, str]
) -> Iterator[Problem]:
    seen: dict[str, list[str]] = {}
    for key, node in nodes.items():
        if node["class_type"] not in object_info:
            seen.setdefault(node["class_type"], []).append(key)
    for name, keys in seen.items():
        node = nodes[keys[0]]
        more = f", and {len(keys) - 1} more such nodes" if len(keys) > 1 else ""
        yield _problem(
            keys[0],
            node,
            "",
            f"there is no node class '{name}' here{more}",
            _unknown_fix(name, packs.get(name, ""), object_info),
            kind="unknown class",
            value=name,
        )


def _unknown_fix(name: str, pack: str, object_info: Mapping[str, Schema]) -> str:
    near = nearest(name, object_info, cutoff=0.8)
    if pack == "ComfyUI itself":
        return (
            "It is one of ComfyUI's own nodes: run with --comfyui FOLDER, the folder of a ComfyUI that has it"
        )
    if pack:
        return f"It is from the pack '{pack}': install it in a ComfyUI and run with --comfyui FOLDER"
    if near:
        return f"Nearest here: {shown(near)}"
    return "Install its pack in a ComfyUI and run with --comfyui FOLDER"


def _node(
    key: str,
    node: Mapping[str, Any],
    schema: Schema,
    nodes: Mapping[str, Any],
    object_info: Mapping[str, Schema],
    host: Host | None,
) -> Iterator[Problem]:
    given: Mapping[str, Any] = node["inputs"]
    for name in _required(schema, given):
        if name not in given:
            yield _missing(key, node, schema, name)
    for name, value in given.items():
        entry = reads(schema, str(name))
        if entry is None or entry.type == AUTOGROW:
            continue  # ComfyUI drops what a class does not declare
        if isinstance(value, list):
            problem = _link(key, node, entry, value, nodes, object_info)
        else:
            problem = value_problem(entry, value, host, tuple(schema.get("checks_itself") or ()))
        if problem is not None:
            what, fix, kind = problem
            yield _problem(key, node, str(name), what, fix, kind=kind, value=value)


def _required(schema: Schema, given: Mapping[str, Any]) -> Iterator[str]:
    """The inputs that must be there, with those that a dynamic combo's choice and a growing list bring."""
    pending = [entry for entry in inputs_of(schema) if entry.required]
    while pending:
        entry = pending.pop(0)
        if entry.type == AUTOGROW:
            yield from _least(entry)
            continue
        yield entry.name
        if entry.type == DYNAMIC_COMBO:
            pending += [inner for inner in choice_inputs(entry, given.get(entry.name)) if inner.required]


def _least(entry: Input) -> list[str]:
    template = entry.options.get("template")
    if not isinstance(template, Mapping):
        return []
    least = template.get("min")
    count = least if isinstance(least, int) and 0 <= least < 1000 else 0
    names = template.get("names")
    if not isinstance(names, (list, tuple)):
        names = [f"{template.get('prefix', '')}{i}" for i in range(count)]
    return [f"{entry.name}.{name}" for name in names[:count]]


def _missing(key: str, node: Mapping[str, Any], schema: Schema, name: str) -> Problem:
    entry = reads(schema, name)
    spare = [str(other) for other in node["inputs"] if reads(schema, str(other)) is None]
    near = nearest(name, spare)
    if near:
        fix = f"It has an input {shown(near)} that this class does not know: is that the one?"
    elif entry is not None and is_widget(entry):
        fix = "Give it a value"
    else:
        fix = f"Connect {a(entry.type)}" if entry is not None else "Connect it"
    return _problem(key, node, name, "is required and has nothing", fix, kind="missing input")


def _link(
    key: str,
    node: Mapping[str, Any],
    entry: Input,
    value: list[Any],
    nodes: Mapping[str, Any],
    object_info: Mapping[str, Schema],
) -> tuple[str, str, str] | None:
    if (
        len(value) != 2
        or not isinstance(value[0], (str, int))
        or not isinstance(value[1], int)
        or isinstance(value[1], bool)
    ):
        return (
            "is a list, but neither a link [node id, slot] nor a wrapped list",
            'Write a list of values as {"__value__": […]}',
            "link",
        )
    origin = nodes.get(str(value[0]))
    if origin is None:
        return f"is wired to node {shown([value[0]])}, which is not in the prompt", "Connect it again", "link"
    schema = object_info.get(origin["class_type"])
    if schema is None:
        return None
    outputs = list(schema.get("output") or ())
    name = _name(origin, str(value[0]))
    if not 0 <= value[1] < len(outputs):
        return (
            f"is wired to output {value[1]} of {name}, which has {len(outputs)}",
            "Connect it again",
            "link",
        )
    made = outputs[value[1]]
    made = "COMBO" if isinstance(made, (list, tuple)) else str(made)
    takes = _accepted(entry)
    if MATCH_TYPE in (made, takes) or fits(made, takes):
        return None
    return f"takes {a(takes)}, but {name} gives {a(made)}", f"Connect {a(takes)}", "link type"


def _accepted(entry: Input) -> str:
    if entry.type == MATCH_TYPE:
        template = entry.options.get("template")
        return str(template.get("allowed_types", "*")) if isinstance(template, Mapping) else "*"
    return "COMBO" if entry.type == DYNAMIC_COMBO else entry.type


def _name(node: Mapping[str, Any], key: str) -> str:
    return f"'{_title(node)}' (id {key})"


def _title(node: Mapping[str, Any]) -> str:
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, Mapping) else None
    return str(title or node["class_type"])


def _problem(
    key: str, node: Mapping[str, Any], name: str, what: str, fix: str, *, kind: str, value: Any = None
) -> Problem:
    return Problem(
        node=key,
        title=_title(node),
        class_type=node["class_type"],
        input=name,
        value=value,
        what=what,
        fix=fix,
        kind=kind,
    )
