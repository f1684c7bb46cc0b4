"""Previews of a run while it trains: pictures now and then, which change no result and take little time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from cascade_train.host.base import Host
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    from PIL import Image

    from cascade_train.models.text import TextStates
    from cascade_train.training.trainer import Trainer

SHARE = 0.05
"""The most of a block's time that pictures may take."""

GUESS = 0.5
"""Seconds that the first picture of a block is thought to take."""


@dataclass(frozen=True)
class Standing:
    """A run as it stands, good for as long as the picture is drawn.

    Args:
        stage_c: the network that is trained, in eval; None where it is not Stage C.
        text: states of captions as the run's text encoder makes them now; None likewise.
        captions: those of samples that come next.
    """

    position: Position
    stage_c: nn.Module | None = None
    text: Callable[[list[str]], TextStates] | None = None
    captions: tuple[str, ...] = ()


Preview = Callable[[Standing], "Image.Image | None"]
"""Draws a small picture of how a run is doing. It leaves the modules it is given as they are."""


class Previews:
    """Calls ``draw`` every ``every`` steps (0: never), while that takes no more than `SHARE` of the time.

    A picture that fails is told once; training goes on without pictures.
    """

    def __init__(self, draw: Preview | None, every: int, host: Host) -> None:
        self._draw = draw if host.previews and host.rank == 0 and every > 0 else None
        self._every, self._host = every, host
        self._began = time.monotonic()
        self._spent, self._last = 0.0, GUESS

    def due(self, step: int) -> bool:
        """Whether a picture is to be drawn after ``step``."""
        if self._draw is None or step % self._every:
            return False
        return self._spent + self._last <= SHARE * (time.monotonic() - self._began)

    def drawn(self, trainer: Trainer, position: Position) -> Image.Image | None:
        """The picture of ``trainer``, which stands at ``position``."""
        began = time.monotonic()
        try:
            with standing(trainer, position) as here:
                return self._draw(here) if self._draw is not None else None
        except Exception as error:
            self._draw = None
            self._host.warn(f"no more pictures while this block trains: {error}")
            return None
        finally:
            self._last = time.monotonic() - began
            self._spent += self._last


@contextmanager
def standing(trainer: Trainer, position: Position) -> Iterator[Standing]:
    """The trainer's own modules as a `Standing`, which are in eval meanwhile and as they were afterwards."""
    objective = trainer.objective
    network, text = objective.shown()
    modules = [*objective.modules.modules(), *(network.modules() if network is not None else ())]
    modes = [(module, module.training) for module in modules]
    device = objective.device.type
    cast = torch.autocast(device, torch.bfloat16) if objective.autocast else nullcontext()
    try:
        for module in modules:
            module.training = False
        with torch.no_grad(), cast:
            yield Standing(position, network, text, tuple(trainer.coming_captions()))
    finally:
        for module, mode in modes:
            module.training = mode
