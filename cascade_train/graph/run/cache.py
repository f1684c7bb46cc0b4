"""Results kept by content: what a node gives depends on its class, its literals and its ancestors'."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_train.graph.check.calls import call_over_lists, gather, settled
from cascade_train.graph.check.classes import Classes
from cascade_train.graph.file.api import is_link
from cascade_train.graph.run.prompt import LiveGraph


@dataclass(frozen=True)
class Result:
    """A node's outputs (one column of values a slot) and what it shows."""

    outputs: list[list[Any]]
    ui: Mapping[str, list[Any]] = field(default_factory=dict)


class ResultCache:
    """Results and node instances that outlive an execution; pass the same one to the next in this process.

    A result is kept while a node of the last prompt (or an expansion of one) has its key.
    """

    def __init__(self) -> None:
        self.results: dict[int, Result] = {}
        self.instances: dict[tuple[str, str], Any] = {}
        self._names: dict[Any, int] = {}
        self._count = itertools.count(1)
        self._children: dict[tuple[str, str], set[int]] = {}

    def name(self, signature: Any) -> int:
        """The number that stands for ``signature`` in this process (equal signatures, equal numbers)."""
        number = self._names.get(signature)
        if number is None:
            number = self._names[signature] = next(self._count)
        return number

    def start(self, keys: Mapping[str, int], nodes: Iterable[tuple[str, str]]) -> None:
        """Forget what the new prompt (its nodes as (id, class), their keys) has no use for."""
        live = set(nodes)
        self._children = {parent: kept for parent, kept in self._children.items() if parent in live}
        wanted = set(keys.values()).union(*self._children.values())
        self.results = {key: value for key, value in self.results.items() if key in wanted}
        self._names = {signature: key for signature, key in self._names.items() if key in wanted}
        self.instances = {who: value for who, value in self.instances.items() if who in live}

    def expanded(self, root: tuple[str, str], keys: Iterable[int], *, first: bool) -> None:
        """Note the keys of nodes that ``root`` made; the ``first`` in an execution replace earlier ones'."""
        known = set() if first else self._children.get(root, set())
        self._children[root] = known | set(keys)

    def instance(self, node_id: str, class_type: str, cls: type) -> Any:
        """The one instance for a node id and class."""
        made = self.instances.get((node_id, class_type))
        if made is None:
            made = self.instances[(node_id, class_type)] = cls()
        return made


class Holds:
    """Results by key, each held by the nodes that give or take it and have not ended; what nobody holds any
    more can be let go, so that a long graph fits in memory."""

    def __init__(self) -> None:
        self._holders: Counter[int] = Counter()
        self._held: dict[str, set[int]] = {}

    def add(self, node_id: str, keys: Iterable[int]) -> None:
        """``node_id`` has yet to end; till then ``keys`` are wanted, its own and of all that feeds it."""
        held = self._held.setdefault(node_id, set())
        new = set(keys) - held
        held |= new
        self._holders.update(new)

    def drop(self, node_id: str) -> list[int]:
        """``node_id`` has ended, whether well or not; the keys that nobody holds any more."""
        keys = self._held.pop(node_id, set())
        self._holders.subtract(keys)
        return sorted(key for key in keys if self._holders[key] <= 0)


class Unequal:
    """A part of a signature that equals nothing, itself in another execution included."""

    __slots__ = ()


class Keys:
    """The cache key of every node of one execution."""

    def __init__(self, live: LiveGraph, classes: Classes, cache: ResultCache) -> None:
        self._live, self._classes, self._cache = live, classes, cache
        self._keys: dict[str, int] = {}
        self.warnings: list[str] = []

    def __getitem__(self, node_id: str) -> int:
        return self._keys[node_id]

    def all(self) -> Mapping[str, int]:
        return self._keys

    async def add(self, node_ids: Iterable[str]) -> None:
        """Compute the keys of nodes and all their ancestors (without recursion: chains are long)."""
        stack, opened = list(node_ids), set()
        while stack:
            node_id = stack[-1]
            if node_id in self._keys:
                stack.pop()
                continue
            if not self._live.has_node(node_id) or not self._is_known(node_id):
                self._keys[node_id] = self._cache.name(Unequal())
                stack.pop()
                continue
            parents = [s for _, s, _ in self._live.links(node_id) if s not in self._keys]
            if parents and node_id not in opened:
                opened.add(node_id)
                stack.extend(parents)
                continue
            self._keys[node_id] = self._cache.name(await self._signature(node_id))
            stack.pop()

    def _is_known(self, node_id: str) -> bool:
        """Nodes that do not run may be of classes that are not here."""
        return self._live.get_node(node_id)["class_type"] in self._classes

    async def _signature(self, node_id: str) -> Any:
        node = self._live.get_node(node_id)
        facts = self._classes[node["class_type"]]
        parts: list[Any] = [facts.class_type, await self._fingerprint(node_id)]
        parts.append(node_id if facts.keyed_by_id else None)
        for name, value in sorted(node.get("inputs", {}).items()):
            if is_link(value):
                if not facts.takes_link(name):
                    continue
                # A parent without a key here is part of a cycle, which the scheduler reports.
                parts.append((name, "link", self._keys.get(value[0], Unequal()), int(value[1])))
            else:
                parts.append((name, frozen(value)))
        return tuple(parts)

    async def _fingerprint(self, node_id: str) -> Any:
        """IS_CHANGED's answer, asked with literal inputs only; an error means: run again."""
        node = self._live.get_node(node_id)
        facts = self._classes[node["class_type"]]
        if facts.fingerprint is None:
            return None
        if "is_changed" in node:
            return frozen(node["is_changed"], exact=False)
        try:
            hidden = {"UNIQUE_ID": node_id, "PROMPT": {}}
            got = gather(facts, node.get("inputs", {}), hidden, lambda source: None)
            function = facts.bind(facts.cls, facts.fingerprint, got.hidden)
            return frozen(await settled(await call_over_lists(facts, function, got.columns)), exact=False)
        except Exception as error:
            self.warnings.append(
                f"{self._live.title(node_id)} (#{node_id}): {facts.fingerprint} failed ({error}), "
                "so it runs again"
            )
            return Unequal()


def frozen(value: Any, *, exact: bool = True) -> Any:
    """``value`` as something hashable that is equal when, and only when, the values are.

    ``exact`` tells 1, 1.0 and True apart (inputs); without it Python's equality decides (IS_CHANGED).
    NaN and live objects equal nothing.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        if value != value:
            return Unequal()
        return (type(value).__name__, value) if exact else value
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        return ("map", frozenset((str(k), frozen(v, exact=exact)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(frozen(v, exact=exact) for v in value))
    return Unequal()
