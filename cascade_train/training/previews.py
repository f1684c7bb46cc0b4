"""Previews of a run while it trains: pictures now and then, which change no result and take little time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import nn

from cascade_train.drawing.plot import thinned
from cascade_train.host.base import Host
from cascade_train.training.metrics import read_metrics
from cascade_train.training.spec import Position

if TYPE_CHECKING:
    from PIL import Image

    from cascade_train.models.text import TextStates
    from cascade_train.training.trainer import Trainer

SHARE = 0.05
"""The most of a block's time that pictures may take."""

GUESS = 0.5
"""Seconds that the first picture of a block is thought to take."""

ROWS = 2000
"""Of the curve that are held; of more each is the mean of a few."""


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


@runtime_checkable
class WithCurve(Protocol):
    """A `Preview` that also lays its last picture and the curve of the loss on one sheet, in milliseconds,
    and keeps that. Where nobody watches it is asked for the last picture of a block alone."""

    def choose(self, captions: list[str]) -> None:
        """Take the captions to draw from ``captions``, unless they are chosen already."""
        ...

    def with_curve(self, rows: Sequence[Mapping[str, Any]], picture: Image.Image | None) -> Image.Image: ...


class Previews:
    """Calls ``draw`` every ``every`` steps (0: never), while that takes no more than `SHARE` of the time, and
    whatever the time at a block's edges: early, and when it is done.

    A picture that fails is told once; training goes on without pictures.
    """

    def __init__(self, draw: Preview | None, every: int, host: Host) -> None:
        self._watched = host.previews
        wanted = host.rank == 0 and every > 0 and (self._watched or isinstance(draw, WithCurve))
        self._draw = draw if wanted else None
        self._every, self._host = every, host
        self._began = time.monotonic()
        self._spent, self._last = 0.0, GUESS
        self._picture: Image.Image | None = None
        self._new = self._noted = False
        self._rows: list[Mapping[str, Any]] = []

    def begin(self, position: Position) -> None:
        """A block goes on from ``position``: what has been trained up to there is part of the curve."""
        if self._draw is not None and isinstance(self._draw, WithCurve):
            self._rows = list(thinned(read_metrics(position).rows, ROWS))

    def due(self, step: int, *, first: bool = False, last: bool = False) -> bool:
        """Whether a picture is to be drawn after ``step``, a block's ``first`` or ``last`` or another."""
        if self._draw is None:
            return False
        if last or not self._watched:
            return last
        if first:
            return True
        if step % self._every:
            return False
        return self._spent + self._last <= SHARE * (time.monotonic() - self._began)

    def drawn(self, trainer: Trainer, position: Position) -> Image.Image | None:
        """The picture of ``trainer``, which stands at ``position``."""
        began = time.monotonic()
        try:
            with standing(trainer, position) as here:
                self._picture = self._draw(here) if self._draw is not None else None
            self._new = True
            return self._picture
        except Exception as error:
            self._fails(error)
            return None
        finally:
            self._last = time.monotonic() - began
            self._spent += self._last

    def note(self, row: Mapping[str, Any], trainer: Trainer) -> None:
        """``trainer`` has trained a step, which gave ``row``."""
        if isinstance(self._draw, WithCurve):
            if not self._noted:
                self._draw.choose(trainer.coming_captions())
                self._noted = True
            self._rows.append(row)
            if len(self._rows) > 2 * ROWS:
                self._rows = list(thinned(self._rows, ROWS))

    @property
    def fresh(self) -> bool:
        """Whether a picture has been drawn that nobody has seen yet."""
        return self._new

    def shown(self) -> Image.Image | None:
        """What a person is shown now: the last picture and the curve as it is, or a new picture alone."""
        new, self._new = self._new, False
        if self._draw is None:
            return None
        if not isinstance(self._draw, WithCurve):
            return self._picture if new else None
        if not self._watched and not new:
            return None
        try:
            sheet = self._draw.with_curve(self._rows, self._picture)
            return sheet if self._watched else None
        except Exception as error:
            self._fails(error)
            return None

    def _fails(self, error: Exception) -> None:
        self._draw = None
        self._host.warn(f"no more pictures while this block trains: {error}")


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
        with torch.no_grad(), cast, objective.in_place():
            yield Standing(position, network, text, tuple(trainer.coming_captions()))
    finally:
        for module, mode in modes:
            module.training = mode
