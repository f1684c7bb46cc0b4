"""The schedule against the reference's own numbers and against itself."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_train.diffusion import schedule, weighting
from cascade_train.diffusion.targets import noise_prediction, noised, target

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text(encoding="utf-8"))


MORE = json.loads((Path(__file__).parent / "reference_more.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("what", ["logsnr", "time_input", "a", "b", "p2"])
def test_the_reference_trainer_gives_the_same_numbers(what: str) -> None:
    log_snr = schedule.logsnr(torch.tensor(REFERENCE["t"]))
    a, b = schedule.alpha_sigma(log_snr)
    ours = {
        "logsnr": log_snr,
        "time_input": schedule.time_input(log_snr),
        "a": a,
        "b": b,
        "p2": weighting.p2(log_snr),
    }[what]
    # both are fp32, where a rounding step of logSNR 9.2 is 1e-6
    torch.testing.assert_close(ours, torch.tensor(REFERENCE[what]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shift", ["0.5", "3"])
def test_a_shifted_schedule_stays_within_the_references_limits(shift: str) -> None:
    """Without the second clamp the ends are beyond what any network was shown: 12.2 instead of 9.2 … ."""
    log_snr = schedule.logsnr(torch.tensor(MORE["t"]), float(shift))
    torch.testing.assert_close(log_snr, torch.tensor(MORE[f"logsnr_shift_{shift}"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0, 3.0])
def test_logsnr_is_right_to_the_fifth_decimal_everywhere(shift: float) -> None:
    """Straight in fp32 it is 8e-4 off near t = 0, where 1 - var loses what float64 keeps."""
    times = torch.linspace(0, 1, 20_001)
    ours = schedule.logsnr(times, shift)
    assert ours.dtype == torch.float32
    most = float(torch.tensor(0.9999))  # as the reference clamps, in fp32
    low, high = math.log(1e-4 / (1 - 1e-4)), math.log(most / (1 - most))
    for t, value in zip(times.tolist(), ours.tolist()):
        var = math.cos((0.008 + t) / 1.008 * math.pi / 2) ** 2 / math.cos(0.008 / 1.008 * math.pi / 2) ** 2
        var = min(max(var, 1e-4), most)
        wanted = min(max(math.log(var / (1 - var)) - 2 * math.log(shift), low), high)
        assert abs(value - wanted) <= 2e-6, t


@given(st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_the_time_told_to_the_network_is_t_wherever_nothing_is_clamped(t: float) -> None:
    time = torch.tensor([t], dtype=torch.float64)
    told = float(schedule.time_input(schedule.logsnr(time)))
    if 0.01 < t < 0.99:
        assert told == pytest.approx(t, abs=1e-9)
    assert 0.002 < told < 0.994


def test_signal_and_noise_keep_the_variance() -> None:
    a, b = schedule.alpha_sigma(torch.linspace(-9.2, 9.2, 101, dtype=torch.float64))
    torch.testing.assert_close(a**2 + b**2, torch.ones(101, dtype=torch.float64))


def test_training_times_cover_the_whole_range_and_no_more() -> None:
    drawn = schedule.draw_time(torch.tensor([0.0, 1e-4, 0.5, 1 - 2**-24]))
    assert drawn.tolist() == pytest.approx([1.0, 1.0, 0.501, 0.001], abs=1e-6)


def test_bf16_would_lose_the_time_that_fp32_keeps() -> None:
    told = schedule.time_input(schedule.logsnr(torch.linspace(0.9, 0.91, 50)))
    assert told.dtype == torch.float32
    assert len(told.unique()) == 50 and len(told.bfloat16().unique()) < 8


def test_v_is_what_turns_one_noise_level_into_the_next() -> None:
    """v is the derivative of x_t along the angle of the schedule (Salimans & Ho 2022, appendix D)."""
    clean, noise = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    angle, little = torch.tensor([0.4, 1.1], dtype=torch.float64), 1e-6

    def at(phi: torch.Tensor) -> torch.Tensor:
        return noised(clean, noise, torch.log(torch.cos(phi) ** 2 / torch.sin(phi) ** 2))

    slope = (at(angle + little) - at(angle - little)) / (2 * little)
    log_snr = torch.log(torch.cos(angle) ** 2 / torch.sin(angle) ** 2)
    torch.testing.assert_close(target(clean, noise, log_snr, "v"), slope, rtol=1e-6, atol=1e-6)
    x = noised(clean, noise, log_snr)
    torch.testing.assert_close(noise_prediction(slope, x, log_snr, "v"), noise, rtol=1e-6, atol=1e-6)


def test_shift_moves_the_noise_as_larger_pictures_need() -> None:
    t = torch.tensor([0.3, 0.6], dtype=torch.float64)
    moved = schedule.logsnr(t, shift=2.0)
    torch.testing.assert_close(moved, schedule.logsnr(t) - 2 * math.log(2))
