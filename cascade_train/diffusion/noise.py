"""Random numbers as pure functions of (seed, step, index in the global batch, stream).

Built on Philox (Salmon et al. 2011), a counter-based generator: the key is (seed, stream), the counter holds
(step, index), so nothing depends on what was drawn before, on the number of processes, or on how a batch is
split. Everything is drawn on the CPU, so that every device sees the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

(TIME, NOISE, CAPTION_DROP, IMAGE_DROP, DROPOUT, CONDITION, OFFSET, PYRAMID, RESIZE, LATENT, LATENT_SIZE) = (
    range(1, 12)
)
"""Streams: what a number is for. Append only: a stream's number is part of every run's result."""

_MASK = (1 << 64) - 1


def generator(seed: int, step: int, index: int, stream: int) -> np.random.Generator:
    """A fresh generator for one purpose of one sample of one step; ``index`` and ``step`` are ≥ 0."""
    counter = np.array([0, 0, index + 1, step], dtype=np.uint64)
    key = np.array([seed & _MASK, stream], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def uniforms(seed: int, step: int, indices: Sequence[int], stream: int) -> Tensor:
    """One fp32 number in [0, 1) for each sample, (len(indices),)."""
    if not indices:
        return torch.empty(0)
    counter = np.array([0, 0, 0, step], dtype=np.uint64)
    key = np.array([seed & _MASK, stream], dtype=np.uint64)
    source = np.random.Generator(np.random.Philox(counter=counter, key=key))
    row = source.random(max(indices) + 1, np.float32)
    return torch.from_numpy(row[np.asarray(indices)])


def normals(
    seed: int, step: int, indices: Sequence[int], shape: Sequence[int], stream: int = NOISE
) -> Tensor:
    """Standard normal fp32 noise (len(indices), *shape), each row a function of its own index."""
    out = np.empty((len(indices), *shape), dtype=np.float32)
    for row, index in enumerate(indices):
        generator(seed, step, index, stream).standard_normal(dtype=np.float32, out=out[row])
    return torch.from_numpy(out)


def batch_noise(seeds: Sequence[int], step: int, shape: Sequence[int], stream: int) -> Tensor:
    """Standard normal noise (B, *shape), fp32 on the CPU; row i depends on ``seeds[i]`` alone."""
    return torch.cat([normals(seed, step, [0], shape, stream) for seed in seeds])


def of_random_size(
    seed: int, step: int, indices: Sequence[int], shape: Sequence[int], largest: float
) -> Tensor:
    """White noise (len(indices), *shape) of a deviation drawn from [0, ``largest``) for each sample."""
    sizes = largest * uniforms(seed, step, indices, LATENT_SIZE)
    white = normals(seed, step, indices, shape, LATENT)
    return white * sizes.view(-1, *[1] * len(shape))


def with_offset(noise: Tensor, seed: int, step: int, indices: Sequence[int], amount: float) -> Tensor:
    """``noise`` (B, C, H, W) plus ``amount`` times a normal number for each (sample, channel).

    Offset noise (Guttenberg 2023); the reference uses 0.1 for two ControlNets only.
    """
    if amount == 0:
        return noise
    return noise + amount * normals(seed, step, indices, (noise.shape[1], 1, 1), OFFSET).to(noise)


def pyramid(
    noise: Tensor,
    seed: int,
    step: int,
    indices: Sequence[int],
    decay: float = 0.75,
    smallest: int = 1,
    largest: int = 16,
) -> Tensor:
    """Stage B's pyramid noise: ``noise`` (B, C, H, W) plus coarser noise, of about unit variance.

    For i = 1, 2, …, noise of sides floor(side/2^i), nearest-upsampled and weighted ``decay``^i, is added
    where the longer of those sides lies in [``smallest``, ``largest``]; the sum is divided by the root of the
    sum of squared weights. Each dimension uses its own side.
    """
    _batch, channels, height, width = noise.shape
    total, squares = noise, 1.0
    for level in range(1, max(height, width).bit_length() + 1):
        rows, columns = height >> level, width >> level
        if not smallest <= max(rows, columns) <= largest:
            continue
        shape = (channels, max(rows, 1), max(columns, 1))
        coarse = normals(seed, step, indices, shape, PYRAMID + (level << 8)).to(noise)
        weight = decay**level
        spread = torch.nn.functional.interpolate(coarse, size=(height, width), mode="nearest")
        total = total + weight * spread
        squares += weight**2
    return total / squares**0.5
