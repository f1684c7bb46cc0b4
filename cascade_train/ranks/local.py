"""One command in several processes of this machine, as ``torchrun`` would start it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.host.headless import STOPPED

MEMBER = "CASCADE_TRAIN_MEMBER"
"""Set in the environment of a process that `together` has started with the words that it was given."""
GRACE = 120.0
"""Seconds that the others have to save and to end by themselves once one has failed or stopped. One that is
still there then waits for it inside a library, where no signal is heard."""


def together(count: int, words: Sequence[str]) -> int:
    """``cascade-train *words`` in ``count`` processes that train as one; returns the exit code.

    That is 130 where they were stopped, else the first failure's, else 0. Signals are handed on, so that
    whoever stops this process stops all of them at the same step. Imports no torch.

    Raises:
        CascadeError: these processes were started by a launcher already.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CascadeError(
            f"--processes {count} within a launcher's {os.environ['WORLD_SIZE']} processes",
            fix="Leave --processes out; the launcher has started them",
        )
    spawn = multiprocessing.get_context("spawn")
    with _shared_cores(count):
        port = _free_port()
        running = {
            rank: spawn.Process(target=_member, args=(rank, count, port, list(words)))
            for rank in range(count)
        }
        try:
            with _handing_on(running) as asked:
                for child in running.values():
                    child.start()
                code = _outcome(running)
        finally:
            for child in running.values():
                if child.pid is not None and child.exitcode is None:
                    child.kill()
    return STOPPED if code and asked.is_set() else code


def _member(rank: int, count: int, port: int, words: list[str]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.environ[MEMBER] = "1"
    from cascade_train.cli import main

    sys.exit(main(words))


def _outcome(running: dict[int, Any]) -> int:
    """The first exit code that is not 0. Waits for all, but not for ever once one has ended so."""
    left = dict(running)
    code, deadline = 0, float("inf")
    while left and time.monotonic() < deadline:
        wait([child.sentinel for child in left.values()], timeout=0.5)
        for rank in [rank for rank, child in left.items() if child.exitcode is not None]:
            ended = left.pop(rank).exitcode
            if ended and not code:
                code = ended if ended > 0 else 1
                deadline = time.monotonic() + GRACE
    return code


@contextmanager
def _handing_on(children: dict[int, Any]) -> Iterator[threading.Event]:
    """Within the block, signals to stop go to every child, and set the event. Those of a console have reached
    the children already, and count once there."""
    asked = threading.Event()

    def hand_on(number: int, _frame: Any) -> None:
        asked.set()
        for child in children.values():
            if child.pid is not None and child.exitcode is None and os.name != "nt":
                os.kill(child.pid, number)

    names = ("SIGINT", "SIGTERM", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = [(number, signal.signal(number, hand_on)) for number in numbers]
    try:
        yield asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _shared_cores(count: int) -> Iterator[None]:
    """Within the block, children compute with their share of the cores unless the person said otherwise."""
    name = "OMP_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = str(max(1, (os.cpu_count() or 1) // count))
    try:
        yield
    finally:
        del os.environ[name]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
