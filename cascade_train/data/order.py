"""The order of samples: a pure function of (seed, step), whatever the number of ranks and workers.

Every bucket is an endless stream: its samples in the order of epoch 0, then of epoch 1, and so on, each
epoch a permutation drawn from (seed, bucket, epoch). A batch takes the next ``batch`` places of one bucket's
stream, so batches are whole, stay within one bucket, and every epoch of a bucket holds each of its samples
exactly once; a batch that does not fit into one epoch goes on in the next. The batches that become whole
within one epoch are shuffled among each other. Only a bucket smaller than the batch repeats samples within
an epoch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from cascade_train.data.buckets import nearest_large
from cascade_train.errors import CascadeError

_KEPT = 64
"""Permutations kept in memory (two a bucket are in use at a time)."""

_MASK = (1 << 64) - 1


def raw(count: int, *key: int) -> np.ndarray:
    """``count`` random uint64, a function of the integers ``key`` alone.

    Philox is counter-based and its raw output is fixed, unlike the distributions of ``numpy.random``.
    The first n of a longer draw are the draw of n.
    """
    first, second = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
    for value in key:
        first = mix(first ^ (value & _MASK))
        second = mix(second + first)
    return np.random.Philox(key=(second << 64) | first).random_raw(count)


def mix(value: int) -> int:
    """A 64-bit integer hash (the finaliser of splitmix64, Steele et al. 2014)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def unit(values: np.ndarray) -> np.ndarray:
    """uint64 → float64 in [0, 1)."""
    return (values >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def permutation(count: int, *key: int) -> np.ndarray:
    """0 … count−1 (int64) in an order that depends on ``key`` alone."""
    return np.argsort(raw(count, *key), kind="stable")


class Order:
    """Which samples make up which step.

    Args:
        bucket_of: (N,) the bucket of each sample, −1 for none.
        sizes: (width, height) of each bucket.
        whole: (N,) how many times an epoch sees each sample for certain.
        fraction: (N,) the chance in [0, 1) that an epoch sees it once more; equal within a `group`.
        group: (N,) which samples share such a chance. Of each group the same number is added every epoch.
        batch: samples in the global batch.
        leftovers: what becomes of a bucket smaller than the batch.
    """

    def __init__(
        self,
        bucket_of: np.ndarray,
        sizes: Sequence[tuple[int, int]],
        batch: int,
        *,
        whole: np.ndarray | None = None,
        fraction: np.ndarray | None = None,
        group: np.ndarray | None = None,
        leftovers: str = "fill",
    ) -> None:
        if batch < 1:
            raise CascadeError(f"a batch of {batch} samples is impossible", fix="Use at least 1")
        self.batch = batch
        self.sizes = list(sizes)
        self.notes: tuple[str, ...] = ()
        used = np.flatnonzero(bucket_of >= 0)
        if not len(used):
            raise CascadeError("there is no sample to draw")
        times = np.ones(len(bucket_of), dtype=np.int64) if whole is None else whole.astype(np.int64)
        members, extras = self._members(bucket_of, used, times, fraction, group)
        members, extras = self._place_small(members, extras, leftovers)
        self._buckets = [index for index in range(len(self.sizes)) if self._length(members, extras, index)]
        self._fixed = {index: members[index] for index in self._buckets}
        self._drawn = {index: extras[index] for index in self._buckets}
        self._lengths = [self._length(members, extras, index) for index in self._buckets]
        self._filled = [length < batch for length in self._lengths]
        self._memo: OrderedDict[tuple[int, int, int], np.ndarray] = OrderedDict()
        self._lock = Lock()

    @staticmethod
    def _length(members: list[np.ndarray], extras: list[list[tuple[np.ndarray, int]]], index: int) -> int:
        return len(members[index]) + sum(take for _, take in extras[index])

    def _members(
        self,
        bucket_of: np.ndarray,
        used: np.ndarray,
        times: np.ndarray,
        fraction: np.ndarray | None,
        group: np.ndarray | None,
    ) -> tuple[list[np.ndarray], list[list[tuple[np.ndarray, int]]]]:
        """Per bucket: the places seen every epoch, and pools with how many of each an epoch adds."""
        members: list[np.ndarray] = []
        extras: list[list[tuple[np.ndarray, int]]] = []
        for index in range(len(self.sizes)):
            mine = used[bucket_of[used] == index]
            members.append(np.repeat(mine, times[mine]))
            pools = []
            if fraction is not None and group is not None:
                for name in np.unique(group[mine]):
                    pool = mine[group[mine] == name]
                    take = int(np.floor(float(fraction[pool[0]]) * len(pool) + 0.5)) if len(pool) else 0
                    if take:
                        pools.append((pool, take))
            extras.append(pools)
        return members, extras

    def _place_small(
        self, members: list[np.ndarray], extras: list[list[tuple[np.ndarray, int]]], leftovers: str
    ) -> tuple[list[np.ndarray], list[list[tuple[np.ndarray, int]]]]:
        notes = []
        counts = [self._length(members, extras, index) for index in range(len(self.sizes))]
        for index in sorted(range(len(self.sizes)), key=lambda i: counts[i]):
            count = counts[index]
            if not 0 < count < self.batch:
                continue
            width, height = self.sizes[index]
            target = None
            if leftovers == "merge":
                target = nearest_large(self.sizes, counts, index, self.batch)
                if target is None:
                    target = nearest_large(self.sizes, counts, index, 1)
            if target is None:
                notes.append(
                    f"bucket {width}×{height} has {count} of the {self.batch} samples of a batch: "
                    "its batch is filled with repeats"
                )
                continue
            into = self.sizes[target]
            notes.append(
                f"bucket {width}×{height} has {count} of the {self.batch} samples of a batch: "
                f"merged into {into[0]}×{into[1]}"
            )
            members[target] = np.sort(np.concatenate([members[target], members[index]]), kind="stable")
            extras[target] = extras[target] + extras[index]
            members[index], extras[index] = members[index][:0], []
            counts[target] += count
            counts[index] = 0
        self.notes = tuple(notes)
        return members, extras

    def steps_in(self, epochs: int) -> int:
        """How many batches are whole after so many epochs."""
        return sum(self._batches(slot, epochs) for slot in range(len(self._buckets)))

    def _batches(self, slot: int, epochs: int) -> int:
        return epochs if self._filled[slot] else epochs * self._lengths[slot] // self.batch

    def epoch_of(self, step: int) -> int:
        """The epoch (from 0) that step ``step`` (from 0) belongs to."""
        rate = sum(
            1.0 if filled else length / self.batch for filled, length in zip(self._filled, self._lengths)
        )
        low = max(0, int(step / rate) - 1)
        while low > 0 and self.steps_in(low) > step:
            low -= 1
        while self.steps_in(low + 1) <= step:
            low += 1
        return low

    def at(self, seed: int, step: int) -> tuple[int, np.ndarray]:
        """(bucket, (batch,) samples) of step ``step`` (from 0) under ``seed``."""
        if step < 0:
            raise ValueError("steps count from 0")
        epoch = self.epoch_of(step)
        slot, number = self._schedule(seed, epoch)[step - self.steps_in(epoch)]
        slot, number = int(slot), int(number)
        length = self._lengths[slot]
        if self._filled[slot]:
            order = self._epoch(seed, slot, number)
            return self._buckets[slot], np.resize(order, self.batch)
        start = number * self.batch
        pieces = []
        need = self.batch
        while need:
            of, place = divmod(start, length)
            piece = self._epoch(seed, slot, of)[place : place + need]
            pieces.append(piece)
            start += len(piece)
            need -= len(piece)
        return self._buckets[slot], pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _schedule(self, seed: int, epoch: int) -> np.ndarray:
        """(steps of the epoch, 2): which bucket's which batch (counted from the beginning) comes when."""

        def make() -> np.ndarray:
            rows = [
                np.stack([np.full(last - first, slot), np.arange(first, last)], axis=1)
                for slot in range(len(self._buckets))
                for first, last in [(self._batches(slot, epoch), self._batches(slot, epoch + 1))]
            ]
            table = np.concatenate(rows)
            return table[permutation(len(table), seed, 1, epoch)]

        return self._remember((seed, -1, epoch), make)

    def _epoch(self, seed: int, slot: int, epoch: int) -> np.ndarray:
        """The bucket's samples in the order of one epoch."""

        def make() -> np.ndarray:
            index = self._buckets[slot]
            width, height = self.sizes[index]
            pool = self._fixed[index]
            for number, (extra, take) in enumerate(self._drawn[index]):
                # A pool's epochs take turns through its own permutation, so all its members are seen evenly.
                begin = epoch * take
                chosen: list[int] = []
                while len(chosen) < take:
                    turn, place = divmod(begin + len(chosen), len(extra))
                    chosen.append(int(permutation(len(extra), seed, 3, width, height, number, turn)[place]))
                pool = np.concatenate([pool, extra[np.array(chosen)]])
            return pool[permutation(len(pool), seed, 2, width, height, epoch)]

        return self._remember((seed, slot, epoch), make)

    def _remember(self, key: tuple[int, int, int], make: object) -> np.ndarray:
        with self._lock:
            if key in self._memo:
                self._memo.move_to_end(key)
                return self._memo[key]
        value: np.ndarray = make()  # type: ignore[operator]
        with self._lock:
            self._memo[key] = value
            while len(self._memo) > max(_KEPT, 3 * len(self._buckets)):
                self._memo.popitem(last=False)
        return value


MOST_NOTES = 3
"""Of small buckets that one line names."""


def together(notes: Sequence[str]) -> str:
    """Notes of the same kind as one line: the first few, and how many more there are."""
    more = len(notes) - MOST_NOTES
    return "; ".join(notes[:MOST_NOTES]) + (f"; and {more} more such" if more > 0 else "")
