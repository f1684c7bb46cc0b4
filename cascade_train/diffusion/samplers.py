"""DDPM and DDIM sampling on the continuous cosine schedule, with classifier-free guidance.

All tensors are (B, C, H, W); log-SNRs are natural logarithms and fall from noise (−9.2) to data (+9.2) as a
sample is drawn. Formulas: Ho et al. 2020 (DDPM), Song et al. 2021 eq. 12 (DDIM), Ho & Salimans 2022
(guidance), Lin et al. 2023 §3.4 (rescaled guidance). A further sampler is a function here, its name in
`SamplerName` and a line in `SAMPLERS`; settings and nodes follow. torch is imported only where it computes,
since nodes read the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cascade_train.diffusion.schedule import alpha_sigma, like, logsnr, time_input
from cascade_train.diffusion.targets import Objective, clean_estimate, noise_prediction
from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from torch import Tensor

SamplerName = Literal["ddpm", "ddim"]

RescaleOf = Literal["answer", "v"]
"""Whose spread guidance is brought back to: that of what the network answers (Stable Cascade: the noise), as
the official code does, or that of v, as ComfyUI's node RescaleCFG does. Append only."""

STAGE_C_NOISE, STAGE_B_NOISE = 64, 65
"""Streams of `noise.normals`, away from those of training. They are part of every picture: append only."""


class Estimate(Protocol):
    """What a sampler asks of the network: one (guided) evaluation."""

    def __call__(self, x: Tensor, index: int, /) -> tuple[Tensor, Tensor]:
        """(x₀, ε) as the network sees them in ``x`` at level number ``index``."""
        ...


class FreshNoise(Protocol):
    """Where a sampler that needs it gets noise from."""

    def __call__(self, index: int, /) -> Tensor:
        """Standard normal noise like x for the step to level number ``index``, the same at every call."""
        ...


class Sampler(Protocol):
    """One way to walk from noise to a picture."""

    def __call__(self, estimate: Estimate, x: Tensor, levels: Tensor, fresh: FreshNoise, /) -> Tensor:
        """Walk ``x``, at ``levels[0]``, down and return the last estimate of x₀.

        ``levels`` are (steps + 1,) rising log-SNRs; each but the last is evaluated.
        """
        ...


def ddpm(estimate: Estimate, x: Tensor, levels: Tensor, fresh: FreshNoise) -> Tensor:
    """Ancestral sampling: each step takes noise out and puts a little fresh noise in."""
    clean, epsilon = estimate(x, 0)
    for index in range(1, len(levels) - 1):
        (a, b), (a_next, b_next) = alpha_sigma(levels[index - 1]), alpha_sigma(levels[index])
        variance = (b_next / b) ** 2 * (1.0 - (a / a_next) ** 2)
        direction = (b_next**2 - variance).clamp_min(0.0).sqrt()
        x = a_next * clean + direction * epsilon + variance.clamp_min(0.0).sqrt() * fresh(index)
        clean, epsilon = estimate(x, index)
    return clean


def ddim(estimate: Estimate, x: Tensor, levels: Tensor, fresh: FreshNoise) -> Tensor:
    """Deterministic sampling: each step carries the predicted noise over and adds none."""
    clean, epsilon = estimate(x, 0)
    for index in range(1, len(levels) - 1):
        a_next, b_next = alpha_sigma(levels[index])
        clean, epsilon = estimate(a_next * clean + b_next * epsilon, index)
    return clean


SAMPLERS: Mapping[SamplerName, Sampler] = {"ddpm": ddpm, "ddim": ddim}
"""The samplers by name."""


@dataclass(frozen=True)
class SamplerSettings:
    """How one stage is sampled.

    Args:
        steps: network evaluations (two each when ``cfg`` is not 1), 1 or more.
        cfg: guidance scale; 1 samples from the condition alone, larger follows it more.
        rescale: how much of the guided prediction's spread is set back to that of the unguided one, 0 to 1.
        sampler: ``ddpm`` draws fresh noise each step, ``ddim`` none.
        shift: moves the schedule towards noise (see `schedule.logsnr`); other programs sample Stage C with 2.
        rescale_of: what ``rescale`` is worked out on.
    """

    steps: int = 20
    cfg: float = 4.0
    rescale: float = 0.7
    sampler: SamplerName = "ddpm"
    shift: float = 1.0
    rescale_of: RescaleOf = "answer"

    def told(self) -> dict[str, Any]:
        """What names a drawing; a setting that is newer than kept drawings is left out at its default."""
        return {
            name: value for name, value in vars(self).items() if (name, value) != ("rescale_of", "answer")
        }

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
    import torch

    return logsnr(torch.linspace(start, 0.0, steps + 1, dtype=torch.float32), shift)


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


def v_of(epsilon: Tensor, x: Tensor, log_snr: Tensor) -> Tensor:
    """v = a·ε − b·x₀ (Salimans & Ho 2022) of a noise prediction at ``x`` (B, …): (ε − b·x) / a.

    ``log_snr`` is (B,), or one for all.
    """
    a, b = alpha_sigma(log_snr)
    return (epsilon - like(b, x) * x) / like(a, x)


class Denoiser(Protocol):
    """A (guided) network."""

    def __call__(self, x: Tensor, time: Tensor, /) -> Tensor:
        """The prediction of the noise, or of v, like ``x`` (B, C, H, W); ``time`` is (B,) fp32."""
        ...


def sample(
    denoise: Denoiser,
    start: Tensor,
    levels: Tensor,
    seeds: Sequence[int],
    *,
    sampler: SamplerName = "ddpm",
    stream: int = STAGE_C_NOISE,
    objective: Objective = "epsilon",
    each_step: Callable[[int, int, Tensor], None] | None = None,
) -> Tensor:
    """Walk ``start`` down ``levels`` and return the last estimate of the clean sample, like ``start``.

    Args:
        denoise: the network; its time input is made here, always in fp32.
        start: (B, C, H, W) at log-SNR ``levels[0]``.
        levels: (steps + 1,) rising log-SNRs from `sampling_logsnrs`.
        seeds: one for each picture; the noise of a step is a function of (seed, step, ``stream``).
        objective: what ``denoise`` answers.
        each_step: called after each evaluation with (steps done, steps, clean estimate). May raise to stop.

    Raises:
        CascadeError: seeds and pictures differ in number.
    """
    import torch

    from cascade_train.diffusion.noise import batch_noise

    if len(seeds) != start.shape[0]:
        raise CascadeError(f"{len(seeds)} seeds for {start.shape[0]} pictures", fix="Give one seed each")
    levels = levels.to(start.device)

    def estimate(x: Tensor, index: int) -> tuple[Tensor, Tensor]:
        level = levels[index]
        time = time_input(level).to(torch.float32).expand(x.shape[0])
        epsilon = noise_prediction(denoise(x, time).to(x.dtype), x, level, objective)
        clean = clean_estimate(x, epsilon, level)
        if each_step is not None:
            each_step(index + 1, len(levels) - 1, clean)
        return clean, epsilon

    def fresh(index: int) -> Tensor:
        return batch_noise(seeds, index, start.shape[1:], stream).to(start)

    with torch.no_grad():
        return SAMPLERS[sampler](estimate, start, levels, fresh)
