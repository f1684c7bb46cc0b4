"""Which nodes of a prompt run, in which order data flows, and which wires go in a circle. No recursion:
graphs may be long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cascade_train.graph.file.api import Prompt, links_of

MOST_CIRCLES = 10

Takes = Callable[[Mapping[str, Any], str], bool]
"""Whether a link at a node's input of that name reaches the node; see `Classes.takes`."""


@dataclass(frozen=True)
class Reached:
    """What some nodes need. ``order`` holds them too, each id after those that feed it; ``circles`` are ids
    in the data's direction, one for each wire that leads back, at most `MOST_CIRCLES`."""

    order: tuple[str, ...]
    circles: tuple[tuple[str, ...], ...]


def reached(nodes: Prompt, roots: Iterable[str], takes: Takes = lambda node, name: True) -> Reached:
    """``roots`` and every node that they need; lazy inputs count, what is not in ``nodes`` is passed over."""
    order: dict[str, None] = {}
    circles: list[tuple[str, ...]] = []

    def feeders(key: str) -> Iterator[str]:
        node = nodes[key]
        return reversed([source for name, source, _ in links_of(node) if takes(node, name)])

    for root in roots:
        if root in order or root not in nodes:
            continue
        trail = {root: feeders(root)}
        while trail:
            key = next(reversed(trail))
            feeder = next(trail[key], None)
            if feeder is None:
                del trail[key]
                order[key] = None
            elif feeder in trail:
                if len(circles) < MOST_CIRCLES:
                    ids = list(trail)
                    circles.append(tuple(ids[ids.index(feeder) :][::-1]))
            elif feeder not in order and feeder in nodes:
                trail[feeder] = feeders(feeder)
    return Reached(tuple(order), tuple(circles))
