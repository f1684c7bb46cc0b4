"""From a node's entry in a prompt to the calls of its class's functions: gathering, lists, blockers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.graph.check.classes import ClassFacts
from cascade_train.graph.file.api import is_link, unwrapped
from cascade_train.host.blocker import is_blocker

Columns = dict[str, Sequence[Any]]
"""Input name -> its values, one for each call (a single value counts for every call)."""


@dataclass
class Gathered:
    """A node's inputs as far as they are known. ``missing`` are links whose source has no result yet."""

    columns: Columns
    missing: set[str] = field(default_factory=set)
    hidden: dict[str, Any] = field(default_factory=dict)
    """Hidden values by kind (``"UNIQUE_ID"``), which V3 nodes get beside their inputs."""


def gather(
    facts: ClassFacts,
    inputs: Mapping[str, Any],
    hidden_values: Mapping[str, Any],
    result_of: Callable[[str], Sequence[Sequence[Any] | None] | None],
) -> Gathered:
    """Collect a node's inputs; a link without a result becomes None and is noted as missing."""
    got = Gathered({})
    for name, value in inputs.items():
        entry = facts.declared(name)
        if is_link(value) and not (entry and entry.options.get("rawLink")):
            if not facts.takes_link(name):
                continue
            outputs, slot = result_of(value[0]), int(value[1])
            column = outputs[slot] if outputs is not None and 0 <= slot < len(outputs) else None
            if column is None:
                got.missing.add(name)
            got.columns[name] = (None,) if column is None else column
        elif entry is not None:
            got.columns[name] = (unwrapped(value),)
    for name, kind in facts.hidden.items():
        if isinstance(kind, str):
            value = hidden_values.get(kind)
            if facts.is_v3:
                got.hidden[kind] = value
            elif kind in HIDDEN_KINDS:
                got.columns[name] = (value,)
    return got


HIDDEN_KINDS = frozenset(
    {"PROMPT", "DYNPROMPT", "EXTRA_PNGINFO", "UNIQUE_ID", "AUTH_TOKEN_COMFY_ORG", "API_KEY_COMFY_ORG"}
)


async def call_over_lists(
    facts: ClassFacts,
    function: Callable[..., Any],
    columns: Columns,
    *,
    on_blocked: Callable[[Any], Any] = lambda blocker: blocker,
    before_call: Callable[[int], None] = lambda index: None,
) -> list[Any]:
    """Call ``function`` once for each row of ``columns`` (shorter columns repeat their last value).

    INPUT_IS_LIST gets all columns in one call. A row that holds a blocker is not called; what
    ``on_blocked`` makes of the blocker stands for its result. Results of async functions that need to wait
    come back as running tasks; use `settled` on them.
    """
    rows: list[dict[str, Any]]
    if facts.input_is_list:
        rows = [{name: list(column) for name, column in columns.items()}]
    elif not columns:
        rows = [{}]
    else:
        empty = [name for name, column in columns.items() if not len(column)]
        if empty:
            raise CascadeError(
                f"the list that reaches the input '{empty[0]}' is empty",
                fix="Give it at least one item, or do not link it",
            )
        count = max(len(column) for column in columns.values())
        rows = [
            {name: column[i if i < len(column) else -1] for name, column in columns.items()}
            for i in range(count)
        ]
    results: list[Any] = []
    for index, row in enumerate(rows):
        blocker = _blocker_in(row, facts.input_is_list)
        if blocker is not None:
            results.append(on_blocked(blocker))
            continue
        before_call(index)
        result = function(**row)
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(_awaited(result))
            await asyncio.sleep(0)
            result = task.result() if task.done() else task
        results.append(result)
    return results


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _blocker_in(row: Mapping[str, Any], lists: bool) -> Any:
    for value in row.values():
        for item in value if lists else (value,):
            if is_blocker(item):
                return item
    return None


def running(results: Sequence[Any]) -> list[asyncio.Future[Any]]:
    """The results that are still being awaited."""
    return [r for r in results if isinstance(r, asyncio.Future) and not r.done()]


async def settled(results: Sequence[Any]) -> list[Any]:
    """Wait for every running task; raises the first one's exception."""
    tasks = running(results)
    if tasks:
        await asyncio.wait(tasks)
    return [r.result() if isinstance(r, asyncio.Future) else r for r in results]
