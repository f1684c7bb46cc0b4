"""Where a mistake was made that a later node found."""

from __future__ import annotations

from cascade_train.errors import CascadeError
from cascade_train.graph.check.problems import short
from cascade_train.graph.run.prompt import LiveGraph


def typed_in(live: LiveGraph, node_id: str, error: Exception) -> str:
    """A sentence that names the node before ``node_id`` whose input holds what ``error`` is about, or ""."""
    if not isinstance(error, CascadeError) or error.typed is None:
        return ""
    name, text = error.typed
    pending, seen = [node_id], {node_id}
    while pending:
        here = pending.pop(0)
        value = live.get_node(here).get("inputs", {}).get(name)
        if isinstance(value, str) and text in value:
            return f" See {live.title(here)} (#{here}): {name} = {short(value)}."
        sources = [source for _, source, _ in live.links(here) if live.has_node(source)]
        pending += [source for source in dict.fromkeys(sources) if source not in seen]
        seen.update(sources)
    return ""
