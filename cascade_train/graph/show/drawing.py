"""A graph drawn as text: one node a line, its wires as rails on the left down to where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cascade_train.graph.check.problems import one_line
from cascade_train.graph.file.document import GROUP_NODE
from cascade_train.graph.show.summary import NodeView

MOST_RAILS = 12
"""Wider graphs keep their names and lose the rails: nobody follows more."""


def draw_graph(nodes: Sequence[NodeView], width: int | None = 100) -> list[str]:
    """Lines of text for ``nodes``, which come in the order of the data.

    Args:
        nodes: see `summary`.
        width: values are cut so that lines stay about so wide; None shows them in full.
    """
    last_use = {feeder: place for place, node in enumerate(nodes) for _, feeder, _ in node.wires}
    rails: list[str | None] = []
    lines = []
    titles = {node.id: node.title for node in nodes}
    drawn = _most_rails(nodes, last_use) <= MOST_RAILS
    for place, node in enumerate(nodes):
        feeders = {feeder for _, feeder, _ in node.wires}
        used = [column for column, rail in enumerate(rails) if rail in feeders]
        ending = {column for column in used if last_use[rails[column] or ""] == place}
        own = _column(rails, used, ending)
        mark = "■" if node.output_node else "●"
        head = _row(rails, used, ending, own, mark) if drawn else f"{mark} "
        for column in ending:
            rails[column] = None
        if node.id in last_use:
            rails += [None] * (own + 1 - len(rails))
            rails[own] = node.id
        while rails and rails[-1] is None:
            rails.pop()
        below = [*rails, *[None] * (own + 1 - len(rails))]
        body = "".join("│ " if rail is not None else "  " for rail in below) if drawn else "  "
        lines.append(head + _title(node))
        lines += [f"{body}  {text}" for text in _details(node, titles, width)]
    return lines


def _title(node: NodeView) -> str:
    title = one_line(node.title)
    kind = "" if node.class_type == node.title else f"  {one_line(node.class_type)}"
    mark = "[group node]" if node.class_type.startswith(GROUP_NODE) else "[unknown here]"
    return f"{title} ({one_line(node.id)}){kind}{'' if node.known else f'  {mark}'}"


def _details(node: NodeView, titles: dict[str, str], width: int | None) -> Iterator[str]:
    for name, feeder, output in node.wires:
        origin = f"{one_line(titles.get(feeder, '?'))} ({one_line(feeder)})"
        yield f"{one_line(name)} ← {origin} {one_line(output)}"
    line = ""
    for name, value in node.values.items():
        text = f"{one_line(name)}={one_line(str(value), 10_000 if width is None else 60)}"
        if line and (width is None or len(line) + len(text) > width - 20):
            yield line
            line = ""
        line += ("  " if line else "") + text
    if line:
        yield line


def _most_rails(nodes: Sequence[NodeView], last_use: dict[str, int]) -> int:
    open_now: set[str] = set()
    most = 0
    for place, node in enumerate(nodes):
        open_now = {key for key in open_now if last_use[key] > place}
        if node.id in last_use:
            open_now.add(node.id)
        most = max(most, len(open_now))
    return most


def _column(rails: list[str | None], used: list[int], ending: set[int]) -> int:
    """On its only wire's rail if that ends here, else in the first gap right of its wires."""
    if len(used) == 1 and ending:
        return used[0]
    start = max(used) + 1 if used else 0
    return next(
        (column for column in range(start, len(rails)) if rails[column] is None), max(len(rails), start)
    )


def _row(rails: list[str | None], used: list[int], ending: set[int], own: int, mark: str) -> str:
    """The rails with the node's mark among them and a bar to it from each wire that goes into it.

    A rail that a bar only passes stays ``│``; one that it joins is ``├``, ``┼``, ``╰`` or ``┴``.
    """
    first = min(used, default=own)
    text = ""
    for column in range(max(len(rails), own + 1)):
        rail = rails[column] if column < len(rails) else None
        bar = first < column < own
        if column == own:
            sign = mark
        elif column in ending:
            sign = "┴" if bar else "╰"
        elif column in used:
            sign = "┼" if bar else "├"
        else:
            sign = "│" if rail is not None else "─" if bar else " "
        text += sign + ("─" if first <= column < own else " ")
    return text
