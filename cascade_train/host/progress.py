"""How long work tells how far it is, and learns that it should stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cascade_train.host.base import Host

if TYPE_CHECKING:
    from PIL import Image


class Progress(Protocol):
    """What long work calls as it goes on. It may raise to stop the work."""

    def __call__(self, done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        """``done`` of ``total`` (0: not known); ``text`` is one line for a person."""
        ...


def silent(done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
    """A progress that tells nobody."""


def nothing() -> None:
    """For who has nothing to say or to ask."""


def progress_of(host: Host) -> Progress:
    """The progress of ``host``, which stops between two steps when the person asks to."""

    def progress(done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        host.check_interrupt()
        host.progress(done, total, text, preview)

    return progress


def part_of(progress: Progress, before: int, whole: int) -> Progress:
    """For one part of a longer work: its steps count from ``before``, out of ``whole`` altogether."""

    def inner(done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        progress(before + done, whole, text, preview)

    return inner
