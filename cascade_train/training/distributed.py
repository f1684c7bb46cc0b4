"""What several processes that train one run tell each other; with one process, nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from cascade_train.errors import Interrupted
from cascade_train.host.base import Host

T = TypeVar("T")


def sum_gradients(parameters: Iterable[nn.Parameter], host: Host) -> None:
    """Replace each gradient by its sum over all processes; a missing one counts as zeros."""
    if host.world_size == 1:
        return
    values = list(parameters)
    for value in values:
        if value.grad is None:
            value.grad = torch.zeros_like(value)
    flat = torch.cat([value.grad.flatten() for value in values if value.grad is not None])
    torch.distributed.all_reduce(flat)
    start = 0
    for value in values:
        assert value.grad is not None
        value.grad.copy_(flat[start: start + value.numel()].view_as(value))
        start += value.numel()


def share_buffers(buffers: Iterable[Tensor], host: Host) -> None:
    """Give every process the running statistics of rank 0, so that all go on from the same state."""
    if host.world_size > 1:
        for buffer in buffers:
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
    torch.distributed.broadcast_object_list(told, src=0, device=torch.device(host.device))
    return told[0]


def shared_out(make: Callable[[int, int], T], count: int, host: Host) -> list[T]:
    """``make(first, last)`` of items 0 … ``count`` − 1, each process its share; everyone's, in order.

    A process that fails or is stopped takes the others with it, so that none waits for it.

    Raises:
        Exception: its own where one failed, `Interrupted` in the others.
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
        failed = exception
    everyone: list[list[T] | None] = [None] * world
    torch.distributed.all_gather_object(everyone, None if failed is not None else mine)
    if failed is not None:
        raise failed
    if any(part is None for part in everyone):
        raise Interrupted("another process failed or was stopped")
    return [item for part in everyone if part is not None for item in part]


def wait(host: Host) -> None:
    """Return once every process has come here."""
    if host.world_size > 1:
        torch.distributed.barrier()


def gather_rows(rows: Tensor, host: Host) -> Tensor:
    """``rows`` (n, k) of every process below one another in the order of ranks; n may differ."""
    if host.world_size == 1:
        return rows
    parts: list[Tensor | None] = [None] * host.world_size
    torch.distributed.all_gather_object(parts, rows.cpu())
    return torch.cat([part for part in parts if part is not None])
