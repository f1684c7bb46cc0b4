"""Which checkpoints stay."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import checkpoints, run


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


def test_pruning_keeps_every_branchs_end(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """From the command line, as a person does who needs room."""
    host = studio.CountingHost(tmp_path)
    position = run.start(studio.spec("stage_a", models, label="my run"), host)
    for _ in range(4):
        position, _ = run.train(position, 1, host=host)
    branch, _ = run.train(checkpoints.truncated(position, 2), 1, host=host, learning_rate=1e-5)
    expected = studio.fingerprint(position)

    def command(*words: str) -> tuple[dict, str]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "cascade_train.cli",
                "runs",
                *words,
                "--output-dir",
                str(tmp_path),
                "--json",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1]), done.stdout

    (listed,) = command("ls")[0]["runs"]
    assert (listed["label"], listed["target"], listed["step"]) == ("my run", "stage_a", 4)
    assert len(listed["checkpoints"]) == 5 and listed["trained_by"] == ""
    shown, text = command("show", "my run")
    assert shown["spec"]["batch_size"] == 3 and "2 + 1 at 1e-05" in text
    told, _ = command("prune", position.spec.digest[:8], "--keep-step", "1", "--dry-run")
    assert [gone["step"] for gone in told["deleted"]] == [2, 3] and len(steps_on_disk(position)) == 5
    command("prune", "my run", "--keep-step", "1")
    assert [step for step, _ in steps_on_disk(position)] == [1, 3, 4]
    assert checkpoints.exists(branch) and checkpoints.exists(position)
    # a graph that still names step 3 trains it again, from step 1, to the same bits
    run.release()
    again = studio.CountingHost(tmp_path)
    three, _ = run.train(run.start(studio.spec("stage_a", models), again), 3, host=again)
    assert again.trained == 2
    run.release()
    shutil.rmtree(checkpoints.folder_of(position))
    four, _ = run.train(three, 1, host=again)
    assert studio.fingerprint(four) == expected


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    from cascade_train.training import folders

    with pytest.raises(CascadeError, match="there is no run 'abc'"):
        folders.find(tmp_path, "abc")


def test_weights_are_not_written_twice(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """The result of full training is its weights, or their average: the state leaves out what it holds."""
    host = studio.CountingHost(tmp_path)
    for ema, shared in ((0.0, ["buffer", "parameter"]), (0.9, ["buffer", "ema"])):
        spec = studio.spec("stage_a", models)
        spec = replace(spec, optimizer=replace(spec.optimizer, ema=ema))
        position, _ = run.train(run.start(spec, host), 2, host=host)
        folder = run.checkpoint_of(position)
        info = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))
        assert info["in_trained"] == shared
        run.release()
        later, _ = run.train(position, 1, host=host)
        other = studio.CountingHost(tmp_path / str(ema))
        run.release()
        straight, _ = run.train(run.start(spec, other), 3, host=other)
        assert studio.fingerprint(later) == studio.fingerprint(straight)
