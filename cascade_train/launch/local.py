"""One command in several processes of this machine, as ``torchrun`` would start it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from cascade_train.errors import CascadeError

STOPPED = 130
GRACE = 10.0
"""Seconds that the others have to end by themselves once one has failed, before they are ended."""


def together(count: int, words: Sequence[str]) -> int:
    """``cascade-train *words`` in ``count`` processes that train as one; returns the exit code.

    That is the first failure's, else 130 where a process was stopped, else 0. Signals are handed on, so that
    whoever stops this process stops all of them at the same step. Imports no torch.

    Raises:
        CascadeError: these processes were started by a launcher already.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise CascadeError(f"--processes {count} within a launcher's {os.environ['WORLD_SIZE']} processes",
                           fix="Leave --processes out; the launcher has started them")
    spawn = multiprocessing.get_context("spawn")
    with _shared_cores(count):
        port = _free_port()
        running = {rank: spawn.Process(target=_member, args=(rank, count, port, list(words)))
                   for rank in range(count)}
        with _handing_on(running):
            for child in running.values():
                child.start()
            return _outcome(running)


def _member(rank: int, count: int, port: int, words: list[str]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count),
                      LOCAL_WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    from cascade_train.cli import main

    sys.exit(main(words))


def _outcome(running: dict[int, Any]) -> int:
    """Waits for all; one that fails takes the others with it, since they would wait for it for ever."""
    left = dict(running)
    code, deadline = 0, float("inf")
    while left:
        wait([child.sentinel for child in left.values()], timeout=0.5)
        for rank, child in list(left.items()):
            if child.exitcode is None:
                continue
            del left[rank]
            failed = child.exitcode not in (0, STOPPED)
            if failed and code in (0, STOPPED):
                code = child.exitcode if child.exitcode > 0 else 1
                deadline = time.monotonic() + GRACE
            elif child.exitcode == STOPPED:
                code = code or STOPPED
        if time.monotonic() > deadline:
            for child in left.values():  # it may wait inside a library, where no signal is heard
                child.kill()
    return code


@contextmanager
def _handing_on(children: dict[int, Any]) -> Iterator[None]:
    """Within the block, signals to stop go to every child; those of a console have reached them already,
    and a second one within a second counts as the same."""

    def hand_on(number: int, _frame: Any) -> None:
        for child in children.values():
            if child.pid is not None and child.exitcode is None and os.name != "nt":
                os.kill(child.pid, number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)]
    before = [(number, signal.signal(number, hand_on)) for number in numbers]
    try:
        yield
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
