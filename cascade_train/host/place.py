"""Which of the processes that work as one this process is: the only reader and writer of what launchers set.

``torchrun``, ``accelerate launch`` and `ranks.processes` tell each process its place in the environment. Read
anew at each call, since a process may learn its place after it has started. Imports no torch.
"""

from __future__ import annotations

import os

from cascade_train.errors import CascadeError

_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
_NEEDED = ("RANK", "LOCAL_RANK", *_RENDEZVOUS)
_OURS = "CASCADE_TRAIN_MEMBER"


def rank() -> int:
    """The number of this process among all, from 0; 0 writes and speaks."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """The number of this process among those of its machine: the GPU that is its own."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """How many processes work as one; 1 where nobody has said anything."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def started_here() -> bool:
    """Whether `ranks.processes` has started this process, and no launcher of another kind."""
    return _OURS in os.environ


def check_launched() -> None:
    """Raises:
    CascadeError: a launcher has said that there are several processes, but not how they find each other.
    """
    missing = [name for name in _NEEDED if name not in os.environ]
    if world_size() > 1 and missing:
        raise CascadeError(
            f"WORLD_SIZE is {world_size()}, but {', '.join(missing)} is not set",
            fix="Start several processes with: torchrun --nproc-per-node N -m cascade_train.cli run FILE",
        )


def take(rank: int, count: int, port: int) -> None:
    """Make this process number ``rank`` of ``count`` on this machine, which meet at ``port``."""
    os.environ.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            _OURS: "1",
        }
    )
