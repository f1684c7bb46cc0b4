"""What several processes that train one run tell each other; with one process, nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.host.base import Host

T = TypeVar("T")


@contextmanager
def _talking() -> Iterator[None]:
    """Around each exchange: the end of another process, which the library tells in words of sockets, in
    plain ones."""
    try:
        yield
    except RuntimeError as error:
        said = str(error)
        if not any(word in said for word in ("gloo", "NCCL", "onnection", "Broken pipe")):
            raise
        raise CascadeError(
            "another process that works with this one has ended", fix="It says why; run again to go on"
        ) from error


def sum_gradients(parameters: Iterable[nn.Parameter], host: Host) -> None:
    """Replace each gradient by its sum over all processes; a missing one counts as zeros."""
    if host.world_size == 1:
        return
    values = list(parameters)
    for value in values:
        if value.grad is None:
            value.grad = torch.zeros_like(value)
    flat = torch.cat([value.grad.flatten() for value in values if value.grad is not None])
    with _talking():
        torch.distributed.all_reduce(flat)
    start = 0
    for value in values:
        assert value.grad is not None
        value.grad.copy_(flat[start : start + value.numel()].view_as(value))
        start += value.numel()


def share_buffers(buffers: Iterable[Tensor], host: Host) -> None:
    """Give every process the running statistics of rank 0, so that all go on from the same state."""
    if host.world_size > 1:
        for buffer in buffers:
            with _talking():
                torch.distributed.broadcast(buffer, src=0)


def check_interrupt(host: Host) -> None:
    """Stop every process at the same step when the person stopped any of them.

    Raises:
        Exception: the host's own where it was stopped, `Interrupted` in the others.
    """
    if host.world_size == 1:
        host.check_interrupt()
        return
    stopped: BaseException | None = None
    try:
        host.check_interrupt()
    except BaseException as exception:
        stopped = exception
    # torch's threads may not write to a tensor that was made under inference mode
    with _talking(), torch.inference_mode(False):
        count = torch.tensor([0 if stopped is None else 1], device=host.device)
        torch.distributed.all_reduce(count)
    if stopped is not None:
        raise stopped
    if int(count):
        raise Interrupted("another process of this run was stopped")


def agreed(value: T, host: Host) -> T:
    """Rank 0's ``value`` in every process: what lies on a shared disk may change between two looks."""
    if host.world_size == 1:
        return value
    told = [value]
    with _talking(), torch.inference_mode(False):
        torch.distributed.broadcast_object_list(told, src=0, device=torch.device(host.device))
    return told[0]


def shared_out(make: Callable[[int, int], T], count: int, host: Host) -> list[T]:
    """``make(first, last)`` of items 0 … ``count`` − 1, each process its share; everyone's, in order.

    A process that fails or is stopped takes the others with it, so that none waits for it.

    Raises:
        Exception: its own where one failed; in the others `Interrupted` where that was a stop, else a
            CascadeError that says which failed, and how.
    """
    world, rank = host.world_size, host.rank
    if world == 1:
        return [make(0, count)] if count else []
    first, last = count * rank // world, count * (rank + 1) // world
    mine: list[T] = []
    failed: BaseException | None = None
    try:
        mine = [make(first, last)] if last > first else []
    except BaseException as exception:
        failed, mine = exception, []
    said = "" if failed is None else f"{type(failed).__name__}: {failed}"
    everyone = _everyones((mine, said, _is_stop(failed)), host)
    if failed is not None:
        raise failed
    for other, (_, said, stop) in enumerate(everyone):
        if stop:
            raise Interrupted("another process of this run was stopped")
        if said:
            raise CascadeError(f"process {other}, which works with this one, failed: {said}")
    return [item for part, _, _ in everyone for item in part]


def _is_stop(exception: BaseException | None) -> bool:
    """Whether a person's wish ended it: ours, a console's, or ComfyUI's own exception for that."""
    return isinstance(exception, (Interrupted, KeyboardInterrupt)) or (
        type(exception).__name__ == "InterruptProcessingException"
    )


def wait(host: Host) -> None:
    """Return once every process has come here."""
    if host.world_size > 1:
        with _talking():
            torch.distributed.barrier()


def gather_rows(rows: Tensor, host: Host) -> Tensor:
    """``rows`` (n, k) of every process below one another in the order of ranks; n may differ."""
    if host.world_size == 1:
        return rows
    return torch.cat(_everyones(rows.cpu(), host))


def leave() -> None:
    """End this process's part in the talk; it waits for no other process.

    Before torch 2.8 the end of a Gloo group holds Python while it waits for threads that may need Python to
    let go of the last tensors, and then waits for ever. The pause lets them.
    """
    time.sleep(0.1)
    torch.distributed.destroy_process_group()


def _everyones(value: T, host: Host) -> list[T]:
    """The ``value`` of each process, in the order of ranks."""
    everyone: list[Any] = [None] * host.world_size
    with _talking(), torch.inference_mode(False):
        torch.distributed.all_gather_object(everyone, value)
    return everyone
