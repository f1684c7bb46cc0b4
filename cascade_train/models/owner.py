"""Who holds memory: every part is loaded once, shared by all that use it, and moved away by bytes.

A `Base` is a part as its file holds it, frozen. Whoever needs it changed (a run laid over it, adapters in
training) gets a `twin`: modules of its own over the very same parameters, so nothing is copied and nobody can
change what another computes. Moving a base between devices moves all its twins.

A part that is not in use may leave: the device for the CPU, the CPU for its file. It does so when the room is
needed, encoders first, then whatever was used longest ago.
"""

from __future__ import annotations

import copy
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

T = TypeVar("T")
Key = tuple[Any, ...]

ENCODERS = ("text", "image", "compressor")
"""Parts whose work is done once a sample or prompt: they never stay for their own sake."""

MARGIN = 1 << 30
"""Bytes of a GPU that are left for what networks compute, beside the weights."""

CPU_SHARE = 0.9
"""Of the memory that the system has available, how much parts may take."""


@dataclass
class Base:
    """A part as its file holds it. ``users`` counts who computes with it now; ``used`` orders by time;
    ``lent`` are twins that others hold, such as a trainer between two blocks: while they live, dropping the
    part would free nothing, and it would be read a second time."""

    part: str
    module: nn.Module
    bytes: int
    users: int = 0
    used: int = 0
    twins: dict[Key, nn.Module] = field(default_factory=dict)
    lent: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device


_BASES: dict[Key, Base] = {}
_LIMITS: dict[str, int] = {}
LOCK = threading.RLock()
"""Held while a part is looked up, moved, or has something laid over it."""
_clock = itertools.count(1)


def twin(module: nn.Module) -> nn.Module:
    """Modules of one's own over the same parameters and buffers as ``module``; children may be replaced and
    hooks added without its being touched."""
    shared = itertools.chain(module.parameters(), module.buffers())
    return copy.deepcopy(module, {id(value): value for value in shared})


