"""How sampling tells how far it is, and learns that it should stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cascade_train.host.base import Host

if TYPE_CHECKING:
    from PIL import Image

Progress = Callable[[int, int, str, "Image.Image | None"], None]
"""(done, total, line of text, preview or None); may raise to stop."""


def silent(done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
    """A progress that tells nobody."""


def told(host: Host) -> Progress:
    """The progress of ``host``, which stops between two steps when the person asks to."""

    def tell(done: int, total: int, text: str = "", preview: Image.Image | None = None) -> None:
        host.check_interrupt()
        host.progress(done, total, text, preview)

    return tell
