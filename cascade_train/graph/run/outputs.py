"""From what a node's function returned to the node's outputs: one column of values for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_train.graph.check.classes import ClassFacts
from cascade_train.host.blocker import ExecutionBlocker, is_blocker


@dataclass
class Returned:
    """What one call of a node's function gave."""

    values: tuple[Any, ...] | None
    ui: Mapping[str, Any] | None = None
    expand: Mapping[str, Mapping[str, Any]] | None = None


def returned(facts: ClassFacts, result: Any) -> Returned:
    """Read a function's return value: a tuple, a blocker, ``{"ui", "result", "expand"}`` or V3's output.

    Raises:
        TypeError: it is none of these.
    """
    if result is None:
        return Returned(None)
    if is_blocker(result):
        return Returned(_all_blocked(facts, result))
    if isinstance(result, Mapping):
        values = result.get("result")
        if is_blocker(values):
            values = _all_blocked(facts, values)
        return Returned(None if values is None else tuple(values), result.get("ui"), result.get("expand"))
    if hasattr(result, "block_execution") and hasattr(result, "expand"):
        ui = result.ui
        if ui is not None and not isinstance(ui, Mapping):
            ui = ui.as_dict()
        values = result.result
        if result.block_execution is not None:
            values = _all_blocked(facts, ExecutionBlocker(result.block_execution))
        return Returned(None if values is None else tuple(values), ui, result.expand)
    if isinstance(result, (tuple, list)):
        return Returned(tuple(result))
    raise TypeError(
        f"{facts.cls.__name__}.{facts.function} returned {type(result).__name__}; a node returns a tuple "
        f"of its {len(facts.return_types)} outputs, or a dict with 'ui' or 'result'"
    )


def _all_blocked(facts: ClassFacts, blocker: Any) -> tuple[Any, ...]:
    return (blocker,) * len(facts.return_types)


def in_columns(facts: ClassFacts, rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """One column for each output: the calls' values in order, lists of OUTPUT_IS_LIST outputs joined."""
    if not rows:
        return []
    width = len(rows[0])
    flags = facts.output_is_list or (False,) * width
    columns: list[list[Any]] = []
    for slot, is_list in zip(range(width), flags):
        column: list[Any] = []
        for row in rows:
            if is_list and not is_blocker(row[slot]):
                column.extend(row[slot])
            else:
                column.append(row[slot])
        columns.append(column)
    return columns


def merged_ui(uis: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Display values of all calls, joined by key; the first call's keys decide which there are."""
    if not uis:
        return {}
    return {key: [item for ui in uis for item in ui.get(key, ())] for key in uis[0]}
