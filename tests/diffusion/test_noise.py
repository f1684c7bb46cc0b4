"""Random numbers that belong to a sample of a step, and to nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from cascade_train.diffusion import noise


def test_a_sample_keeps_its_noise_however_the_batch_is_split() -> None:
    whole = noise.normals(7, 123, range(8), (4, 3, 5))
    parts = torch.cat(
        [
            noise.normals(7, 123, [0, 1, 2], (4, 3, 5)),
            noise.normals(7, 123, [3], (4, 3, 5)),
            noise.normals(7, 123, range(4, 8), (4, 3, 5)),
        ]
    )
    assert torch.equal(whole, parts)
    chances = noise.uniforms(7, 123, range(8), noise.TIME)
    assert torch.equal(chances[5:], noise.uniforms(7, 123, [5, 6, 7], noise.TIME))


@pytest.mark.parametrize("changed", [{"seed": 8}, {"step": 124}, {"indices": [1]}, {"stream": noise.OFFSET}])
def test_another_seed_step_sample_or_purpose_is_other_noise(changed: dict) -> None:
    given: dict[str, Any] = {"seed": 7, "step": 123, "indices": [0], "shape": (1000,), "stream": noise.NOISE}
    first, second = noise.normals(**given), noise.normals(**{**given, **changed})
    assert abs(float(np.corrcoef(first.numpy(), second.numpy())[0, 1])) < 0.1


def test_another_process_draws_the_same(tmp_path: object) -> None:
    code = (
        "from cascade_train.diffusion.noise import normals, uniforms; "
        "print(normals(-3, 9, [2], (3,)).tolist(), uniforms(2**70, 9, [4], 1).tolist())"
    )
    answers = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert answers == {
        f"{noise.normals(-3, 9, [2], (3,)).tolist()} {noise.uniforms(2**70, 9, [4], 1).tolist()}\n"
    }


def test_noise_is_normal_and_chances_are_even() -> None:
    drawn = noise.normals(0, 1, range(50), (2000,)).numpy().ravel()
    assert abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.1
    chances = np.concatenate([noise.uniforms(0, step, range(100), noise.TIME).numpy() for step in range(200)])
    assert np.histogram(chances, bins=10, range=(0, 1))[0] == pytest.approx(2000, abs=200)


@pytest.mark.parametrize(("side", "levels"), [((24, 24), 4), ((64, 64), 5), ((16, 40), 4), ((256, 256), 5)])
def test_pyramid_noise_adds_each_coarser_side_between_1_and_16(side: tuple[int, int], levels: int) -> None:
    plain = noise.normals(1, 2, [0, 5], (4, *side))
    ours = noise.pyramid(plain, 1, 2, [0, 5])
    total, squares, used = plain.double(), 1.0, 0
    for i in range(1, 12):
        height, width = side[0] // 2**i, side[1] // 2**i
        if 1 <= max(height, width) <= 16:
            coarse = noise.normals(1, 2, [0, 5], (4, max(height, 1), max(width, 1)), noise.PYRAMID + 256 * i)
            rows = torch.arange(side[0]) * max(height, 1) // side[0]
            columns = torch.arange(side[1]) * max(width, 1) // side[1]
            total = total + 0.75**i * coarse.double()[:, :, rows][:, :, :, columns]
            squares += 0.75 ** (2 * i)
            used += 1
    assert used == levels
    torch.testing.assert_close(ours.double(), total / squares**0.5, rtol=1e-5, atol=1e-5)


def test_offset_noise_moves_whole_channels() -> None:
    plain = noise.normals(1, 2, [0, 1], (3, 6, 6))
    moved = noise.with_offset(plain, 1, 2, [0, 1], 0.1) - plain
    assert moved.flatten(2).std(dim=2).max() < 1e-6 and moved.mean(dim=(2, 3)).unique().numel() == 6
    assert noise.with_offset(plain, 1, 2, [0, 1], 0.0) is plain


def test_noise_of_random_size_is_uniform_in_deviation_and_belongs_to_its_sample() -> None:
    rows = noise.of_random_size(7, 3, range(400), (16, 8, 8), 0.5)
    deviations = rows.flatten(1).std(dim=1)
    assert torch.equal(rows[17:18], noise.of_random_size(7, 3, [17], (16, 8, 8), 0.5))
    # quantiles of U(0, 0.5)
    wanted = torch.tensor([0.05, 0.125, 0.25, 0.375, 0.45])
    assert torch.allclose(deviations.quantile(wanted * 2), wanted, atol=0.04)
    assert deviations.max() < 0.53
