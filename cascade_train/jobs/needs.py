"""What a piece of work needs of memory, as a value, and where counts are remembered. Imports no torch.

A `Task` is one network at one thing: training it, drawing or encoding with it, at some size. Its `Footprint`
is measured under fake tensors (`jobs.measured`), which takes no weights but some seconds; so it is kept in
the cache folder by the digest of the task, and those of the official models come with the package: of LoRAs
for two ranks and two batches, between and beyond which bytes go in a straight line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cascade_train.files import write_with
from cascade_train.jobs.tasks import Footprint, Task

FOLDER = "memory"
"""In the cache folder."""
RANKS = (16, 64)
BATCHES = (1, 4)
"""Of LoRAs whose counts come with the package."""
MOST_RANK, MOST_BATCH = 128, 16
"""How far the straight lines through them are followed."""


def counted(task: Task, folder: Path, tell: Callable[[Task], None] = lambda task: None) -> Footprint:
    """The count of ``task``: bundled, remembered in the cache ``folder``, else measured and remembered, which
    takes some seconds that ``tell`` is called before."""
    task = replace(task, device=_device())
    known = remembered(task, folder)
    if known is None:
        tell(task)
        from cascade_train.jobs.measured import measure

        known = measure(task)
        with suppress(OSError):  # remembering saves time alone
            write_with(_file(task, folder), lambda beside: beside.write_text(json.dumps(asdict(known))))
    return known


def remembered(task: Task, folder: Path) -> Footprint | None:
    """The count of ``task`` where nothing needs to be measured."""
    found = bundled().get(task.name)
    if found is None:
        with suppress(OSError, ValueError, TypeError):
            found = json.loads(_file(task, folder).read_text(encoding="utf-8"))
    return _footprint(found) or between(task)


def corners(task: Task) -> list[list[Task]]:
    """The LoRAs between which ``task`` lies: a row for each of `RANKS`, or its own rank alone where that is
    one of them, with a task for each of `BATCHES`, likewise."""
    ranks = (task.rank,) if task.rank in RANKS else RANKS
    batches = (task.batch,) if task.batch in BATCHES else BATCHES
    return [[replace(task, rank=rank, batch=batch) for batch in batches] for rank in ranks]


def between(task: Task, known: Callable[[str], Any] | None = None) -> Footprint | None:
    """The count of a LoRA of any rank and batch from those that are ``known`` (None: bundled).

    What is alive at the peak is frozen, goes with the rank, with the batch, or with both.
    """
    if task.kind != "train" or task.adapts != "lora":
        return None
    if not (1 <= task.rank <= MOST_RANK and task.batch <= MOST_BATCH):
        return None
    look = known or bundled().get
    rows = [[_footprint(look(each.name)) for each in row] for row in corners(task)]
    by_rank = [_line(BATCHES, [each for each in row if each is not None], task.batch) for row in rows]
    if any(None in row for row in rows):
        return None
    return _line(RANKS, [each for each in by_rank if each is not None], task.rank)


def _line(at: tuple[int, int], ends: list[Footprint], where: int) -> Footprint | None:
    """The footprint at ``where`` on the straight line through ``ends`` at ``at``; a single one as it is."""
    if len(ends) < 2:
        return ends[0] if ends else None
    share = (where - at[0]) / (at[1] - at[0])
    first, last = (asdict(end) for end in ends)
    return Footprint(**{key: max(0, round(first[key] + share * (last[key] - first[key]))) for key in first})


def _footprint(found: Any) -> Footprint | None:
    names = {field.name for field in fields(Footprint)}
    try:
        return Footprint(**{key: int(value) for key, value in found.items() if key in names})
    except (TypeError, ValueError, AttributeError):
        return None


BUNDLED = Path(__file__).resolve().parent / "counted.json"


@lru_cache(maxsize=1)
def bundled() -> dict[str, Any]:
    """Counts of the official models and nano that come with the package, by `Task.name`."""
    try:
        return json.loads(BUNDLED.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _file(task: Task, folder: Path) -> Path:
    return folder / FOLDER / f"{task.name}.json"


def _device() -> str:
    """The kind of device whose kernels are counted: CUDA's keep a little more than the CPU's under autocast,
    and can be asked only where there is one."""
    return "cpu"
