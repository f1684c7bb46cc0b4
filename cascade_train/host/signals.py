"""Ctrl-C on a command line: the work is asked to end, and ended where it does not hear that in time."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from cascade_train.errors import STOPPED
from cascade_train.host.progress import nothing

if TYPE_CHECKING:
    from cascade_train.host.headless import HeadlessHost

SAME_REQUEST = 1.0
"""Seconds within which a second signal is the same request: a console tells all processes, and then their
launcher tells them again."""

PATIENCE = 1.5
"""Seconds after which work that has not ended is ended, where nothing would be lost by that."""

_POKE = b"\0"
"""No signal has this number."""


@contextmanager
def stop_on_signals(
    host: HeadlessHost, told: Callable[[str], None], gone: Callable[[], None] = nothing
) -> Iterator[None]:
    """Within the block the first Ctrl-C (or SIGTERM) asks ``host`` to stop, a second one ends the process.
    ``told`` is told so on rank 0.

    Work that does not ask whether it should stop (reading gigabytes of a model, say) is ended after
    `PATIENCE`, unless it is `HeadlessHost.keeping` something; ``gone`` is called just before. Files are
    written beside and renamed, so ending at once loses only the work since the last checkpoint. With several
    processes, which end together, nothing is ended so.

    Does nothing outside the main thread, where signals cannot be caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked = [0.0]
    poke: list[Callable[[], None]] = []

    def caught(number: int, frame: FrameType | None) -> None:
        if host.stopping and asked[0]:
            if host.world_size > 1 and time.monotonic() - asked[0] < SAME_REQUEST:
                return
            os._exit(STOPPED)
        asked[0] = time.monotonic()
        host.stop()
        for each in poke:
            each()
        if host.rank == 0:
            told(
                "Stopping at the next step; running the same file again continues. "
                "Ctrl-C again stops at once."
            )

    names = ("SIGINT", "SIGTERM", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before: list[Any] = [signal.signal(number, caught) for number in numbers]
    with _watched(host, gone) as also:
        poke.append(also)
        try:
            yield
        finally:
            for number, handler in zip(numbers, before):
                signal.signal(number, handler)


@contextmanager
def _watched(host: HeadlessHost, gone: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """A thread hears of signals too, by a socket: the main thread hears only between two lines of Python.

    Yields what tells the thread, too, of a first signal: on Windows asyncio takes such a socket for itself.
    """
    if host.world_size > 1:
        yield nothing
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    over = threading.Event()

    def watch() -> None:
        with suppress(OSError):
            if not heard.recv(1):
                return
            host.stop()
            until = time.monotonic() + PATIENCE
            heard.setblocking(False)
            while not over.wait(0.05):
                again = b""
                with suppress(BlockingIOError):
                    again = heard.recv(16).strip(_POKE)
                if again or (time.monotonic() > until and not host.keeps):
                    gone()
                    os._exit(STOPPED)

    thread = threading.Thread(target=watch, name="cascade-stop", daemon=True)
    thread.start()
    earlier = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    try:
        yield lambda: told.sendall(_POKE)
    finally:
        signal.set_wakeup_fd(earlier)
        over.set()
        told.close()
        thread.join()
        heard.close()
