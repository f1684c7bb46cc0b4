"""What travels on a CASCADE_PROMPTS link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cascade_train.diffusion.samplers import RescaleOf, SamplerName
from cascade_train.errors import CascadeError

DRAWING = 2
"""Raised when equal prompts would be drawn otherwise than before, so that pictures that are kept are drawn
again."""


@dataclass(frozen=True)
class Prompts:
    """Validation prompts and how they are drawn.

    Picture j of every prompt uses seed ``seed`` + j, so that prompts and moments of a run can be compared.
    A ``width`` or ``height`` of 0 means the models' native side, in pixels.
    """

    texts: tuple[str, ...]
    negative: str = ""
    pictures: int = 4
    seed: int = 0
    width: int = 0
    height: int = 0
    steps_c: int = 20
    cfg_c: float = 4.0
    rescale: float = 0.7
    steps_b: int = 10
    cfg_b: float = 1.1
    sampler: SamplerName = "ddpm"
    shift: float = 1.0
    """Stage C's schedule shift; 0, which the node starts with, is the models' own (`library.own_shift`)."""
    rescale_of: RescaleOf = "answer"
    """What ``rescale`` is worked out on; see `SamplerSettings`."""

    def told(self) -> dict[str, Any]:
        """What names a drawing; a setting that is newer than kept drawings is left out at its default."""
        return {
            name: value for name, value in vars(self).items() if (name, value) != ("rescale_of", "answer")
        }

    def __post_init__(self) -> None:
        if not self.texts:
            raise CascadeError("there is no prompt", fix="Write at least one line of text")
        if self.pictures < 1:
            raise CascadeError(f"{self.pictures} pictures a prompt", fix="Use 1 or more")


def prompts_from_lines(text: str) -> tuple[str, ...]:
    """One prompt a line; blank lines and lines that begin with ``#`` are left out."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def check_blocks(total: int, every: int) -> None:
    """Raise CascadeError where ``total`` steps cannot be cut into blocks of ``every``."""
    if every < 1 or total < 1:
        raise CascadeError(f"{total} steps in blocks of {every}", fix="Use 1 or more for both")
