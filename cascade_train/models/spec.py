"""What travels on a CASCADE_MODELS link: which parts, from which files, at which precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cascade_train.digest import digest, local

Part = Literal["compressor", "stage_c", "stage_b", "stage_a", "previewer", "text", "image"]
"""The parts a Stable Cascade consists of. ``text`` is CLIP with its tokenizer, ``image`` CLIP vision."""

Precision = Literal["fp32", "bf16"]
"""What networks compute in."""

AUTO = "auto"
"""In place of a precision: bf16 for files on a GPU that computes in it, else fp32."""

Compact = Literal["", "int8", "fp8"]
"""How the frozen linear weights of Stages C and B are stored; empty: in the models' precision."""

Captions = Literal["cut", "chunks"]
"""What becomes of a caption with more tokens than the text encoder reads at a time: its end is cut, or it is
read in several chunks."""

Variant = Literal["full", "lite"]
"""The official sizes of Stages B and C."""


@dataclass(frozen=True)
class PartFile:
    """One part: a safetensors file, or a folder in Hugging Face layout. ``content`` identifies what is in it
    wherever it lies: in an all-in-one checkpoint the part alone (`reading.content_id`)."""

    part: Part
    content: str
    path: str = local()
    prefix: str = local("")
    """What stands before the part's names in a file that holds several."""


@dataclass(frozen=True)
class AppliedRun:
    """A trained run laid over the models: the position's name, how strongly, and its checkpoint folder.

    ``again``, a function without arguments or None, makes that folder anew where it is gone or damaged.
    """

    position: str
    strength: float
    checkpoint: str = local()
    again: object = field(default=None, compare=False, repr=False, metadata={"digest": False})


@dataclass(frozen=True)
class ModelsSpec:
    """An immutable description of a Stable Cascade; nothing is loaded until a part is asked for."""

    name: str = local()
    parts: tuple[PartFile, ...] = ()
    precision: Precision = "fp32"
    applied: tuple[AppliedRun, ...] = ()
    compact: Compact = ""
    offload: bool = local(False)
    """Whether these weights stay on the CPU, and come to the device layer by layer."""
    captions: Captions = "cut"

    @property
    def digest(self) -> str:
        return digest(self)

    def makes_compact(self, part: str) -> bool:
        """Whether linear layers of ``part`` are stored otherwise than others: those of the large parts."""
        return part in ("stage_c", "stage_b") and bool(self.compact or self.offload)
