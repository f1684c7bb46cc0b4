"""What a piece of work needs of memory, as a value, and where counts are remembered. Imports no torch.

A `Task` is one network at one thing: training it, drawing or encoding with it, at some size. Its `Count` is
measured under fake tensors (`jobs.measured`), which takes no weights but some seconds; so it is kept in the
cache folder by the digest of the task, and those of the official models come with the package.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cascade_train.digest import digest
from cascade_train.files import write_with
from cascade_train.models.spec import Part, Precision

COUNTING = 1
"""Raised when equal tasks would be counted otherwise than before."""

FOLDER = "memory"
"""In the cache folder."""

Kind = Literal["train", "draw", "decode", "encode"]


@dataclass(frozen=True)
class Task:
    """One network at one thing.

    Args:
        config: of ``part``, JSON (`models.build`); ``text_config`` of a text model that is trained with it.
        precision: what the weights are held in; ``autocast``: computing in bf16 with fp32 weights.
        batch, height, width: of the input: latents for Stages B and C and for decoding, else pixels.
            A batch of captions has a ``height`` of 1 and their length as ``width``.
        adapts, rank, modules: ``lora`` or ``dora`` beside frozen weights, as `LoRATarget` says it; "" trains
            every weight. Where there are no ``modules``, tokens alone are trained.
        checkpointing: activations are computed again on the way back.
        pieces: whether gradients of earlier parts of the batch are there.
        guided: the batch goes through twice, with and without its condition.
    """

    kind: Kind
    part: Part
    config: str
    precision: Precision = "bf16"
    autocast: bool = False
    batch: int = 1
    height: int = 24
    width: int = 24
    rank: int = 0
    modules: str = ""
    adapts: str = ""
    text_config: str = ""
    tokens: int = 0
    checkpointing: bool = False
    pieces: bool = False
    guided: bool = False
    device: str = "cpu"
    positions: int = 77
    """Of the text's states that Stage C attends to."""

    @property
    def name(self) -> str:
        told = {key: value for key, value in asdict(self).items() if (key, value) != ("positions", 77)}
        return digest({"counting": COUNTING, "task": told})


@dataclass(frozen=True)
class Count:
    """Bytes of a task: ``frozen`` and ``trained`` weights (buffers with the frozen ones), and ``passes``,
    the most that lives beside weights while a batch goes forward and back, gradients included.

    ``linear`` are the numbers in frozen Linear weights, ``rows`` their rows, ``layer`` the numbers of the
    largest; ``small`` the numbers that are trained in tensors of fewer than 4096.
    """

    frozen: int
    trained: int = 0
    passes: int = 0
    linear: int = 0
    rows: int = 0
    layer: int = 0
    small: int = 0


def counted(task: Task, folder: Path) -> Count:
    """The count of ``task``: bundled, remembered in the cache ``folder``, else measured and remembered."""
    task = replace(task, device=_device())
    known = remembered(task, folder)
    if known is None:
        from cascade_train.jobs.measured import measure

        known = measure(task)
        with suppress(OSError):  # remembering saves time alone
            write_with(_file(task, folder), lambda beside: beside.write_text(json.dumps(asdict(known))))
    return known


def remembered(task: Task, folder: Path) -> Count | None:
    """The count of ``task`` where nothing needs to be measured."""
    found = bundled().get(task.name)
    if found is None:
        with suppress(OSError, ValueError, TypeError):
            found = json.loads(_file(task, folder).read_text(encoding="utf-8"))
    try:
        return Count(**{key: int(value) for key, value in found.items()}) if found is not None else None
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
