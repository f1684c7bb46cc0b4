"""What a run would do, found without doing it.

Nodes that only describe something (models, datasets, settings: links of type ``CASCADE_…``, and primitives)
are evaluated. A class whose work can be foreseen has ``planned(self, **inputs)``, which returns its outputs
as a tuple (None where only running can tell), a line for people, and whether the result is there already
(None: it only describes). Everything else would run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cascade_train.errors import CascadeError
from cascade_train.graph.check.problems import one_line
from cascade_train.graph.run.classes import ClassFacts
from cascade_train.graph.run.execute import needed_nodes, prepared
from cascade_train.graph.run.inputs import call_over_lists, gather, merged, returned, settled
from cascade_train.graph.run.prompt import Prompt
from cascade_train.graph.run.typed import typed_in
from cascade_train.host.base import Host

Will = Literal["describes", "on disk", "runs", "fails"]


@dataclass
class Planned:
    """What one node would do. ``text`` says more where the node can tell."""

    node_id: str
    title: str
    class_type: str
    is_output: bool
    will: Will
    text: str = ""


def plan(
    prompt: Prompt, classes: Mapping[str, type], host: Host, *, only: Iterable[str] = ()
) -> list[Planned]:
    """Every node that would be asked for, each after those it needs.

    Raises:
        CascadeError: as `execute.run_prompt` does before anything runs.
    """
    return asyncio.run(_plan(prompt, classes, host, only))


async def _plan(
    prompt: Prompt, classes: Mapping[str, type], host: Host, only: Iterable[str]
) -> list[Planned]:
    ready = await prepared(prompt, classes, only)
    live, registry = ready.live, ready.registry
    known: dict[str, list[list[Any]]] = {}
    found: list[Planned] = []
    for node_id in needed_nodes(live, registry, ready.roots, sources_first=True):
        node = live.get_node(node_id)
        facts = registry[node["class_type"]]
        hidden = {"UNIQUE_ID": node_id, "PROMPT": live.original}
        got = gather(facts, node.get("inputs", {}), hidden, known.get)
        entry = Planned(node_id, live.title(node_id), facts.class_type, facts.is_output, "runs")
        found.append(entry)
        if got.missing:
            continue
        try:
            if hasattr(facts.cls, "planned"):
                rows = await call_over_lists(facts, facts.cls().planned, got.columns)
                _, entry.text, there = rows[-1]
                entry.will = "describes" if there is None else "on disk" if there else "runs"
                known[node_id] = _foreseen(merged(facts, [row[0] for row in rows]))
            elif _describes(facts):
                function = facts.bind(facts.cls if facts.is_v3 else facts.cls(), facts.function, got.hidden)
                values = [
                    returned(facts, r)
                    for r in await settled(await call_over_lists(facts, function, got.columns))
                ]
                known[node_id] = merged(facts, [v.values for v in values if v.values is not None])
                entry.will = "describes"
        except CascadeError as error:
            entry.will, entry.text = "fails", str(error) + typed_in(live, node_id, error)
    return found


def _foreseen(columns: Sequence[list[Any]]) -> list[list[Any]]:
    """The outputs before the first that only running can tell; what takes a later one counts as unknown."""
    count = next(
        (i for i, column in enumerate(columns) if any(value is None for value in column)), len(columns)
    )
    return list(columns[:count])


def _describes(facts: ClassFacts) -> bool:
    kinds = [kind for kind in facts.return_types if isinstance(kind, str)]
    if facts.is_output or not kinds or "CASCADE_RUN" in kinds:
        return False
    return all(kind.startswith("CASCADE_") for kind in kinds) or not getattr(facts.cls, "USES_TORCH", True)


def as_text(planned: Sequence[Planned]) -> str:
    """The plan as a table for people."""
    lines = ["Nothing has run. A run would do this:"]
    for node in planned:
        mark = "output" if node.is_output else ""
        text = f"  {one_line(node.text, 300)}" if node.text else ""
        lines.append(f"  {node.will:<10}{mark:<8}{one_line(node.title)} (#{one_line(node.node_id)}){text}")
    return "\n".join(lines)
