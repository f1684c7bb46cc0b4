"""What a piece of work needs of memory, as a value, and where counts are remembered. Imports no torch.

A `Task` is one network at one thing: training it, drawing or encoding with it, at some size. Its `Footprint`
is measured under fake tensors (`jobs.measured`), which takes no weights but some seconds; so it is kept in
the cache folder by the digest of the task, and those of the official models come with the package.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cascade_train.files import write_with
from cascade_train.jobs.tasks import Footprint, Task

FOLDER = "memory"
"""In the cache folder."""


def counted(task: Task, folder: Path) -> Footprint:
    """The count of ``task``: bundled, remembered in the cache ``folder``, else measured and remembered."""
    task = replace(task, device=_device())
    known = remembered(task, folder)
    if known is None:
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
    try:
        return Footprint(**{key: int(value) for key, value in found.items()}) if found is not None else None
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
