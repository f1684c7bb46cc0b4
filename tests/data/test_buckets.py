"""Buckets by the reference's rule, checked against the rule written out plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cascade_train.data.buckets import Buckets, parse_ratio, parse_resolutions
from cascade_train.data.spec import REFERENCE_RATIOS, BucketSpec
from cascade_train.errors import CascadeError


def reference(width: int, height: int, side: int, multiple: int) -> tuple[int, int]:
    """facts §3, straight: the ratios and their inverses; nearest by |width/height − ratio|; floored sizes."""
    ratios = [eval_ratio(text) for text in REFERENCE_RATIOS]
    ratios += [1 / ratio for ratio in ratios]
    best = min(range(len(ratios)), key=lambda i: abs(width / height - ratios[i]))
    ratio, density = ratios[best], side * side
    tall = int((density / ratio) ** 0.5 // multiple) * multiple
    wide = int((density * ratio) ** 0.5 // multiple) * multiple
    return wide, tall


def eval_ratio(text: str) -> float:
    over, under = text.split("/")
    return int(over) / int(under)


def assign(buckets: Buckets, *sizes: tuple[int, int]) -> list[tuple[int, int] | None]:
    widths, heights = np.array([w for w, _ in sizes]), np.array([h for _, h in sizes])
    chances = np.arange(len(sizes), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return [buckets.sizes[i] if i >= 0 else None for i in buckets.assign(widths, heights, chances)]


@given(st.integers(16, 5000), st.integers(16, 5000), st.sampled_from([768, 1024, 512]))
def test_the_reference_rule(width: int, height: int, side: int) -> None:
    buckets = Buckets(BucketSpec(size=side, ratios=REFERENCE_RATIOS), 32, 768)
    assert assign(buckets, (width, height)) == [reference(width, height, side, 32)]


def test_sizes_at_768_have_latent_grids_that_people_know() -> None:
    buckets = Buckets(BucketSpec(ratios=REFERENCE_RATIOS), 32, 768)
    assert buckets.sizes[0] == (768, 768) and buckets.bucket(0).grid == (24, 24)
    assert all(w % 32 == 0 and h % 32 == 0 and w * h <= 768 * 768 for w, h in buckets.sizes)
    assert len(buckets.sizes) == len(set(buckets.sizes))


def test_a_share_goes_to_random_buckets() -> None:
    spec = BucketSpec(ratios=("1/1", "1/2"), random_share=0.05)
    chances = np.random.default_rng(0).integers(0, 2**64, 40_000, dtype=np.uint64)
    square = np.full(40_000, 500)
    got = Buckets(spec, 32, 768).assign(square, square, chances)
    away = (got != 0).mean()
    assert abs(away - 0.05 * 2 / 4) < 0.004, "of 1, 1/2, 1, 2 half are another size"


def test_explicit_resolutions() -> None:
    spec = BucketSpec(resolutions=parse_resolutions("64x64, 128x128\n96 x 64"))
    buckets = Buckets(spec, 32, 768)
    assert assign(buckets, (200, 200), (100, 100), (300, 200), (20, 20)) == [
        (128, 128),
        (64, 64),
        (96, 64),
        (64, 64),
    ], "the largest of its aspect that needs no enlarging"
    with pytest.raises(CascadeError, match="100x100 does not fit"):
        Buckets(BucketSpec(resolutions=((100, 100),)), 32, 768)
    with pytest.raises(CascadeError, match="no resolution"):
        parse_resolutions("64by64")


def test_small_pictures_are_dropped_or_trained_at_their_own_size() -> None:
    assert assign(Buckets(BucketSpec(min_side=100), 32, 768), (99, 400), (100, 400)) == [None, (768, 768)]
    own = Buckets(BucketSpec(ratios=("1/1", "1/2"), upscale=False), 32, 768)
    assert assign(own, (900, 900), (300, 350), (20, 900)) == [(768, 768), (288, 320), None]


def test_training_off_the_sampling_grid_is_warned_about() -> None:
    assert not Buckets(BucketSpec(), 32, 768).warnings()
    (warning,) = Buckets(BucketSpec(size=1024), 32, 768).warnings()
    assert "32×32" in warning and "24×24" in warning and "size 768" in warning


def test_ratios_as_people_write_them() -> None:
    assert parse_ratio("16:9") == parse_ratio(" 16/9 ") == 16 / 9 and parse_ratio("0.75") == 0.75
    for wrong in ("", "a/b", "3/0", "-1", "1/2/3"):
        with pytest.raises(CascadeError, match="aspect ratio"):
            parse_ratio(wrong)
    assert math.isclose(parse_ratio("6/9"), 2 / 3)
