"""Which results of a run are still wanted: the others are let go, so that a long graph fits in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Holds:
    """Results by key, each held by the nodes that give or take it and have not ended."""

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
