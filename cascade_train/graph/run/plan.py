"""What a run would do, found without doing it.

Nodes that only describe something (models, datasets, settings: links of type ``CASCADE_…``, and primitives)
are evaluated. A class whose work can be foreseen has ``planned(self, **inputs)``, which returns its outputs
as a tuple (None where only running can tell), a line for people, and whether the result is there already
(None: it only describes). What such a node does with an output that only running can tell is unknown, and
the node that it waits for is named. Everything else would run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cascade_train.errors import CascadeError
from cascade_train.graph.check.calls import call_over_lists, gather, settled
from cascade_train.graph.check.checked import Checked
from cascade_train.graph.check.classes import ClassFacts
from cascade_train.graph.check.problems import one_line
from cascade_train.graph.run.outputs import in_columns, returned
from cascade_train.graph.run.prompt import LiveGraph

Will = Literal["describes", "on disk", "runs", "fails", "unknown"]


@dataclass
class Planned:
    """What one node would do. ``text`` says more where the node can tell."""

    node_id: str
    title: str
    class_type: str
    is_output: bool
    will: Will
    text: str = ""


Seen = Callable[[Planned, Mapping[str, Any], Sequence[str]], None]
"""Told of each node: its inputs (those of the last call; what only running can tell is left out), and the
nodes that it is wired to."""


def dry_run(
    checked: Checked,
    seen: Seen = lambda node, inputs, sources: None,
    instead: Mapping[str, Any] | None = None,
) -> list[Planned]:
    """Every node that would be asked for, each after those it needs.

    Args:
        seen: told of each node as soon as it is known what it would do.
        instead: values by type of link, to go on with where only running can tell.
    """
    return asyncio.run(_dry_run(checked, seen, instead or {}))


async def _dry_run(checked: Checked, seen: Seen, instead: Mapping[str, Any]) -> list[Planned]:
    live = LiveGraph(checked.prompt, checked.classes)
    known: dict[str, list[list[Any] | None]] = {}
    waits: dict[str, list[str]] = {}
    found: list[Planned] = []
    for node_id in checked.needed:
        node = live.get_node(node_id)
        facts = checked.classes[node["class_type"]]
        hidden = {"UNIQUE_ID": node_id, "PROMPT": live.original}
        got = gather(facts, node.get("inputs", {}), hidden, known.get)
        entry = Planned(node_id, live.title(node_id), facts.class_type, facts.is_output, "runs")
        found.append(entry)
        inputs = {
            name: values[-1] for name, values in got.columns.items() if values and name not in got.missing
        }
        guessed = [[instead[kind]] if kind in instead else None for kind in facts.return_types]
        if got.missing:
            if any(guessed):
                known[node_id] = guessed
            sources = [source for name, source, _ in live.links(node_id) if name in got.missing]
            waits[node_id] = list(dict.fromkeys(cause for s in sources for cause in waits.get(s, [s])))
            if hasattr(facts.cls, "planned") or _describes(facts):
                entry.will, entry.text = "unknown", _known_when(waits[node_id], live, checked)
            seen(entry, inputs, [source for _, source, _ in live.links(node_id)])
            continue
        try:
            if hasattr(facts.cls, "planned"):
                rows = await call_over_lists(facts, facts.cls().planned, got.columns)
                _, entry.text, there = rows[-1]
                entry.will = "describes" if there is None else "on disk" if there else "runs"
                outputs = _foreseen(in_columns(facts, [row[0] for row in rows]))
                known[node_id] = [own or guess for own, guess in zip(outputs, guessed)]
            elif _describes(facts):
                function = facts.bind(facts.cls if facts.is_v3 else facts.cls(), facts.function, got.hidden)
                values = [
                    returned(facts, r)
                    for r in await settled(await call_over_lists(facts, function, got.columns))
                ]
                known[node_id] = _foreseen(
                    in_columns(facts, [v.values for v in values if v.values is not None])
                )
                entry.will = "describes"
        except CascadeError as error:
            entry.will, entry.text = "fails", str(error) + live.where_typed(node_id, error)
        seen(entry, inputs, [source for _, source, _ in live.links(node_id)])
    return found


def _foreseen(columns: Sequence[list[Any]]) -> list[list[Any] | None]:
    """The outputs, with None for each that only running can tell."""
    return [None if any(value is None for value in column) else column for column in columns]


def _known_when(causes: Sequence[str], live: LiveGraph, checked: Checked) -> str:
    """``known only when #7 is drawn``: what has to run before more can be said."""
    kinds = {
        kind for each in causes for kind in checked.classes[live.get_node(each)["class_type"]].return_types
    }
    one = len(causes) == 1
    verb = (
        ("is drawn" if one else "are drawn")
        if kinds & {"IMAGE", "LATENT"}
        else "has run"
        if one
        else "have run"
    )
    return f"known only when {' and '.join(f'#{each}' for each in causes)} {verb}"


def _describes(facts: ClassFacts) -> bool:
    kinds = [kind for kind in facts.return_types if isinstance(kind, str)]
    if facts.is_output or not kinds or "CASCADE_RUN" in kinds:
        return False
    return all(kind.startswith("CASCADE_") for kind in kinds) or not facts.uses_torch


def as_text(planned: Sequence[Planned]) -> str:
    """The plan as a table for people."""
    lines = ["Nothing has run. A run would do this:"]
    for node in planned:
        mark = "output" if node.is_output else ""
        text = f"  {one_line(node.text, 300)}" if node.text else ""
        lines.append(f"  {node.will:<10}{mark:<8}{one_line(node.title)} (#{one_line(node.node_id)}){text}")
    return "\n".join(lines)
