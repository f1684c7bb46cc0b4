"""Which nodes of a prompt run, and which of their wires go in a circle. No recursion: graphs may be long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def links_of(node: Mapping[str, Any]) -> Iterator[str]:
    """Ids of the nodes that feed ``node``."""
    for value in node["inputs"].values():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], (str, int)):
            yield str(value[0])


def needed(nodes: Mapping[str, Mapping[str, Any]], outputs: Iterable[str]) -> set[str]:
    """``outputs`` and every node that they need."""
    found: set[str] = set()
    pending = list(outputs)
    while pending:
        key = pending.pop()
        if key not in found and key in nodes:
            found.add(key)
            pending += links_of(nodes[key])
    return found


def circles(nodes: Mapping[str, Mapping[str, Any]], among: Iterable[str]) -> list[list[str]]:
    """One circle of ids for each back edge of a depth-first walk, in the direction of the data; at most ten."""
    found: list[list[str]] = []
    done: set[str] = set()
    for start in among:
        if start in done:
            continue
        trail: list[str] = []
        on_trail: set[str] = set()
        walk: list[tuple[str, Iterator[str]]] = []

        def enter(key: str) -> None:
            trail.append(key)
            on_trail.add(key)
            walk.append((key, links_of(nodes[key])))

        enter(start)
        while walk:
            key, feeders = walk[-1]
            feeder = next(feeders, None)
            if feeder is None:
                walk.pop()
                trail.pop()
                on_trail.discard(key)
                done.add(key)
            elif feeder in on_trail:
                if len(found) < 10:
                    found.append(trail[trail.index(feeder):][::-1])
            elif feeder not in done and feeder in nodes:
                enter(feeder)
    return found
