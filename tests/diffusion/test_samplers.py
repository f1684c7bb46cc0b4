"""Sampling against diffusers' own schedulers, and against data whose best denoiser is known."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from diffusers import DDIMScheduler, DDPMWuerstchenScheduler

from cascade_train.diffusion import samplers, schedule
from cascade_train.diffusion.noise import batch_noise
from cascade_train.diffusion.schedule import alpha_sigma
from cascade_train.diffusion.targets import clean_estimate
from cascade_train.errors import CascadeError


def step(
    sampler: samplers.SamplerName,
    x: torch.Tensor,
    epsilon: torch.Tensor,
    level: torch.Tensor,
    next_level: torch.Tensor,
    noise: torch.Tensor | None = None,
) -> torch.Tensor:
    """What ``sampler`` shows the network at ``next_level``, once it has answered ``epsilon`` at ``level``."""
    seen = []

    def estimate(now: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(now)
        return clean_estimate(now, epsilon, level), epsilon

    def fresh(index: int) -> torch.Tensor:
        assert index == 1 and noise is not None, "it draws noise for this step, and only where it says so"
        return noise

    samplers.SAMPLERS[sampler](estimate, x, torch.stack([level, next_level, next_level]), fresh)
    assert torch.equal(seen[0], x) and len(seen) == 2, "each level but the last is evaluated once"
    return seen[1]


def test_a_ddpm_step_is_the_one_of_diffusers() -> None:
    scheduler: Any = DDPMWuerstchenScheduler()
    scheduler.set_timesteps(20)
    levels = samplers.sampling_logsnrs(20)
    generator = torch.Generator().manual_seed(3)
    x, epsilon = torch.randn(2, 16, 8, 8, generator=generator), torch.randn(2, 16, 8, 8, generator=generator)
    for index in (0, 1, 7, 18):
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(9))
        time = scheduler.timesteps[index].expand(2)
        theirs = scheduler.step(epsilon, time, x, generator=torch.Generator().manual_seed(9)).prev_sample
        ours = step("ddpm", x, epsilon, levels[index], levels[index + 1], noise)
        assert torch.allclose(ours, theirs, rtol=2e-4, atol=2e-4), index


def test_a_ddim_step_is_the_one_of_diffusers() -> None:
    scheduler: Any = DDIMScheduler(num_train_timesteps=20, clip_sample=False, set_alpha_to_one=False)
    levels = samplers.sampling_logsnrs(20)
    a, _ = alpha_sigma(levels.double())
    scheduler.alphas_cumprod = (a.flip(0)[1:]) ** 2  # index 19 is noise
    scheduler.set_timesteps(20)
    x, epsilon = torch.randn(1, 4, 4, 4), torch.randn(1, 4, 4, 4)
    for index in (0, 5, 18):
        theirs = scheduler.step(epsilon.double(), 19 - index, x.double()).prev_sample
        ours = step("ddim", x, epsilon, levels[index], levels[index + 1])
        assert torch.allclose(ours.double(), theirs, rtol=1e-3, atol=1e-3), index


@pytest.mark.parametrize("sampler", samplers.SAMPLERS)
def test_gaussian_data_comes_out_with_its_own_mean_and_spread(sampler: samplers.SamplerName) -> None:
    """For x₀ ~ N(m, s²) the best ε is known in closed form, so the sampler alone is on trial."""
    mean, spread, count = 0.7, 0.4, 4000
    levels = samplers.sampling_logsnrs(100)

    def best_epsilon(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        from cascade_train.diffusion.schedule import logsnr

        a, b = alpha_sigma(logsnr(time[0].double()))
        clean = mean + (a * spread**2 / (a**2 * spread**2 + b**2)) * (x.double() - a * mean)
        return ((x.double() - a * clean) / b).float()

    start = batch_noise(range(count), 0, (1, 1, 1), samplers.STAGE_C_NOISE)
    drawn = samplers.sample(best_epsilon, start, levels, range(count), sampler=sampler)
    assert abs(float(drawn.mean()) - mean) < 0.03
    assert abs(float(drawn.std()) - spread) < 0.03


def test_a_v_is_read_at_the_level_that_is_walked_however_it_is_shifted() -> None:
    """x₀ = a·x − b·v (Salimans & Ho 2022, appendix D), beyond the levels that the network can be told too."""
    x, v = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)
    for shift in (1.0, 2.0, 4.0):
        levels = samplers.sampling_logsnrs(1, shift)
        clean = samplers.sample(lambda _x, _time: v, x, levels, range(2), objective="v")
        a, b = alpha_sigma(levels[0].double())
        torch.testing.assert_close(clean, (a * x.double() - b * v.double()).float(), rtol=1e-3, atol=1e-3)


def test_noise_belongs_to_a_picture_and_not_to_its_batch() -> None:
    alone = batch_noise([7], 3, (16, 8, 8), samplers.STAGE_C_NOISE)
    among = batch_noise([1, 7, 2], 3, (16, 8, 8), samplers.STAGE_C_NOISE)
    assert torch.equal(alone[0], among[1])
    assert not torch.equal(among[0], among[2])
    assert not torch.equal(alone, batch_noise([7], 4, (16, 8, 8), samplers.STAGE_C_NOISE))
    assert not torch.equal(alone, batch_noise([7], 3, (16, 8, 8), samplers.STAGE_B_NOISE))


def test_guidance_by_hand() -> None:
    conditional, unconditional = (
        torch.tensor([[1.0, 3.0], [0.0, 2.0]]),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
    )
    plain = samplers.guided(conditional, unconditional, 2.0, 0.0)
    assert torch.equal(plain, torch.tensor([[2.0, 6.0], [-1.0, 3.0]]))
    # The spread of each row doubles under guidance and is drawn back half of the way.
    half = samplers.guided(conditional, unconditional, 2.0, 0.5)
    assert torch.allclose(half, plain * 0.75)
    assert torch.allclose(samplers.guided(conditional, unconditional, 1.0, 0.7), conditional)


def test_guidance_rescaled_by_v_is_that_of_the_rule_in_sigmas() -> None:
    """As Lin et al. 2023 §3.4 state it for v, in the variance-exploding form: x / sqrt(σ² + 1) is what the
    network sees, denoised is x − σ·ε, and v is (x / (σ² + 1) − denoised) · sqrt(σ² + 1) / σ."""
    from cascade_train.sampling.guidance import guided_network

    class Answers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Linear(1, 1)])

        def forward(self, x: torch.Tensor, bias: torch.Tensor, **_: Any) -> tuple[torch.Tensor]:
            return ((x * bias).sin() + bias,)

    x, cfg, rescale = torch.randn(2, 4, 3, 3, dtype=torch.float64), 5.0, 0.7
    level = schedule.logsnr(torch.tensor([0.2, 0.8], dtype=torch.float64), 2.0)
    one, other = torch.full((2, 1, 1, 1), 0.9), torch.full((2, 1, 1, 1), -0.4)
    settings = samplers.SamplerSettings(cfg=cfg, rescale=rescale, rescale_of="v")
    denoise = guided_network(Answers(), settings, {"bias": one}, {"bias": other})
    ours = denoise(x.float(), schedule.time_input(level).float())

    sigma = (-level / 2).exp().view(2, 1, 1, 1)
    wide = x * (sigma**2 + 1).sqrt()
    answers = [(x.float() * bias).sin().double() + bias for bias in (one, other)]
    v, v_other = (
        (wide / (sigma**2 + 1) - (wide - sigma * e)) * (sigma**2 + 1).sqrt() / sigma for e in answers
    )
    pushed = v_other + cfg * (v - v_other)
    spread = v.std((1, 2, 3), keepdim=True) / pushed.std((1, 2, 3), keepdim=True)
    final = rescale * pushed * spread + (1 - rescale) * pushed
    denoised = wide / (sigma**2 + 1) - final * sigma / (sigma**2 + 1).sqrt()
    assert torch.allclose(ours.double(), (wide - denoised) / sigma, rtol=1e-4, atol=1e-4)
    plain = guided_network(Answers(), replace(settings, rescale_of="answer"), {"bias": one}, {"bias": other})
    assert not torch.allclose(plain(x.float(), schedule.time_input(level).float()), ours, atol=1e-2)


def test_guidance_of_one_picture_does_not_look_at_its_neighbour() -> None:
    conditional, unconditional = torch.randn(3, 4, 2, 2), torch.randn(3, 4, 2, 2)
    alone = samplers.guided(conditional[1:2], unconditional[1:2], 5.0, 0.7)
    assert torch.equal(alone[0], samplers.guided(conditional, unconditional, 5.0, 0.7)[1])


def test_the_shift_moves_the_schedule_towards_noise() -> None:
    plain, shifted = samplers.sampling_logsnrs(10), samplers.sampling_logsnrs(10, shift=2.0)
    assert torch.allclose((plain - shifted)[1:], torch.full((10,), 2 * math.log(2)), atol=1e-5)
    assert shifted[0] == plain[0], "a sample starts from no more noise than the network has seen"


def test_image_to_image_starts_where_the_strength_says() -> None:
    levels = samplers.sampling_logsnrs(10, start=0.5)
    assert abs(float(levels[0]) - -0.0246266) < 1e-4  # the reference's log-SNR at t = 0.5
    assert len(levels) == 11


def test_every_name_has_a_sampler() -> None:
    assert tuple(samplers.SAMPLERS) == get_args(samplers.SamplerName)


def test_names_and_formulas_are_read_without_torch() -> None:
    """Nodes and run settings take their choices from here."""
    modules = ", ".join(f"cascade_train.diffusion.{name}" for name in ("samplers", "targets", "weighting"))
    code = f"import sys, {modules}; assert not {{'torch', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_wrong_settings_are_refused_in_words() -> None:
    with pytest.raises(CascadeError, match="0 steps"):
        samplers.SamplerSettings(steps=0)
    with pytest.raises(CascadeError, match="ddpm, ddim"):
        samplers.SamplerSettings(sampler="euler")  # type: ignore[arg-type]
