"""An API prompt: what a node is in it, what a link is, and what a person calls a node."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

Prompt = Mapping[str, Mapping[str, Any]]
"""Node id -> ``{"class_type": str, "inputs": {name: value or link}, "_meta": {"title": str}}``."""


def is_node(value: Any) -> bool:
    """Whether ``value`` has the shape of a prompt's node."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("class_type"), str)
        and isinstance(value.get("inputs"), Mapping)
    )


def is_link(value: Any) -> bool:
    """Whether an input's value is a link: exactly ``[node id, slot]``, a text and a number."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], (int, float))
        and not isinstance(value[1], bool)
        and math.isfinite(value[1])
    )


def links_of(node: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Every linked input of a node as (input name, source id, source slot)."""
    for name, value in (node.get("inputs") or {}).items():
        if is_link(value):
            yield name, value[0], int(value[1])


def with_text_ids(prompt: Mapping[Any, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """A copy of ``prompt`` whose ids are texts, also in links: scripts write numbers, ``[4, 0]``.

    A list ``[4, 0]`` where no node is called 4 stays as it is.
    """
    ids = {str(key) for key in prompt}

    def text_id(value: Any) -> Any:
        if isinstance(value, list) and len(value) == 2 and type(value[0]) is int and str(value[0]) in ids:
            return [str(value[0]), value[1]]
        return value

    return {
        str(key): {**node, "inputs": {name: text_id(value) for name, value in node["inputs"].items()}}
        for key, node in prompt.items()
    }


def unwrapped(value: Any) -> Any:
    """The list in ``{"__value__": […]}``, since a bare one would be a link; any other value as it is."""
    return value["__value__"] if isinstance(value, Mapping) and "__value__" in value else value


def title_of(node: Mapping[str, Any], class_title: str = "") -> str:
    """What a person calls the node: its title in the graph, else ``class_title``, else its class's id."""
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, Mapping) else None
    return str(title or class_title or node.get("class_type", "?"))


_DIGITS = re.compile(r"(\d+)")


def id_order(node_id: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for node ids, numbers by value: ``2`` before ``10``, ``3`` before ``3:1``."""
    parts = _DIGITS.split(node_id)
    return tuple(
        (0, int(p), "") if p.isdigit() and p.isascii() and len(p) < 100 else (1, 0, p) for p in parts if p
    )
