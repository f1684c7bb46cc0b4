"""Which checkpoints stay."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from cascade_train.errors import Interrupted
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import checkpoints, retention, run


def steps_on_disk(position: run.Position) -> list[tuple[int, str]]:
    return [(saved.step, saved.kind) for saved in checkpoints.listed(Path(position.folder))]


def test_block_ends_stay_and_saves_on_the_way_go(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    two, _ = run.train(run.start(studio.spec("stage_a", models), host), 2, host=host, save_seconds=0.0)
    four, _ = run.train(two, 2, host=host, save_seconds=0.0)
    assert steps_on_disk(four) == [(2, "block end"), (4, "block end")]


def test_a_save_on_the_way_that_a_graph_names_later_becomes_a_block_end(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path, interrupt_before=3)
    start = run.start(studio.spec("stage_a", models), host)
    with pytest.raises(Interrupted):
        run.train(start, 6, host=host)
    assert steps_on_disk(start) == [(3, "timed")]
    again = studio.CountingHost(tmp_path)
    three, _ = run.train(start, 3, host=again)
    assert again.trained == 0 and steps_on_disk(start) == [(3, "block end")]
    six, _ = run.train(three, 3, host=again)
    assert steps_on_disk(six) == [(3, "block end"), (6, "block end")]


def test_pruning_keeps_what_named_positions_need(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position = run.start(studio.spec("stage_a", models), host)
    for _ in range(3):
        position, _ = run.train(position, 1, host=host)
    branch, _ = run.train(checkpoints.truncated(position, 2), 1, host=host, learning_rate=1e-5)
    folder = Path(position.folder)
    beyond = position.after(run.Block(5))  # not trained yet: it would go on from step 3
    gone = retention.unneeded(folder, [beyond])
    assert sorted(saved.step for saved in gone) == [1, 2, 3]
    assert checkpoints.tag_of(branch) in {saved.tag for saved in gone}
    assert retention.delete(gone) == 3
    assert [saved.tag for saved in checkpoints.listed(folder)] == [checkpoints.tag_of(position)]
    assert not list((folder / "checkpoints").glob(".*"))
