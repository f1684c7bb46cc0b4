"""Loss weights against formulas worked out by hand."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
import torch

from cascade_train.diffusion.weighting import (
    FIXED,
    AdaptiveWeights,
    LossWeight,
    bucket_of,
    min_snr_inverse,
    p2,
)


def test_every_name_has_a_weight() -> None:
    assert set(get_args(LossWeight)) == {*FIXED, "adaptive"}
    log_snr = torch.linspace(-9, 9, 7, dtype=torch.float64)
    for name, weight in FIXED.items():
        assert weight(log_snr).shape == log_snr.shape and weight(log_snr).dtype == log_snr.dtype, name
        assert (weight(log_snr) >= 0).all(), name


def test_p2_counts_noise_and_hardly_counts_clean_latents() -> None:
    log_snr = [-9.2, -1.0, 0.0, 3.0, 9.2]
    by_hand = [1 / (1 + math.exp(value)) for value in log_snr]
    assert p2(torch.tensor(log_snr, dtype=torch.float64)).tolist() == pytest.approx(by_hand, rel=1e-12)


def test_the_inverse_weight_stops_at_its_cap() -> None:
    alpha_bar = torch.tensor([0.9999, 0.5, 0.1, 0.04, 0.0001], dtype=torch.float64)
    weights = min_snr_inverse(torch.log(alpha_bar / (1 - alpha_bar)))
    assert weights.tolist() == pytest.approx([1 / 0.9999, 2.0, 10.0, 20.0, 20.0], rel=1e-9)


def test_every_logsnr_has_one_of_300_buckets() -> None:
    places = bucket_of(torch.tensor([-50.0, -10.0, -9.94, -9.93, 0.0, 9.99, 10.0, 50.0]))
    assert places.tolist() == [0, 0, 0, 1, 150, 299, 299, 299]


def test_adaptive_weights_follow_the_running_loss_of_their_bucket() -> None:
    """Ten steps, worked out again with a dictionary and plain floats."""
    source = random.Random(5)
    ours, by_hand = AdaptiveWeights.fresh(), dict.fromkeys(range(300), 1.0)
    for _ in range(10):
        log_snr = [source.uniform(-9.2, 9.2) for _ in range(6)] + [0.01, 0.02]
        loss = [source.uniform(0.001, 2.0) for _ in log_snr]
        bucket = [math.floor((value + 10) / 20 * 300) for value in log_snr]
        weights = ours.weights(torch.tensor(log_snr, dtype=torch.float64))
        assert weights.tolist() == pytest.approx([1 / by_hand[place] for place in bucket], rel=1e-5)
        for place in set(bucket):
            here = [value for value, where in zip(loss, bucket) if where == place]
            by_hand[place] = 0.99 * by_hand[place] + 0.01 * sum(here) / len(here)
        ours = ours.updated(torch.tensor(log_snr), torch.tensor(loss))


def test_the_order_of_a_batch_does_not_change_the_buckets() -> None:
    log_snr, loss = torch.tensor([0.01, 3.0, 0.02, -4.0]), torch.tensor([0.5, 0.1, 0.9, 1.3])
    turned = torch.tensor([2, 0, 3, 1])
    first = AdaptiveWeights.fresh().updated(log_snr, loss)
    assert torch.equal(first.losses, AdaptiveWeights.fresh().updated(log_snr[turned], loss[turned]).losses)


def test_no_weight_is_endless() -> None:
    nothing = AdaptiveWeights(torch.zeros(300))
    assert nothing.weights(torch.tensor([0.0])).item() == pytest.approx(1e7)
    assert AdaptiveWeights(torch.full((300,), 1e9)).weights(torch.tensor([0.0])).item() == pytest.approx(1e-7)
