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
    """Circles of ids in the data's direction, one for each back edge of a depth-first walk; at most ten."""
    found: list[list[str]] = []
    done: set[str] = set()
    for start in among:
        if start not in done and start in nodes:
            found += _circles_from(start, nodes, done)
    return found[:10]


def _circles_from(start: str, nodes: Mapping[str, Mapping[str, Any]], done: set[str]) -> Iterator[list[str]]:
    """Walk everything that feeds ``start``; nodes left behind are added to ``done``."""
    trail = {start: links_of(nodes[start])}
    while trail:
        key = next(reversed(trail))
        feeder = next(trail[key], None)
        if feeder is None:
            del trail[key]
            done.add(key)
        elif feeder in trail:
            ids = list(trail)
            yield ids[ids.index(feeder) :][::-1]
        elif feeder not in done and feeder in nodes:
            trail[feeder] = links_of(nodes[feeder])
