"""Learning rates against torch's own schedulers; the moving average against its definition."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

from cascade_train.errors import CascadeError
from cascade_train.training.ema import Ema
from cascade_train.training.objectives.base import ParameterGroup
from cascade_train.training.optimizers import build_optimizer, learning_rate
from cascade_train.training.spec import Block, OptimizerSpec

SPEC = OptimizerSpec(learning_rate=0.4)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 7])
def test_rates_are_those_of_torchs_schedulers(schedule: str, warmup: int) -> None:
    total = 40
    spec = replace(SPEC, schedule=schedule, warmup=warmup)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    after = {
        "constant": lambda: ConstantLR(optimizer, 1.0),
        "cosine": lambda: CosineAnnealingLR(optimizer, total - warmup),
        "linear": lambda: LinearLR(optimizer, 1.0, 1e-12, total - warmup),
    }[schedule]
    scheduler = after()
    if warmup:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
        rising = LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
        scheduler = SequentialLR(optimizer, [rising, after()], [warmup])
    expected = []
    for _ in range(total):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ours = [learning_rate(spec, spec.learning_rate, step, total) for step in range(total)]
    assert ours == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_blocks_own_rate_is_used_as_it_stands() -> None:
    spec = replace(SPEC, schedule="cosine", warmup=2)
    block = Block(10, learning_rate=0.01)
    assert [learning_rate(spec, 0.4, step, 20, block) for step in (0, 1, 15)] == [0.005, 0.01, 0.01]
    # tokens with a rate of their own keep their proportion
    assert learning_rate(spec, 0.8, 15, 20, block) == pytest.approx(0.02)


def test_decay_stays_off_where_a_group_says_so() -> None:
    kept, free = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(
        replace(SPEC, weight_decay=0.5),
        [ParameterGroup({"a": kept}), ParameterGroup({"b": free}, 0.1, decay=False)],
        torch.device("cpu"),
    )
    for value in (kept, free):
        value.grad = torch.zeros(2)
    optimizer.step()
    assert kept.tolist() == pytest.approx([0.8, 0.8]) and free.tolist() == [1.0, 1.0]


def test_an_average_of_steps() -> None:
    value = {"w": torch.tensor([0.0])}
    ema, by_hand = Ema(value, 0.9), 0.0
    for step in range(1, 60):
        value["w"] = torch.tensor([float(step)])
        ema.update(value, step)
        decay = min(0.9, (1 + step) / (10 + step))
        by_hand = decay * by_hand + (1 - decay) * step
    assert float(ema.values["w"]) == pytest.approx(by_hand, rel=1e-5)


def test_accumulation_does_not_count_micro_steps(
    studio: ModuleType, models: object, tmp_path: object
) -> None:
    """Four samples at once, in two parts, in four: one step each, the same up to rounding."""
    from cascade_train.training import run

    states = []
    for parts in (1, 2, 4):
        run.release()
        host = studio.CountingHost(tmp_path)
        spec = studio.spec("lora", models, batch_size=4, accumulation=parts)
        position, metrics = run.train(run.start(spec, host), 3, host=host)
        assert len(metrics.rows) == 3
        states.append((run.trained(position).tensors, [row["loss"] for row in metrics.rows]))
    for tensors, losses in states[1:]:
        assert losses == pytest.approx(states[0][1], rel=1e-4)
        for name, value in tensors.items():
            torch.testing.assert_close(value, states[0][0][name], rtol=1e-2, atol=1e-5)


def test_an_unknown_optimizer_names_the_known_ones() -> None:
    weight = ParameterGroup({"a": torch.nn.Parameter(torch.ones(1))})
    with pytest.raises(CascadeError, match="no optimizer is called 'lion'"):
        build_optimizer(replace(SPEC, name="lion"), [weight], torch.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(CascadeError, match="nothing to train"):
        build_optimizer(SPEC, [ParameterGroup({})], torch.device("cpu"))
