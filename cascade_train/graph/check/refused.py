"""What the classes themselves say: literals brought to their input's type, and ``VALIDATE_INPUTS``."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cascade_train.graph.check.calls import call_over_lists, gather, settled
from cascade_train.graph.check.classes import Classes, ClassFacts
from cascade_train.graph.check.near import with_article
from cascade_train.graph.check.problems import Problem
from cascade_train.graph.check.values import in_its_type
from cascade_train.graph.file.api import Prompt, is_link, links_of, title_of
from cascade_train.host.blocker import is_blocker


def in_their_types(
    nodes: Prompt, classes: Classes, among: Collection[str]
) -> tuple[dict[str, Mapping[str, Any]], list[Problem]]:
    """A copy of the prompt whose literals have their input's type (``"3"`` -> 3 for an INT), and a problem
    for each that cannot be converted of the nodes ``among``."""
    typed: dict[str, Mapping[str, Any]] = {}
    found: list[Problem] = []
    for key, node in nodes.items():
        if node["class_type"] not in classes:
            typed[key] = node
            continue
        facts = classes[node["class_type"]]
        inputs = dict(node["inputs"])
        for name, value in inputs.items():
            entry = facts.declared(name)
            if entry is None or is_link(value):
                continue
            try:
                inputs[name] = in_its_type(entry, value)
            except (TypeError, ValueError, OverflowError):
                if key in among:
                    what = f"cannot be made {with_article(entry.type)}"
                    found.append(_problem(key, node, name, what, "type"))
        typed[key] = {**node, "inputs": inputs}
    return typed, found


def refusals(nodes: Prompt, typed: Prompt, classes: Classes, among: Collection[str]) -> list[Problem]:
    """What ``VALIDATE_INPUTS`` of each node ``among`` says against it, in the order of ``nodes``.

    It is given the values of ``typed``, links as None and their types as ``input_types``; the problems show
    the values of ``nodes``, which a person wrote.
    """
    asked = [
        key
        for key, node in nodes.items()
        if key in among and node["class_type"] in classes and _asks(classes[node["class_type"]])
    ]
    return asyncio.run(_refusals(nodes, typed, classes, asked)) if asked else []


def _asks(facts: ClassFacts) -> bool:
    names, any_name = facts.validator_arguments
    return any_name or bool(names)


async def _refusals(nodes: Prompt, typed: Prompt, classes: Classes, asked: Sequence[str]) -> list[Problem]:
    found: list[Problem] = []
    for key in asked:
        node = nodes[key]
        facts = classes[node["class_type"]]
        names, any_name = facts.validator_arguments
        got = gather(facts, typed[key]["inputs"], {"UNIQUE_ID": key, "PROMPT": {}}, lambda source: None)
        columns = {name: column for name, column in got.columns.items() if any_name or name in names}
        if "input_types" in names:
            columns["input_types"] = (_linked_types(nodes, classes, node),)
        try:
            hook = facts.bind(facts.cls, facts.validator or "", got.hidden)
            answers = await settled(await call_over_lists(facts, hook, columns))
        except Exception as error:
            found.append(_refusal(key, node, "", f"its check of the inputs failed: {error}"))
            continue
        given = [name for name in columns if name != "input_types"]
        for answer in answers:
            if answer is not True and not is_blocker(answer):
                found.append(_refusal(key, node, *_blamed(given, "" if answer is False else str(answer))))
    return found


def _blamed(asked: Sequence[str], answer: str) -> tuple[str, str]:
    """The input that an answer ``input: what is wrong`` names (else all that were asked), and the rest."""
    name, colon, text = answer.partition(": ")
    return (name, text) if colon and name in asked else (", ".join(asked), answer)


def _linked_types(nodes: Prompt, classes: Classes, node: Mapping[str, Any]) -> dict[str, Any]:
    types: dict[str, Any] = {}
    for name, source, slot in links_of(node):
        if source in nodes and nodes[source]["class_type"] in classes:
            made = classes[nodes[source]["class_type"]].return_types
            if 0 <= slot < len(made):
                types[name] = made[slot]
    return types


def _refusal(key: str, node: Mapping[str, Any], name: str, text: str) -> Problem:
    what = f"is refused: {text.rstrip('. ')}" if text else "is refused by the node"
    return _problem(key, node, name, what, "refused")


def _problem(key: str, node: Mapping[str, Any], name: str, what: str, kind: str) -> Problem:
    return Problem(
        what=what,
        node=key,
        title=title_of(node),
        input=name or "its input",
        value=node["inputs"].get(name),
        class_type=node["class_type"],
        kind=kind,
    )
