"""The one place that knows in which format each written file is, and how an older one is brought up to date.

A JSON file says its format under ``"format"``. The format of a kind is the number of its steps here; step n
(from 0) takes a value of format n and returns one of format n + 1. A file without a number is of format 0: it
is from before numbers. Steps are only appended, and readers only ever see the newest format; what lies on
disk stays as it is. A file from a later version of Cascade Train is refused.

Indexes, measures and notes of datasets are not brought up to date: they are cheap beside what they describe,
say their own format, and one of another format is made anew.

To change a file's format: append a step here, write the new form, and keep an old one in a test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError

Step = Callable[[Any], Any]


def _same(value: Any) -> Any:
    """Numbered, and otherwise as before."""
    return value


def _lines(value: Any) -> dict[str, Any]:
    """``notes.json`` was a bare list of lines."""
    return {"lines": value} if isinstance(value, list) else value


STEPS: Mapping[str, Sequence[Step]] = {
    "run": (_same,),
    "checkpoint": (_same,),
    "state": (_same,),
    "trained": (_same,),
    "metrics": (_same,),
    "notes": (_lines,),
    "export": (_same,),
    "holder": (_same,),
    "cache": (_same, _same),
    "nano recipe": (_same,),
    "nano scores": (_same,),
}
"""- ``run``: run.json.
- ``checkpoint``: checkpoint.json.
- ``state``: {"tensors": …} of the state.safetensors beside it, whose format checkpoint.json tells.
- ``trained``: trained.json, and the trained.safetensors beside it.
- ``metrics``: one line of metrics.jsonl; lines say their format from 2 on.
- ``notes``: notes.json.
- ``holder``: holder.json, while a run is trained.
- ``cache``: about.json in a folder of the cache, and the shards beside it; entries have digests from 2 on,
  and what has none is worked out again.
- ``export``: the ``cascade_train.…`` entries in the header of an exported file.
- ``nano recipe``, ``nano scores``: recipe.json and scores.json beside nano's parts."""


def current(kind: str) -> int:
    """The format that files of ``kind`` are written in."""
    return len(STEPS[kind])


def stamped(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """``value`` with the format that it is in, to be written."""
    return {"format": current(kind), **value}


def forward(kind: str, value: Any, where: str) -> dict[str, Any]:
    """``value``, as it was read, in the newest format of ``kind``.

    Raises:
        CascadeError: a later version has written it; ``where`` it lies is told.
        ValueError: it is something else.
    """
    number = value.get("format", 0) if isinstance(value, Mapping) else 0
    if not isinstance(number, int) or not 0 <= number <= current(kind):
        raise CascadeError(
            f"this {kind} is of format {number}, and this version reads formats up to {current(kind)}",
            where=where,
            fix="Update Cascade Train",
        )
    for step in STEPS[kind][number:]:
        value = step(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is no {kind}")
    return {**value, "format": current(kind)}


def read_forward(path: Path, kind: str) -> dict[str, Any]:
    """The JSON file ``path`` in the newest format of ``kind``.

    Raises:
        OSError, ValueError: it is not there, or not JSON.
        CascadeError: a later version has written it.
    """
    return forward(kind, json.loads(path.read_text(encoding="utf-8")), str(path))
