"""Loss weights against formulas worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
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

REFERENCE = json.loads((Path(__file__).parent / "reference_more.json").read_text(encoding="utf-8"))


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
    """Worked out by hand: edges 20/298 apart, the first at −10, the last at 10."""
    places = bucket_of(torch.tensor([-50.0, -10.0, -9.94, -9.93, 0.01, 9.99, 10.01, 50.0]))
    assert places.tolist() == [0, 0, 1, 2, 150, 298, 299, 299]


def test_adaptive_weights_are_the_reference_trainers() -> None:
    """Twelve batches of the official trainer, and the buckets that they left."""
    ours = AdaptiveWeights.fresh()
    for batch in REFERENCE["adaptive"]:
        log_snr = torch.tensor(batch["logsnr"])
        assert ours.weights(log_snr).tolist() == pytest.approx(batch["weight_before"], rel=1e-5)
        ours = ours.updated(log_snr, torch.tensor(batch["loss"]))
    assert ours.losses.tolist() == pytest.approx(REFERENCE["adaptive_buckets_after"], rel=1e-5)


def test_samples_in_one_bucket_count_as_their_mean_whatever_their_order() -> None:
    log_snr, loss = torch.tensor([0.01, 0.02, 3.0]), torch.tensor([0.2, 0.6, 5.0])
    losses = AdaptiveWeights.fresh().updated(log_snr, loss).losses
    assert float(losses[bucket_of(log_snr)[0]]) == pytest.approx(0.99 + 0.01 * 0.4)
    back = AdaptiveWeights.fresh().updated(log_snr.flip(0), loss.flip(0)).losses
    assert torch.equal(losses, back)


def test_the_order_of_a_batch_does_not_change_the_buckets() -> None:
    log_snr, loss = torch.tensor([0.01, 3.0, 0.02, -4.0]), torch.tensor([0.5, 0.1, 0.9, 1.3])
    turned = torch.tensor([2, 0, 3, 1])
    first = AdaptiveWeights.fresh().updated(log_snr, loss)
    assert torch.equal(first.losses, AdaptiveWeights.fresh().updated(log_snr[turned], loss[turned]).losses)


def test_no_weight_is_endless() -> None:
    nothing = AdaptiveWeights(torch.zeros(300))
    assert nothing.weights(torch.tensor([0.0])).item() == pytest.approx(1e7)
    assert AdaptiveWeights(torch.full((300,), 1e9)).weights(torch.tensor([0.0])).item() == pytest.approx(1e-7)
