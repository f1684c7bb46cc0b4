"""What the classes' schemas say against the nodes of a prompt, each one line to act on.

Works from what the classes declare: no torch, no node code. What only a class can say is in `refused`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cascade_train.graph.check.classes import Classes, ClassFacts
from cascade_train.graph.check.cores import CORE
from cascade_train.graph.check.near import alternatives, nearest, with_article
from cascade_train.graph.check.problems import MOST_TOLD, Problem
from cascade_train.graph.check.reach import Reached
from cascade_train.graph.check.schema import Input, Schema, inputs_of
from cascade_train.graph.check.values import Finding, value_problem
from cascade_train.graph.file.api import Prompt, is_link, is_node, title_of
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

NO_OUTPUT = Problem(
    what="no node of the workflow is an output, so nothing would run",
    fix="Add a node that saves or shows something, such as Export Run or Preview Image, "
    "and see that it is not muted or bypassed",
    kind="no output",
)


def shape_problems(nodes: Mapping[str, Any]) -> Iterator[Problem]:
    """Entries that are no nodes."""
    for key, node in nodes.items():
        if not is_node(node):
            yield Problem(
                node=key,
                what="this is no node: it needs a text 'class_type' and an object 'inputs'",
                fix="Export the prompt again",
                kind="shape",
            )


def unknown_problems(
    nodes: Prompt, classes: Classes, among: Collection[str], packs: Mapping[str, str]
) -> Iterator[Problem]:
    """One problem for each class of the nodes ``among`` that is not known here.

    ``packs`` holds the pack of a class, where the file knows it.
    """
    seen: dict[str, list[str]] = {}
    for key, node in nodes.items():
        if key in among and node["class_type"] not in classes:
            seen.setdefault(node["class_type"], []).append(key)
    for number, (name, keys) in enumerate(seen.items()):
        more = f", and {len(keys) - 1} more such nodes" if len(keys) > 1 else ""
        yield _problem(
            keys[0],
            nodes[keys[0]],
            "",
            f"there is no node class '{name}' here{more}",
            _unknown_fix(name, packs.get(name, ""), classes, number < MOST_TOLD),
            kind="unknown class",
            value=name,
        )


def _unknown_fix(name: str, pack: str, classes: Classes, hint: bool) -> str:
    near = nearest(name, classes, cutoff=0.8) if hint else []
    if pack == "ComfyUI itself" or name in CORE:
        return (
            "It is one of ComfyUI's own nodes: run with --comfyui FOLDER, the folder of a ComfyUI that has it"
        )
    if pack:
        return f"It is from the pack '{pack}': install it in a ComfyUI and run with --comfyui FOLDER"
    if near:
        return f"Nearest here: {alternatives(near)}"
    return "Install its pack in a ComfyUI and run with --comfyui FOLDER"


def input_problems(
    nodes: Prompt, classes: Classes, among: Collection[str], host: Host | None
) -> Iterator[Problem]:
    """What is wrong with the inputs of the nodes ``among``, in the order of ``nodes``.

    Args:
        nodes: the whole prompt.
        classes: the classes that can run here; nodes of others are left out.
        among: ids of the nodes that would run.
        host: whose folders files are looked for in; None skips the check of files.
    """
    told = 0
    for key, node in nodes.items():
        if key in among and node["class_type"] in classes:
            facts, hint = classes[node["class_type"]], told < MOST_TOLD
            for problem in _inputs(key, node, facts, nodes, classes, host, hint):
                told += 1
                yield problem


def circle_problems(nodes: Prompt, found: Reached) -> Iterator[Problem]:
    """One problem for each circle of wires."""
    for circle in found.circles:
        chain = " → ".join(_name(nodes[key], key) for key in (*circle, circle[0]))
        yield _problem(
            circle[0],
            nodes[circle[0]],
            "",
            f"its inputs come from itself: {chain}",
            "Disconnect one wire of the circle",
            kind="circle",
        )


def _inputs(
    key: str,
    node: Mapping[str, Any],
    facts: ClassFacts,
    nodes: Prompt,
    classes: Classes,
    host: Host | None,
    hint: bool,
) -> Iterator[Problem]:
    schema = facts.schema
    given: Mapping[str, Any] = node["inputs"]
    for name in _required(schema, given):
        if name not in given:
            yield _missing(key, node, schema, name, hint)
    own = tuple(schema.get("checks_itself") or ())
    for name, value in given.items():
        entry = reads(schema, str(name))
        problem: Finding | None = None
        if entry is None or entry.type == AUTOGROW:
            # ComfyUI drops what a class does not declare, but for wires that its function takes.
            if classes.can_run and is_link(value) and value[0] not in nodes and facts.takes_link(name):
                problem = _to_nowhere(value)
        elif isinstance(value, list):
            problem = _link(entry, value, nodes, classes)
        else:
            problem = value_problem(entry, value, host, own, hint)
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


def _missing(key: str, node: Mapping[str, Any], schema: Schema, name: str, hint: bool) -> Problem:
    entry = reads(schema, name)
    spare = [str(other) for other in node["inputs"] if reads(schema, str(other)) is None] if hint else []
    near = nearest(name, spare)
    if near:
        fix = f"It has an input {alternatives(near)} that this class does not know: is that the one?"
    elif entry is not None and is_widget(entry):
        fix = "Give it a value"
    else:
        fix = f"Connect {with_article(entry.type)}" if entry is not None else "Connect it"
    return _problem(key, node, name, "is required and has nothing", fix, kind="missing input")


def _link(entry: Input, value: list[Any], nodes: Prompt, classes: Classes) -> Finding | None:
    if not is_link(value) or not isinstance(value[1], int):
        if len(value) == 2 and type(value[0]) is int and type(value[1]) is int:
            return _to_nowhere(value)
        return (
            "is a list, but neither a link [node id, slot] nor a wrapped list",
            'Write a list of values as {"__value__": […]}',
            "link",
        )
    origin = nodes.get(value[0])
    if origin is None:
        return _to_nowhere(value)
    if origin["class_type"] not in classes:
        return None
    outputs = classes[origin["class_type"]].return_types
    name = _name(origin, value[0])
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
    return (
        f"takes {with_article(takes)}, but {name} gives {with_article(made)}",
        f"Connect {with_article(takes)}",
        "link type",
    )


def _to_nowhere(value: list[Any]) -> Finding:
    return (
        f"is wired to node {alternatives([value[0]])}, which is not in the prompt",
        "Connect it again",
        "link",
    )


def _accepted(entry: Input) -> str:
    if entry.type == MATCH_TYPE:
        template = entry.options.get("template")
        return str(template.get("allowed_types", "*")) if isinstance(template, Mapping) else "*"
    return "COMBO" if entry.type == DYNAMIC_COMBO else entry.type


def _name(node: Mapping[str, Any], key: str) -> str:
    return f"'{title_of(node)}' (id {key})"


def _problem(
    key: str, node: Mapping[str, Any], name: str, what: str, fix: str, *, kind: str, value: Any = None
) -> Problem:
    return Problem(
        node=key,
        title=title_of(node),
        class_type=node["class_type"],
        input=name,
        value=value,
        what=what,
        fix=fix,
        kind=kind,
    )
