"""The cosine schedule of Stable Cascade in continuous time, as pure functions of tensors.

Time ``t`` runs from 0 (a clean latent) to 1 (noise). The schedule is that of Nichol & Dhariwal 2021
(arXiv:2102.09672, eq. 17) with s = 0.008; the variance-preserving form and logSNR follow Kingma et al. 2021
(arXiv:2107.00630). All functions keep the dtype of their input; use fp32 or better. They use methods of
tensors alone, so that names which stand beside formulas can be read without torch.

`logsnr` is worked out in float64: near t = 0 it is the logarithm of a quotient whose divisor is a difference
of nearly equal numbers, which fp32 gets wrong in the third decimal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

S = 0.008
"""The offset that keeps the schedule from being flat at t = 0."""

VAR_MIN, VAR_MAX = 1e-4, 0.9998999834060669
"""The bounds of the squared signal amplitude: logSNR stays within about ±9.21. The upper one is 0.9999 as
fp32 has it, in which the models were trained: logSNR ends at 9.21007 rather than at 9.21024."""

T_MIN = 0.001
"""The smallest time that training draws."""

_FLOOR = math.cos(S / (1 + S) * math.pi / 2) ** 2


def draw_time(uniform: Tensor) -> Tensor:
    """Training times in [0.001, 1] from draws ``uniform`` in [0, 1), of any shape."""
    return ((1 - uniform) + T_MIN).clamp(T_MIN, 1.0)


def logsnr(t: Tensor, shift: float = 1.0) -> Tensor:
    """log(a²/b²) at times ``t`` in [0, 1], of any shape; within about ±9.21.

    ``shift`` > 1 moves the noise up for larger pictures: logSNR + 2·log(1/shift) (Hoogeboom et al. 2023,
    arXiv:2301.11093, eq. 3), kept within the limits of shift 1, since no network was shown times beyond them
    (the official sampler and ComfyUI clamp so). Training uses 1.
    """
    wide = (t.cpu() if t.device.type == "mps" else t).double()  # Apple's devices have no float64
    var = ((S + wide) / (1 + S) * (math.pi / 2)).cos() ** 2 / _FLOOR
    var = var.clamp(VAR_MIN, VAR_MAX)
    value = (var / (1 - var)).log()
    if shift != 1.0:
        low, high = (math.log(end / (1 - end)) for end in (VAR_MIN, VAR_MAX))
        value = (value + 2 * math.log(1 / shift)).clamp(low, high)
    return value.to(t)


def alpha_sigma(log_snr: Tensor) -> tuple[Tensor, Tensor]:
    """The amplitudes (a, b) of signal and noise, a² + b² = 1, in the shape of ``log_snr``."""
    a = log_snr.sigmoid().sqrt()
    return a, (1 - a**2).sqrt()


def time_input(log_snr: Tensor) -> Tensor:
    """The time that the network is told: the inverse of the cosine schedule at a (clamped) logSNR.

    In [0, 1] and in the shape of ``log_snr``. Differs from t only where `logsnr` clamps (0.0023 at t = 0,
    0.9936 at t = 1). Keep it in fp32: bf16 rounds it in steps of 0.004.
    """
    var = log_snr.sigmoid()
    angle = (var * _FLOOR).clamp(0.0, 1.0).sqrt().acos()
    return (angle / (math.pi / 2) * (1 + S) - S).clamp(0.0, 1.0)


def like(values: Tensor, sample: Tensor) -> Tensor:
    """``values`` (B,), or one for all, shaped (B, 1, …, 1) so that it multiplies ``sample`` (B, …)."""
    return values.view(-1, *([1] * (sample.dim() - 1)))
