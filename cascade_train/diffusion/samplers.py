"""DDPM and DDIM sampling on the continuous cosine schedule, with classifier-free guidance.

All tensors are (B, C, H, W); log-SNRs are natural logarithms and fall from noise (−9.2) to data (+9.2) as a
sample is drawn. Formulas: Ho et al. 2020 (DDPM), Song et al. 2021 eq. 12 (DDIM), Ho & Salimans 2022
(guidance), Lin et al. 2023 §3.4 (rescaled guidance).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from cascade_train.diffusion.noise import normals
from cascade_train.diffusion.schedule import alpha_sigma, logsnr, time_input
from cascade_train.diffusion.targets import Objective, noise_prediction
from cascade_train.errors import CascadeError

Sampler = Literal["ddpm", "ddim"]
STAGE_C_NOISE, STAGE_B_NOISE = 64, 65
"""Streams of `noise.normals`, away from those of training. They are part of every picture: append only."""

SAMPLERS: tuple[Sampler, ...] = ("ddpm", "ddim")


@dataclass(frozen=True)
class SamplerSettings:
    """How one stage is sampled.

    Args:
        steps: network evaluations (two each when ``cfg`` is not 1), 1 or more.
        cfg: guidance scale; 1 samples from the condition alone, larger follows it more.
        rescale: how much of the guided prediction's spread is set back to that of the unguided one, 0 to 1.
        sampler: ``ddpm`` draws fresh noise each step, ``ddim`` none.
        shift: moves the schedule towards noise (see `schedule.logsnr`); other programs sample Stage C with 2.
    """

    steps: int = 20
    cfg: float = 4.0
    rescale: float = 0.7
    sampler: Sampler = "ddpm"
    shift: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise CascadeError(f"sampling with {self.steps} steps", fix="Use 1 step or more")
        if self.sampler not in SAMPLERS:
            raise CascadeError(
                f"no sampler is called '{self.sampler}'", fix=f"Use one of {', '.join(SAMPLERS)}"
            )
        if not self.shift > 0:
            raise CascadeError(
                f"a schedule shift of {self.shift}", fix="Use a number above 0; 1 shifts nothing"
            )


def sampling_logsnrs(steps: int, shift: float = 1.0, start: float = 1.0) -> Tensor:
    """The ``steps`` + 1 log-SNRs, fp32, that a sample passes from time ``start`` (1 is pure noise) to 0."""
    times = torch.linspace(start, 0.0, steps + 1, dtype=torch.float32)
    return logsnr(times, shift)


def batch_noise(seeds: Sequence[int], step: int, shape: Sequence[int], stream: int) -> Tensor:
    """Standard normal noise (B, *shape), fp32 on the CPU; row i depends on ``seeds[i]`` alone."""
    return torch.cat([normals(seed, step, [0], shape, stream) for seed in seeds])


def noised(clean: Tensor, noise: Tensor, level: Tensor) -> Tensor:
    """``clean`` brought to log-SNR ``level`` (a scalar): a·x₀ + b·ε."""
    a, b = alpha_sigma(level)
    return a * clean + b * noise


def guided(conditional: Tensor, unconditional: Tensor, cfg: float, rescale: float) -> Tensor:
    """Classifier-free guidance, its spread drawn back to the conditional prediction's by ``rescale``.

    The standard deviations are each picture's own (over C, H, W).
    """
    pushed = unconditional + cfg * (conditional - unconditional)
    if rescale == 0:
        return pushed
    axes = tuple(range(1, conditional.ndim))
    ratio = conditional.std(axes, keepdim=True) / (pushed.std(axes, keepdim=True) + 1e-9)
    return pushed * (rescale * ratio + (1.0 - rescale))


def clean_estimate(x: Tensor, epsilon: Tensor, level: Tensor) -> Tensor:
    """x₀ as the noise prediction ``epsilon`` implies it: (x − b·ε) / a."""
    a, b = alpha_sigma(level)
    return (x - b * epsilon) / a


def step_down(x: Tensor, epsilon: Tensor, level: Tensor, next_level: Tensor, noise: Tensor | None) -> Tensor:
    """One step from log-SNR ``level`` to the higher ``next_level``.

    With ``noise`` the ancestral (DDPM) step, without it the deterministic (DDIM) one.
    """
    a, b = alpha_sigma(level)
    a_next, b_next = alpha_sigma(next_level)
    clean = (x - b * epsilon) / a
    if noise is None:
        return a_next * clean + b_next * epsilon
    variance = (b_next / b) ** 2 * (1.0 - (a / a_next) ** 2)
    direction = (b_next**2 - variance).clamp_min(0.0).sqrt()
    return a_next * clean + direction * epsilon + variance.clamp_min(0.0).sqrt() * noise


Denoiser = Callable[[Tensor, Tensor], Tensor]
"""(x (B, C, H, W), time input (B,) fp32) → the (guided) prediction of the noise, or of v, like x."""


@torch.no_grad()
def sample(
    denoise: Denoiser,
    start: Tensor,
    levels: Tensor,
    seeds: Sequence[int],
    *,
    sampler: Sampler = "ddpm",
    stream: int = STAGE_C_NOISE,
    objective: Objective = "epsilon",
    each_step: Callable[[int, int, Tensor], None] | None = None,
) -> Tensor:
    """Walk ``start`` down ``levels`` and return the last estimate of the clean sample, like ``start``.

    Args:
        denoise: the network; its time input is made here, always in fp32.
        start: (B, C, H, W) at log-SNR ``levels[0]``.
        levels: (steps + 1,) rising log-SNRs from `sampling_logsnrs`.
        objective: what ``denoise`` answers.
        seeds: one for each picture; the noise of a step is a function of (seed, step, ``stream``).
        each_step: called after each evaluation with (steps done, steps, clean estimate). May raise to stop.
    """
    if len(seeds) != start.shape[0]:
        raise CascadeError(f"{len(seeds)} seeds for {start.shape[0]} pictures", fix="Give one seed each")
    steps = len(levels) - 1
    levels = levels.to(start.device)
    x = start
    clean = start
    for index in range(steps):
        time = time_input(levels[index]).to(torch.float32).expand(x.shape[0])
        epsilon = noise_prediction(denoise(x, time).to(x.dtype), x, levels[index], objective)
        clean = clean_estimate(x, epsilon, levels[index])
        if each_step is not None:
            each_step(index + 1, steps, clean)
        if index + 1 < steps:
            noise = None
            if sampler == "ddpm":
                noise = batch_noise(seeds, index + 1, x.shape[1:], stream).to(x)
            x = step_down(x, epsilon, levels[index], levels[index + 1], noise)
    return clean