def held_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and buffers of ``module``, each storage once."""
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in itertools.chain(module.parameters(), module.buffers())
    }
    return sum(storages.values())


def get(
    key: Key, part: str, device: str, load: Callable[[str], nn.Module], size: int = 0, straight: bool = False
) -> Base:
    """The base called ``key`` on ``device``, loaded where it is not held by ``load(where)``: at once on the
    device where that is ``straight``, else on the CPU.

    ``size`` is about how many bytes it takes, to make room before it is read; 0 makes none.
    """
    with LOCK:
        base = _BASES.get(key)
        if base is None:
            where = device if straight else "cpu"
            make_room(size, where)
            module = with_room(lambda: load(where), where)
            base = _BASES[key] = Base(part, module, held_bytes(module))
        base.used = next(_clock)
        _place(base, device)
        return base


def held(key: Key) -> Base | None:
    """The base called ``key``, if it is in memory."""
    return _BASES.get(key)


def lies_on(key: Key, device: str) -> bool:
    """Whether the base called ``key`` is on ``device`` now."""
    import torch

    base = _BASES.get(key)
    return base is not None and base.device == torch.device(device)


@contextmanager
def using(base: Base, device: str) -> Iterator[None]:
    """Keep ``base`` on ``device`` while the block runs."""
    with LOCK:
        base.users += 1
        base.used = next(_clock)
        try:
            _place(base, device)
        except BaseException:
            base.users -= 1
            raise
    try:
        yield
    finally:
        with LOCK:
            base.users -= 1


def leave(device: str, parts: Sequence[str] = ENCODERS) -> None:
    """Let ``parts`` that nobody uses now go from ``device``, a GPU, to the CPU."""
    with LOCK:
        for base in list(_BASES.values()):
            if base.part in parts and _may_leave(base) and base.device.type != "cpu":
                _away(base)
    _return_memory(device)


def make_room(wanted: int, device: str) -> None:
    """Move unused parts away until ``wanted`` bytes fit on ``device``, or none is left to move."""
    kind = _kind(device)
    with LOCK:
        for base in _leaving_order(kind):
            if free_bytes(device) >= wanted:
                return
            _away(base)
            _return_memory(device)


def free_bytes(device: str) -> int:
    """Bytes that may still be taken on ``device``: by its limit where one is set, else by what is free."""
    kind = _kind(device)
    if kind in _LIMITS:
        return _LIMITS[kind] - held_on(kind)
    if kind == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + idle - MARGIN
    import psutil

    return int(psutil.virtual_memory().available * CPU_SHARE)


def held_on(kind: str) -> int:
    """Bytes of all parts that lie on devices of ``kind``, such as ``cpu``."""
    return sum(base.bytes for base in _BASES.values() if base.device.type == kind)


def set_limit(kind: str, limit: int | None) -> None:
    """Let parts on devices of ``kind`` take ``limit`` bytes together; None: what is free."""
    if limit is None:
        _LIMITS.pop(kind, None)
    else:
        _LIMITS[kind] = limit


def with_room(work: Callable[[], T], device: str) -> T:
    """What ``work`` gives; where memory runs out, once more with every unused part moved away.

    Raises:
        torch.OutOfMemoryError: it does not suffice either.
    """
    import torch

    try:
        return work()
    except torch.OutOfMemoryError:
        pass  # outside of the handler the failed attempt's tensors are free
    make_room(1 << 62, device)
    return work()


def in_pieces(
    work: Callable[[int, int], Tensor], count: int, each: int, device: str, most: int = 16
) -> list[Tensor]:
    """``work(first, last)`` over ``count`` rows, in pieces of at most ``most`` that fit what is free.

    Args:
        each: about how many bytes a row takes.

    Raises:
        CascadeError: one row alone does not fit, with every unused part moved away.
    """
    import torch

    size = max(1, min(most, free_bytes(device) // max(each, 1)))
    out: list[Tensor] = []
    first = 0
    while first < count:
        last = min(first + size, count)
        try:
            out.append(work(first, last))
            first = last
            continue
        except torch.OutOfMemoryError as error:
            if last - first == 1 and not _leaving_order(_kind(device)):
                raise CascadeError(
                    f"not even one picture fits into the memory of {device}",
                    fix="Use a smaller picture, or load the models in bf16, smaller ones or compact",
                ) from error
        make_room(1 << 62, device)
        size = max(1, (last - first) // 2)
    return out


def forget() -> None:
    """Drop every part; whoever computes with one keeps it."""
    with LOCK:
        _BASES.clear()


def _leaving_order(kind: str) -> list[Base]:
    idle = [base for base in _BASES.values() if base.device.type == kind and _may_leave(base)]
    return sorted(idle, key=lambda base: (base.part not in ENCODERS, base.used))


def _may_leave(base: Base) -> bool:
    return not base.users and (not base.lent or _fits_cpu(base))


def _fits_cpu(base: Base) -> bool:
    """Whether ``base`` lies on a device and could lie on the CPU instead."""
    return base.device.type != "cpu" and free_bytes("cpu") >= base.bytes


def _place(base: Base, device: str) -> None:
    import torch

    if base.device == torch.device(device):
        return
    base.users += 1  # it must not be moved away for its own sake
    try:
        make_room(base.bytes, device)
        try:
            _move(base, device)
        except torch.OutOfMemoryError:
            _move(base, "cpu")
            make_room(1 << 62, device)
            _move_or_say(base, device)
    finally:
        base.users -= 1


def _move_or_say(base: Base, device: str) -> None:
    import torch

    try:
        _move(base, device)
    except torch.OutOfMemoryError as error:
        _move(base, "cpu")
        raise CascadeError(
            f"{base.part} does not fit on {device}: it takes {base.bytes / 1e9:.1f} GB",
            fix="Load the models in bf16 or smaller, or choose lite ones",
        ) from error


def _move(base: Base, device: str) -> None:
    import torch

    # ordinary tensors, whatever mode the caller is in: a trainer computes with these very parameters later
    with torch.inference_mode(False), torch.no_grad():
        for module in (base.module, *base.twins.values()):
            module.to(device)


def _away(base: Base) -> None:
    """From a device to the CPU where it fits there, else, as from the CPU, out of memory."""
    if _fits_cpu(base):
        _move(base, "cpu")
        return
    for key in [key for key, value in _BASES.items() if value is base]:
        del _BASES[key]


def _kind(device: str) -> str:
    return str(device).partition(":")[0]


def _return_memory(device: str) -> None:
    if _kind(device) == "cuda":
        import torch

        torch.cuda.empty_cache()
