"""A network at one thing, and what it takes, as values. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from cascade_train.digest import digest
from cascade_train.models.spec import Part, Precision

COUNTING = 1
"""Raised when equal tasks would be counted otherwise than before."""

Kind = Literal["train", "draw", "decode", "encode"]


@dataclass(frozen=True)
class Task:
    """One network at one thing.

    Args:
        config: of ``part``, JSON (`models.build`); ``text_config`` and ``previewer_config`` of a text model
            and a previewer that are trained with it.
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
    previewer_config: str = ""
    brings: bool = False
    """Frozen Linear layers bring their weight in each pass: it is compact or elsewhere (`models.compact`)."""
    beside: bool = False
    """Adapters lie beside the layers while drawing, as in training, and are not worked into their weights."""

    @property
    def name(self) -> str:
        later = {"positions": 77, "previewer_config": "", "brings": False, "beside": False}
        told = {key: value for key, value in asdict(self).items() if later.get(key, ...) != value}
        return digest({"counting": COUNTING, "task": told})


@dataclass(frozen=True)
class Footprint:
    """Bytes of a task: ``frozen`` and ``trained`` weights (buffers with the frozen ones), and ``passes``,
    the most that lives beside weights while a batch goes forward and back, gradients included.

    ``linear`` are the numbers in those frozen Linear weights of the part that may be compact, ``rows`` their
    rows, ``layer`` the numbers of the largest; ``small`` the numbers that are trained in tensors of fewer
    than 4096. Where a run is drawn with, ``trained`` are its adapters.
    """

    frozen: int
    trained: int = 0
    passes: int = 0
    linear: int = 0
    rows: int = 0
    layer: int = 0
    small: int = 0
