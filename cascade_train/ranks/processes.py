"""Starting processes and joining them. Imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

from cascade_train.errors import STOPPED, CascadeError
from cascade_train.host import place
from cascade_train.host.base import Host
from cascade_train.host.leaving import exit_with

Work = Callable[..., "int | None"]
"""What a process does, importable by its name; it returns the process's exit code (None: 0)."""

_K = TypeVar("_K", bound=Hashable)

GRACE = 120.0
"""Seconds that the others have to save and to end by themselves once one has failed or stopped. One that is
still there then waits for it inside a library, where no signal is heard."""


def together(count: int, work: Work, *args: Any) -> int:
    """``work(*args)`` in ``count`` processes of this machine that work as one; the exit code of all.

    That is 130 where they were stopped, else the first failure's, else 0. Signals are handed on, so that
    whoever stops this process stops all of them at the same step.

    Raises:
        CascadeError: this process itself is one of several.
    """
    if place.world_size() > 1:
        raise CascadeError(
            f"{count} processes within a launcher's {place.world_size()} processes",
            fix="Leave --processes out; the launcher has started them",
        )
    with _shared_cores(count), _ended_with_this_one() as running:
        port = _free_port()
        with _signals_handed_on(running) as asked:
            for rank in range(count):
                running.append(_started(_member, rank, count, port, work, args))
            code = _outcome(running)
    return STOPPED if code and asked.is_set() else code


def apart(work: Mapping[_K, tuple[Work, Sequence[Any]]], at_once: int) -> dict[_K, int]:
    """Each of ``work`` (a function and its arguments) in a process of its own; the exit codes by name.

    At most ``at_once`` run at a time. One that fails does not end the others; a signal to stop goes to all
    that run, and no more are started.
    """
    codes: dict[_K, int] = {}
    waiting = list(work.items())
    names: dict[_K, Any] = {}
    with _ended_with_this_one() as running, _signals_handed_on(running) as asked:
        while names or (waiting and not asked.is_set()):
            while waiting and len(names) < at_once and not asked.is_set():
                name, (function, args) = waiting.pop(0)
                names[name] = _started(_alone, function, tuple(args))
                running.append(names[name])
            wait([child.sentinel for child in names.values()], timeout=0.5)
            for name in [name for name, child in names.items() if child.exitcode is not None]:
                codes[name] = _code(names.pop(name))
    codes.update({name: STOPPED for name, _ in waiting})
    return codes


@contextmanager
def joined(host: Host) -> Iterator[None]:
    """Within the block the processes can talk to each other: over NCCL on CUDA, else over Gloo.

    Does nothing for one process. A process that leaves by an exception does not wait for the others: its end
    makes the launcher end them.

    Raises:
        CascadeError: a launcher has said that there are several, but not how they find each other.
    """
    if host.world_size == 1:
        yield
        return
    place.check_launched()
    import torch

    from cascade_train.ranks.talk import leave

    on_cuda = host.device.startswith("cuda")
    if on_cuda:
        torch.cuda.set_device(host.device)
    torch.distributed.init_process_group("nccl" if on_cuda else "gloo")
    yield
    leave()


def _member(rank: int, count: int, port: int, work: Work, args: tuple[Any, ...]) -> None:
    place.take(rank, count, port)
    exit_with(work(*args) or 0)


def _alone(work: Work, args: tuple[Any, ...]) -> None:
    exit_with(work(*args) or 0)


def _started(target: Callable[..., None], *args: Any) -> Any:
    child = multiprocessing.get_context("spawn").Process(target=target, args=args)
    child.start()
    return child


def _code(child: Any) -> int:
    """The exit code of a process that has ended; 1 where a signal ended it."""
    return int(child.exitcode if child.exitcode >= 0 else 1)


def _outcome(running: Sequence[Any]) -> int:
    """The first exit code that is not 0. Waits for all, but not for ever once one has ended so."""
    left = list(running)
    code, deadline = 0, float("inf")
    while left and time.monotonic() < deadline:
        wait([child.sentinel for child in left], timeout=0.5)
        for child in [child for child in left if child.exitcode is not None]:
            left.remove(child)
            if child.exitcode and not code:
                code = _code(child)
                deadline = time.monotonic() + GRACE
    return code


@contextmanager
def _ended_with_this_one() -> Iterator[list[Any]]:
    """A list of processes; those that still run at the end of the block are ended by force."""
    children: list[Any] = []
    try:
        yield children
    finally:
        for child in children:
            if child.exitcode is None:
                child.kill()


@contextmanager
def _signals_handed_on(children: Sequence[Any]) -> Iterator[threading.Event]:
    """Within the block, signals to stop go to every child, and set the event. Those of a console have reached
    the children already, and count once there. Outside the main thread no signal is heard."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def hand_on(number: int, _frame: Any) -> None:
        asked.set()
        for child in children:
            if child.exitcode is None and os.name != "nt":
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
