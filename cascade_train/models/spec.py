"""What travels on a CASCADE_MODELS link: which parts, from which files, at which precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Union

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

    @property
    def key(self) -> tuple[object, ...]:
        """What is laid over a part: the same key, the same result."""
        return self.position, self.strength

    @property
    def where(self) -> str:
        return self.checkpoint

    def strength_of(self, part: str) -> float:
        return self.strength


@dataclass(frozen=True)
class FileToken:
    """A word in a LoRA file: its name and id in the vocabulary, its row in the file, whether it is new, and
    the ids whose mean the row is added to."""

    name: str
    id: int
    row: int
    new: bool = True
    start: tuple[int, ...] = ()


@dataclass(frozen=True)
class AppliedFile:
    """A LoRA file laid over the models: its content, how strongly over Stage C and over the text encoder, its
    words, where it lies, and the parts whose layers it names."""

    content: str
    strength: float = 1.0
    text_strength: float = 1.0
    tokens: tuple[FileToken, ...] = ()
    path: str = local("")
    parts: tuple[PartFile, ...] = local(())

    @property
    def key(self) -> tuple[object, ...]:
        return self.content, self.strength, self.text_strength, self.tokens

    @property
    def where(self) -> str:
        return self.path

    def strength_of(self, part: str) -> float:
        return self.text_strength if part == "text" else self.strength


Applied = Union[AppliedRun, AppliedFile]  # noqa: UP007


@dataclass(frozen=True)
class ModelsSpec:
    """An immutable description of a Stable Cascade; nothing is loaded until a part is asked for."""

    name: str = local()
    parts: tuple[PartFile, ...] = ()
    precision: Precision = "fp32"
    applied: tuple[Applied, ...] = ()
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
