"""Which options are offered where memory is short, and counts that are told from others."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import combinations

import pytest

from cascade_train.jobs import savings
from cascade_train.jobs.measured import measure
from cascade_train.jobs.needs import BATCHES, RANKS, between
from cascade_train.jobs.phases import config_of, drawing_task
from cascade_train.jobs.savings import OPTIONS, alone, cheapest, in_use, together
from cascade_train.jobs.tasks import Task
from cascade_train.jobs.ways import Way
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling.sizes import picture_size


def need(way: Way) -> int:
    """A training and a validation, in GB: the options shrink one of them, or both."""
    base = 2 if way.offload else 4 if way.compact else 8
    training = base + (3 if way.single else 6) - (2 if way.checkpointing == "on" else 0)
    drawing = (5 if way.lite_b else 10) - (2 if way.compact else 0)
    return max(training, drawing)


def test_the_cheapest_that_suffices_is_offered() -> None:
    """Against every choice there is: nothing that loses less would do, and nothing offered is in vain."""
    for limit in range(4, 15):
        cure = cheapest(need, limit)
        fitting = [
            sum(option.loss for option in some)
            for count in range(len(OPTIONS) + 1)
            for some in combinations(OPTIONS, count)
            if need(together(some)) <= limit
        ]
        if not fitting:
            assert cure == ()
            continue
        assert need(together(cure)) <= limit
        assert sum(option.loss for option in cure) == pytest.approx(min(fitting))
        assert all(need(together([each for each in cure if each is not one])) > limit for one in cure)
    assert cheapest(need, 14) == () and cheapest(need, 2) == ()
    single = alone(need, 12)
    assert single is not None and single.way == Way(single=True)
    assert alone(need, 8) is None and len(cheapest(need, 8)) > 1


def test_what_saves_already_is_named() -> None:
    def had(way: Way) -> int:
        return 8 if way.checkpointing == "off" else 4 if way.offload is False else 2

    names = {option.name for option in in_use(had, half=True)}
    assert names == {"gradient checkpointing", "models in bf16", "base from the CPU, layer by layer"}
    assert all(option.costs for option in savings.OPTIONS)


def test_a_lora_is_told_from_others(models: ModelsSpec) -> None:
    """Rank and batch between the counted ones, and beyond, against the count itself."""
    task = Task(
        "train", "stage_c", config_of(library.part_file(models, "stage_c")), "bf16", height=8, width=8
    )
    task = replace(task, autocast=True, adapts="lora", modules="attn", positions=16)
    corners = {
        each.name: asdict(measure(each))
        for each in (replace(task, rank=rank, batch=batch) for rank in RANKS for batch in BATCHES)
    }
    for rank, batch in ((32, 2), (64, 3), (8, 6)):
        asked = replace(task, rank=rank, batch=batch)
        said, really = between(asked, corners.get), measure(asked)
        assert said is not None and said.trained == really.trained and said.frozen == really.frozen
        assert said.passes == pytest.approx(really.passes, rel=0.05)
    assert between(replace(task, adapts="dora", rank=32), corners.get) is None
    assert between(replace(task, rank=512), corners.get) is None


def test_long_captions_take_more(models: ModelsSpec) -> None:
    """A caption of three chunks has three times the states to attend to."""
    size = picture_size(library.geometry(models))
    one, three = (
        drawing_task(each, "stage_c", size) for each in (models, replace(models, captions="chunks"))
    )
    assert three.positions == 3 * one.positions and measure(three).passes > measure(one).passes
