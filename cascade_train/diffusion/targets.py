"""From a clean latent and noise to what the network sees and what it should answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cascade_train.diffusion.schedule import alpha_sigma, like

if TYPE_CHECKING:
    from torch import Tensor

Objective = Literal["epsilon", "v"]
"""What a network answers: the noise, or v."""


def noised(clean: Tensor, noise: Tensor, log_snr: Tensor) -> Tensor:
    """x_t = a·x₀ + b·ε for ``clean`` and ``noise`` (B, …) at ``log_snr``: (B,), or one for all."""
    a, b = alpha_sigma(log_snr)
    return like(a, clean) * clean + like(b, clean) * noise


def target(clean: Tensor, noise: Tensor, log_snr: Tensor, objective: Objective = "epsilon") -> Tensor:
    """What the network should answer, (B, …): ε, or v = a·ε − b·x₀ (Salimans & Ho 2022, arXiv:2202.00512).

    Raises:
        ValueError: for an unknown objective.
    """
    if objective == "epsilon":
        return noise
    if objective == "v":
        a, b = alpha_sigma(log_snr)
        return like(a, clean) * noise - like(b, clean) * clean
    raise ValueError(f"unknown objective {objective!r}")


def noise_prediction(answer: Tensor, x: Tensor, log_snr: Tensor, objective: Objective = "epsilon") -> Tensor:
    """The ε that a network trained for ``objective`` means by ``answer`` at ``x`` (B, …): of a v, a·v + b·x.

    ``log_snr`` is (B,), or one for all.

    Raises:
        ValueError: for an unknown objective.
    """
    if objective == "epsilon":
        return answer
    if objective == "v":
        a, b = alpha_sigma(log_snr)
        return like(a, x) * answer + like(b, x) * x
    raise ValueError(f"unknown objective {objective!r}")


def clean_estimate(x: Tensor, epsilon: Tensor, log_snr: Tensor) -> Tensor:
    """x₀ as the noise prediction ``epsilon`` at ``x`` (B, …) implies it: (x − b·ε) / a.

    ``log_snr`` is (B,), or one for all.
    """
    a, b = alpha_sigma(log_snr)
    return (x - like(b, x) * epsilon) / like(a, x)


def per_sample_mse(prediction: Tensor, wanted: Tensor) -> Tensor:
    """The mean squared error of each sample, (B,), over all other dimensions."""
    return (prediction - wanted).square().flatten(1).mean(dim=1)
