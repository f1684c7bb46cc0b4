"""What several processes that train one run tell each other; with one process, nothing."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cascade_train.host.base import Host


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
