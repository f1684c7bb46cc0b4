"""The order of samples is a function of (seed, step), and every epoch sees everything once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_train.data.order import Order, permutation, raw
from cascade_train.errors import CascadeError

SIZES = [(64, 64), (48, 80), (80, 48)]


def test_an_epoch_of_one_bucket_sees_each_sample_once() -> None:
    order = Order(np.zeros(12, dtype=np.int32), SIZES[:1], 4)
    for epoch in range(3):
        seen = [s for step in range(3 * epoch, 3 * epoch + 3) for s in order.at(7, step)[1].tolist()]
        assert sorted(seen) == list(range(12))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 2), min_size=1, max_size=40), st.integers(1, 7), st.integers(0, 5))
def test_every_epoch_of_every_bucket_is_a_permutation(buckets: list[int], batch: int, seed: int) -> None:
    bucket_of = np.array(buckets, dtype=np.int32)
    if not (bucket_of >= 0).any():
        with pytest.raises(CascadeError):
            Order(bucket_of, SIZES, batch)
        return
    order = Order(bucket_of, SIZES, batch)
    streams: dict[int, list[int]] = {}
    for step in range(order.steps_in(6)):
        bucket, samples = order.at(seed, step)
        assert len(samples) == batch
        assert set(bucket_of[samples]) == {bucket}
        streams.setdefault(bucket, [])
    for step in _steps_in_bucket_order(order, seed, 6):
        bucket, samples = order.at(seed, step)
        streams[bucket].extend(samples.tolist())
    for bucket, stream in streams.items():
        members = np.flatnonzero(bucket_of == bucket).tolist()
        if len(members) >= batch:
            for first in range(0, len(stream) - len(members) + 1, len(members)):
                assert sorted(stream[first : first + len(members)]) == members
        else:
            assert set(stream) == set(members)


def _steps_in_bucket_order(order: Order, seed: int, epochs: int) -> list[int]:
    """The steps so that each bucket's batches come in the order of its stream."""
    numbered = []
    for step in range(order.steps_in(epochs)):
        epoch = order.epoch_of(step)
        slot, number = order._schedule(seed, epoch)[step - order.steps_in(epoch)]
        numbered.append((int(slot), int(number), step))
    return [step for _, _, step in sorted(numbered)]


def test_over_many_epochs_all_samples_are_seen_equally_often() -> None:
    bucket_of = np.array([0] * 9 + [1] * 7 + [2] * 5, dtype=np.int32)
    order = Order(bucket_of, SIZES, 4)
    counts: Counter[int] = Counter()
    for step in range(order.steps_in(8)):
        counts.update(order.at(0, step)[1].tolist())
    assert set(counts.values()) <= {7, 8}


def test_the_order_does_not_depend_on_what_was_asked_before() -> None:
    bucket_of = np.array([0, 1] * 20, dtype=np.int32)
    forwards, jumping = Order(bucket_of, SIZES, 3), Order(bucket_of, SIZES, 3)
    wanted = [forwards.at(5, step) for step in range(50)]
    for step in (49, 3, 27, 3, 0):
        bucket, samples = jumping.at(5, step)
        assert bucket == wanted[step][0] and (samples == wanted[step][1]).all()


def test_another_process_draws_the_same() -> None:
    code = (
        "import numpy as np; from cascade_train.data.order import Order; "
        "o=Order(np.array([0,1]*20,dtype=np.int32),[(64,64),(48,80)],3); "
        "print([o.at(11,s)[1].tolist() for s in (0,17,400)])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    order = Order(np.array([0, 1] * 20, dtype=np.int32), SIZES[:2], 3)
    assert said.strip() == str([order.at(11, step)[1].tolist() for step in (0, 17, 400)])


def test_the_order_is_the_one_that_shipped() -> None:
    """Changing it would make a run that is resumed after an update see other samples: these numbers stay."""
    order = Order(np.array([0, 0, 0, 0, 0, 1, 1, 1], dtype=np.int32), SIZES[:2], 2)
    assert [order.at(1, step)[1].tolist() for step in range(4)] == [[5, 7], [2, 0], [3, 4], [3, 4]]


def test_seeds_differ_and_epochs_differ() -> None:
    order = Order(np.zeros(64, dtype=np.int32), SIZES[:1], 64)
    first, second, other = order.at(0, 0)[1], order.at(0, 1)[1], order.at(1, 0)[1]
    assert (first != second).any() and (first != other).any()


def test_repeats_and_shares_set_how_often_an_epoch_sees_a_sample() -> None:
    bucket_of = np.zeros(10, dtype=np.int32)
    whole = np.array([1] * 6 + [2] * 4)
    fraction = np.array([0.0] * 6 + [0.5] * 4)
    group = np.array([0] * 6 + [1] * 4)
    order = Order(bucket_of, SIZES[:1], 4, whole=whole, fraction=fraction, group=group)
    assert order.steps_in(1) * 4 == 6 + 8 + 2
    for epoch in range(4):
        seen = Counter(s for step in range(4 * epoch, 4 * epoch + 4) for s in order.at(3, step)[1].tolist())
        assert all(seen[s] == 1 for s in range(6))
        assert sorted(seen[s] for s in range(6, 10)) == [2, 2, 3, 3]
    both = Counter(s for step in range(8) for s in order.at(3, step)[1].tolist())
    assert all(both[s] == 5 for s in range(6, 10)), "the extra half goes round evenly"


def test_a_small_bucket_is_filled_or_merged_and_said() -> None:
    bucket_of = np.array([0] * 8 + [1] * 2, dtype=np.int32)
    filled = Order(bucket_of, SIZES[:2], 4)
    batches = [filled.at(0, step) for step in range(3)]
    small = next(samples for bucket, samples in batches if bucket == 1)
    assert sorted(small.tolist()) == [8, 8, 9, 9]
    assert "48×80 has 2 of the 4" in filled.notes[0] and "repeats" in filled.notes[0]

    merged = Order(bucket_of, SIZES[:2], 4, leftovers="merge")
    assert all(merged.at(0, step)[0] == 0 for step in range(6))
    assert sorted(s for step in range(5) for s in merged.at(0, step)[1].tolist()) == sorted([*range(10)] * 2)
    assert "merged into 64×64" in merged.notes[0]


def test_raw_numbers_are_a_prefix_and_a_permutation_is_one() -> None:
    assert (raw(100, 1, 2)[:10] == raw(10, 1, 2)).all()
    assert (raw(10, 1, 2) != raw(10, 2, 1)).any()
    assert sorted(permutation(1000, 9)) == list(range(1000))
