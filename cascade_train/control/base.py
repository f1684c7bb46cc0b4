"""What a control filter is: settings that travel on a CASCADE_CONTROL link, and one function of a picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Chance:
    """Where random numbers of a filter come from: they are a function of (seed, step, index) alone."""

    seed: int = 0
    step: int = 0
    index: int = 0


NO_CHANCE = Chance()


@dataclass(frozen=True)
class Control(ABC):
    """A control filter. Subclasses are frozen dataclasses of plain settings; their digest names a run.

    `apply` runs where samples are loaded, on the CPU, in several threads at once.
    """

    latents: ClassVar[bool] = False
    """Whether what the ControlNet sees is what the semantic compressor makes of the picture that `apply`
    gives, which then has 3 channels."""
    beside: ClassVar[bool] = False
    """Whether `apply` needs the picture that lies beside the sample's (`ending`)."""

    @property
    @abstractmethod
    def channels(self) -> int:
        """Channels that the ControlNet sees."""

    @property
    def random(self) -> bool:
        """Whether the result depends on the chance, so that it cannot be remembered."""
        return False

    @property
    def ending(self) -> str:
        """What the name of the picture beside a sample's ends in; empty where none is needed."""
        return ""

    @abstractmethod
    def apply(
        self, picture: np.ndarray, chance: Chance = NO_CHANCE, given: np.ndarray | None = None
    ) -> np.ndarray:
        """The control of one picture.

        Args:
            picture: (H, W, 3) uint8.
            chance: what everything random is a function of.
            given: (H, W, 3) uint8, the picture beside it, cropped as it is; where `beside`.

        Returns:
            (C, h, w) fp32 in [0, 1], unless the filter says otherwise.

        Raises:
            CascadeError: a setting out of range, a library or weights that the filter needs and are missing.
        """

    def shown(self, control: np.ndarray) -> np.ndarray:
        """What `apply` gave, as a picture (h, w, 3) uint8 for people."""
        import numpy as np

        rows = control if len(control) >= 3 else np.repeat(control[:1], 3, axis=0)
        return np.rint(np.clip(rows[:3], 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
