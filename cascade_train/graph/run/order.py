"""Which node runs next. The same graph gives the same order in every process."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from cascade_train.graph.check.classes import ClassFacts
from cascade_train.graph.file.api import id_order
from cascade_train.graph.run.prompt import LiveGraph

Rank = tuple[object, ...]


class Schedule:
    """Nodes that still have to run, each with what it waits for.

    Args:
        facts_of: class facts by node id.
        has_result: whether a node's result is there already (cached or done).
    """

    def __init__(
        self, live: LiveGraph, facts_of: Callable[[str], ClassFacts], has_result: Callable[[str], bool]
    ) -> None:
        self._live, self._facts_of, self._has_result = live, facts_of, has_result
        self._waits: dict[str, set[str]] = {}
        self._feeds: dict[str, set[str]] = {}
        self._roots: set[str] = set()
        self._held: set[str] = set()
        self._heap: list[tuple[Rank, str]] = []
        self._distance: Mapping[str, int] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._waits

    def pending(self) -> list[str]:
        return sorted(self._waits, key=id_order)

    def measure(self, outputs: Iterable[str]) -> None:
        """Note how far each node is from the nearest output: nearer ones run first, so that a person sees
        a picture before the next long step."""
        distance: dict[str, int] = {}
        layer, steps = list(outputs), 0
        while layer:
            following: list[str] = []
            for node_id in layer:
                if node_id in distance or not self._live.has_node(node_id):
                    continue
                distance[node_id] = steps
                following.extend(source for _, source, _ in self._live.links(node_id))
            layer, steps = following, steps + 1
        self._distance = distance

    def _rank(self, node_id: str) -> Rank:
        real = self._live.get_real_node_id(node_id)
        facts = self._facts_of(node_id)
        far = 0 if facts.is_output else self._distance.get(real, 0)
        return (not facts.is_async, far, id_order(real), id_order(node_id))

    def add_root(self, node_id: str) -> None:
        """An output that has to run, and all that it needs."""
        self._roots.add(node_id)
        self._add(node_id)

    def _add(self, node_id: str) -> None:
        stack = [node_id]
        while stack:
            current = stack.pop()
            if current in self._waits or self._has_result(current):
                continue
            waits = self._waits[current] = set()
            self._feeds.setdefault(current, set())
            facts = self._facts_of(current)
            for name, source, _ in self._live.links(current):
                if not facts.is_lazy(name) and not self._has_result(source):
                    waits.add(source)
                    self._feeds.setdefault(source, set()).add(current)
                    stack.append(source)
            if not waits:
                heapq.heappush(self._heap, (self._rank(current), current))

    def wait_for(self, node_id: str, source: str) -> None:
        """Let a pending node also wait for ``source``, which is added if need be."""
        if self._has_result(source):
            return
        self._add(source)
        self._waits[node_id].add(source)
        self._feeds.setdefault(source, set()).add(node_id)

    def take(self) -> str | None:
        """The next node that waits for nothing; None when there is none at the moment."""
        while self._heap:
            _, node_id = heapq.heappop(self._heap)
            if node_id in self._waits and not self._waits[node_id] and node_id not in self._held:
                return node_id
        return None

    def put_back(self, node_id: str) -> None:
        """Return a taken node, which runs again once nothing it waits for is pending."""
        if not self._waits[node_id] and node_id not in self._held:
            heapq.heappush(self._heap, (self._rank(node_id), node_id))

    def hold(self, node_id: str) -> None:
        """Keep a node back until `release` (an async function of it is running)."""
        self._held.add(node_id)

    def release(self, node_id: str) -> None:
        self._held.discard(node_id)
        if node_id in self._waits:
            self.put_back(node_id)

    def done(self, node_id: str) -> None:
        """A node has its result."""
        self._waits.pop(node_id, None)
        for follower in self._feeds.pop(node_id, ()):
            waits = self._waits.get(follower)
            if waits is not None:
                waits.discard(node_id)
                if not waits:
                    self.put_back(follower)

    def fail(self, node_id: str) -> list[str]:
        """Drop a node that failed, all that depend on it, and all that only those needed.

        Returns the dependants, in id order.
        """
        lost: set[str] = set()
        stack = [node_id]
        while stack:
            for follower in self._feeds.get(stack.pop(), ()):
                if follower in self._waits and follower not in lost:
                    lost.add(follower)
                    stack.append(follower)
        for gone in (node_id, *lost):
            self._waits.pop(gone, None)
            self._feeds.pop(gone, None)
            self._held.discard(gone)
        self._prune()
        return sorted(lost - {node_id}, key=id_order)

    def _prune(self) -> None:
        needed: set[str] = set()
        stack = [root for root in self._roots if root in self._waits]
        while stack:
            current = stack.pop()
            if current in needed:
                continue
            needed.add(current)
            stack.extend(self._waits.get(current, ()))
        for unneeded in set(self._waits) - needed:
            del self._waits[unneeded]
            self._feeds.pop(unneeded, None)

    def cycle(self) -> list[str]:
        """The pending nodes on a cycle or behind one: what remains when all ready ones are taken off."""
        waits = {node: {s for s in sources if s in self._waits} for node, sources in self._waits.items()}
        while True:
            free = [node for node, sources in waits.items() if not sources]
            if not free:
                return sorted(waits, key=id_order)
            for node in free:
                del waits[node]
            for sources in waits.values():
                sources.difference_update(free)
