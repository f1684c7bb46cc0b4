"""One process among those that ``torchrun`` or ``accelerate launch`` started to work together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host

NEEDED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher tells each process, beside ``WORLD_SIZE``."""


@contextmanager
def joined(host: Host) -> Iterator[None]:
    """Within the block the processes can talk to each other: over NCCL on CUDA, else over Gloo.

    Does nothing for one process. A process that leaves by an exception does not wait for the others: its end
    makes the launcher end them.

    Raises:
        CascadeError: ``WORLD_SIZE`` is set, but not the rest that a launcher sets.
    """
    if host.world_size == 1:
        yield
        return
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise CascadeError(
            f"WORLD_SIZE is {host.world_size}, but {', '.join(missing)} is not set",
            fix="Start several processes with: torchrun --nproc-per-node N -m cascade_train.cli run FILE",
        )
    import torch

    on_cuda = host.device.startswith("cuda")
    if on_cuda:
        torch.cuda.set_device(host.device)
    torch.distributed.init_process_group("nccl" if on_cuda else "gloo")
    yield
    torch.distributed.destroy_process_group()
