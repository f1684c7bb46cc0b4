"""The prompt while it runs: the nodes of the file and those that nodes add by expansion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.check.classes import Classes
from cascade_train.graph.check.problems import short
from cascade_train.graph.file.api import Prompt, links_of, title_of


class LiveGraph:
    """The prompt and everything that was added to it during one execution.

    Nodes may ask for it as the hidden input ``DYNPROMPT``; its method names are those that node packs
    written for ComfyUI call.
    """

    def __init__(self, prompt: Prompt, classes: Classes) -> None:
        self.original = prompt
        self._classes = classes
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
        """Every linked input that reaches a node as (input name, source id, source slot)."""
        node = self.get_node(node_id)
        for link in links_of(node):
            if self._classes.takes(node, link[0]):
                yield link

    def title(self, node_id: str) -> str:
        """What a person calls the node: its title, else its class's name."""
        node = self.get_node(node_id)
        return title_of(node, self._classes.title(str(node.get("class_type", ""))))

    def where_typed(self, node_id: str, error: Exception) -> str:
        """A sentence that names the node before ``node_id`` whose input holds what ``error`` is about, or
        "": a later node may find a mistake that was made in an earlier one."""
        if not isinstance(error, CascadeError) or error.typed is None:
            return ""
        name, text = error.typed
        pending, seen = [node_id], {node_id}
        while pending:
            here = pending.pop(0)
            value = self.get_node(here).get("inputs", {}).get(name)
            if (isinstance(value, str) and text in value) or (type(value) is int and str(value) == text):
                return f" See {self.title(here)} (#{here}): {name} = {short(value)}."
            sources = [source for _, source, _ in self.links(here) if self.has_node(source)]
            pending += [source for source in dict.fromkeys(sources) if source not in seen]
            seen.update(sources)
        return ""
