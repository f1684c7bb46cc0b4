"""The prompt while it runs: the nodes of the file and those that nodes add by expansion."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Prompt = Mapping[str, Mapping[str, Any]]
"""API form: node id -> ``{"class_type": str, "inputs": {name: value or link}, "_meta": {"title": str}}``."""


def is_link(value: Any) -> bool:
    """Whether an input value is a link: exactly ``[node id, slot]``."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], (int, float))
        and not isinstance(value[1], bool)
    )


_DIGITS = re.compile(r"(\d+)")


def id_order(node_id: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key for node ids, numbers by value: ``2`` before ``10``, ``3`` before ``3:1``."""
    parts = _DIGITS.split(node_id)
    return tuple((0, int(p), "") if p.isdigit() and p.isascii() else (1, 0, p) for p in parts if p)


class LiveGraph:
    """The prompt and everything that was added to it during one run.

    Nodes may ask for it as the hidden input ``DYNPROMPT``; its method names are those that node packs
    written for ComfyUI call.
    """

    def __init__(self, prompt: Prompt, class_names: Mapping[str, str] | None = None) -> None:
        self.original = prompt
        self._class_names = class_names or {}
        self.added: dict[str, Mapping[str, Any]] = {}
        self._parent: dict[str, str] = {}
        self._display: dict[str, str] = {}

    def get_node(self, node_id: str) -> Mapping[str, Any]:
        """The node's entry; KeyError when there is none of that id."""
        node = self.added.get(node_id)
        return self.original[node_id] if node is None else node

    def has_node(self, node_id: str) -> bool:
        return node_id in self.added or node_id in self.original

    def add_ephemeral_node(self, node_id: str, node: Mapping[str, Any], parent: str, display: str) -> None:
        """Add a node made by ``parent``'s expansion; its progress is shown at ``display``."""
        self.added[node_id] = node
        self._parent[node_id] = parent
        self._display[node_id] = display

    def get_real_node_id(self, node_id: str) -> str:
        """The node of the file that (through any number of expansions) made this one, or itself."""
        while node_id in self._parent:
            node_id = self._parent[node_id]
        return node_id

    def get_parent_node_id(self, node_id: str) -> str | None:
        return self._parent.get(node_id)

    def get_display_node_id(self, node_id: str) -> str:
        while node_id in self._display:
            node_id = self._display[node_id]
        return node_id

    def all_node_ids(self) -> set[str]:
        return {*self.original, *self.added}

    def get_original_prompt(self) -> Prompt:
        return self.original

    def links(self, node_id: str) -> Iterator[tuple[str, str, int]]:
        """Every linked input of a node as (input name, source id, source slot)."""
        for name, value in self.get_node(node_id).get("inputs", {}).items():
            if is_link(value):
                yield name, value[0], int(value[1])

    def title(self, node_id: str) -> str:
        """What a person calls the node: its title, else its class's name."""
        node = self.get_node(node_id)
        meta = node.get("_meta")
        title = meta.get("title") if isinstance(meta, Mapping) else None
        class_type = str(node.get("class_type", "?"))
        return str(title) if title else self._class_names.get(class_type, class_type)
