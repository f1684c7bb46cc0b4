"""What surrounds a training: the run's lock, random state, repeatable algorithms, advice on memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.ranks.talk import agreed
from cascade_train.training import checkpoints, lock
from cascade_train.training.spec import RunSpec, splits


@contextmanager
def held(folder: Path, host: Host) -> Iterator[None]:
    """Hold the run's lock, on rank 0 for all; what a crash left half-written goes."""
    with ExitStack() as holding:
        refused: tuple[str, str | None, str | None] | None = None
        if host.rank == 0:
            try:
                holding.enter_context(lock.locked(folder))
                checkpoints.sweep(folder)
            except CascadeError as error:
                refused = error.what, error.where, error.fix
        refused = agreed(refused, host)
        if refused is not None:
            raise CascadeError(refused[0], where=refused[1], fix=refused[2])
        yield


@contextmanager
def memory_errors(spec: RunSpec, release: Callable[[], None]) -> Iterator[None]:
    """Say what helps when the device's memory does not suffice; ``release`` frees what is kept."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        release()
        advice = []
        if spec.accumulation < spec.batch_size and splits(spec.target):
            advice.append(f"raise accumulation (now {spec.accumulation}, up to {spec.batch_size})")
        if spec.precision != "bf16":
            advice.append("train in bf16")
        if spec.models.precision != "bf16":
            advice.append("load the models in bf16")
        raise CascadeError(
            "the device has too little memory for this run",
            fix=f"To need less: {', '.join([*advice, 'use smaller pictures or models'])}. "
            "What was trained so far is kept",
        ) from error


def own_random_state(host: Host) -> Any:
    """Dropout draws from torch's random state; whoever called gets their own one back."""
    device = torch.device(host.device)
    devices = [device] if device.type == "cuda" else []
    return torch.random.fork_rng(devices=devices)


@contextmanager
def repeatable(host: Host) -> Iterator[None]:
    """On CUDA, choose algorithms that give the same bits every time, as the CPU's do."""
    if torch.device(host.device).type != "cuda":
        yield
        return
    # read by cuBLAS when it is first used; without it torch can only warn
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    tuned = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        torch.backends.cudnn.benchmark = tuned
