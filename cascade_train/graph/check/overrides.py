"""``--set node.input=value`` and ``--only NODE``: names that a person types, found in a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.check.near import alternatives, nearest, with_article
from cascade_train.graph.check.schema import Schema, inputs_of
from cascade_train.graph.check.values import from_text
from cascade_train.graph.file.api import Prompt, title_of
from cascade_train.graph.file.widgets import AUTOGROW, entries_of, is_widget, reads


def find_node(prompt: Prompt, name: str) -> str:
    """The id of the node that ``name`` means: an id, else a title, else a class (case ignored at last).

    Raises:
        CascadeError: there is none (near names are listed), or several have it (their ids are).
    """
    name = name.strip().strip('"').strip()
    if name in prompt:
        return name
    for key_of in (
        title_of,
        lambda node: title_of(node).casefold(),
        lambda node: node["class_type"].casefold(),
    ):
        wanted = name if key_of is title_of else name.casefold()
        found = [key for key, node in prompt.items() if key_of(node) == wanted]
        if len(found) == 1:
            return found[0]
        if found:
            raise CascadeError(
                f"{len(found)} nodes are called '{name}'", fix=f"Use an id: {alternatives(found, 12)}"
            )
    titles = [title_of(node) for node in prompt.values()]
    near = nearest(name, [*titles, *prompt, *(str(node["class_type"]) for node in prompt.values())])
    some = ", ".join(dict.fromkeys(f"'{title}'" for title in titles[:12]))
    raise CascadeError(
        f"no node is called '{name}'",
        fix=f"Nearest: {alternatives(near)}" if near else f"The workflow has {some}",
    )


def apply_settings(
    prompt: Prompt, settings: Iterable[str], object_info: Mapping[str, Schema]
) -> dict[str, dict[str, Any]]:
    """A copy of the prompt with each ``node.input=value`` in it.

    ``node`` is a title or an id and may stand in quotes; ``value`` is read as the type that the schema
    gives the input.

    Raises:
        CascadeError: the form, node, input or value is wrong; near names are listed.
    """
    changed = {key: {**node, "inputs": dict(node["inputs"])} for key, node in prompt.items()}
    wrong: list[CascadeError] = []
    for setting in settings:
        try:
            target, value = _split(setting)
            key, name = _target(changed, target, object_info, setting)
            changed[key]["inputs"][name] = _typed(changed[key], name, value, object_info, setting)
        except CascadeError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise CascadeError(f"{len(wrong)} settings are wrong: " + " ".join(str(error) for error in wrong))
    return changed


def _split(setting: str) -> tuple[str, str]:
    target, equals, value = setting.partition("=")
    if not equals or "." not in target:
        raise CascadeError(
            f"--set {setting!r} has not the form node.input=value",
            fix='For example --set "Train Steps.steps=200"',
        )
    return target.strip(), value


def _target(prompt: Prompt, target: str, object_info: Mapping[str, Schema], setting: str) -> tuple[str, str]:
    """The node and the input. Both may hold dots, so every dot is tried, the last first."""
    errors = []
    for dot in reversed([i for i, sign in enumerate(target) if sign == "."]):
        node, name = target[:dot], target[dot + 1 :].strip()
        try:
            key = find_node(prompt, node)
        except CascadeError as error:
            errors.append(error)
            continue
        if _settable(prompt[key], name, object_info):
            return key, name
        errors.insert(0, _no_input(prompt[key], name, object_info))
    raise CascadeError(errors[0].what, where=f"--set {setting}", fix=errors[0].fix)


def _settable(node: Mapping[str, Any], name: str, object_info: Mapping[str, Schema]) -> bool:
    schema = object_info.get(node["class_type"])
    if schema is None:
        return name in node["inputs"]
    entry = reads(schema, name)
    return entry is not None and entry.type != AUTOGROW


def _no_input(node: Mapping[str, Any], name: str, object_info: Mapping[str, Schema]) -> CascadeError:
    schema = object_info.get(node["class_type"]) or {}
    names = [entry.name for entry in inputs_of(schema) if is_widget(entry)] or [
        str(key) for key in node["inputs"]
    ]
    near = nearest(name, names)
    fix = f"Nearest: {alternatives(near)}" if near else f"It has {alternatives(names, 12)}"
    return CascadeError(f"'{title_of(node)}' has no input '{name}'", fix=fix)


def _typed(
    node: Mapping[str, Any], name: str, value: str, object_info: Mapping[str, Schema], setting: str
) -> Any:
    schema = object_info.get(node["class_type"])
    entry = reads(schema, name) if schema is not None else None
    if schema is None or entry is None:
        return _guessed(value)
    if not is_widget(entry) and entry.type not in ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO"):
        raise CascadeError(
            f"'{title_of(node)}' takes {with_article(entry.type)} at '{name}', which only a wire can bring",
            where=f"--set {setting}",
            fix=f"It can be given {alternatives([e.name for e in entries_of(schema) if is_widget(e)], 12)}",
        )
    try:
        return from_text(entry, value)
    except CascadeError as error:
        raise CascadeError(error.what, where=f"--set {setting}", fix=error.fix) from None


def _guessed(value: str) -> Any:
    """A value for a class without a schema: JSON when it reads as a plain one, else the text."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, (int, float, bool)) else value
