"""Whatever stops a training, the same graph run again ends in the same bits. With real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from cascade_train.errors import CascadeError, Interrupted
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import checkpoints, run
from cascade_train.training.metrics import METRICS

STUDIO = Path(__file__).parent / "studio.py"


def process(root: Path, models: Path, kind: str, steps: int, **settings: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(STUDIO), str(root), str(models), kind, str(steps), json.dumps(settings)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_kill_at_random_moments_and_run_again_is_bit_identical(
    studio: ModuleType, models: ModelsSpec, models_folder: Path, tmp_path: Path
) -> None:
    """Checkpoints are written all the time here, so that kills also hit the writing of one."""
    steps = 30
    source = random.Random(11)
    for _ in range(3):
        child = process(tmp_path / "killed", models_folder, "stage_a", steps, save_seconds=0.0, pause=0.02)
        assert child.stdout is not None
        for _ in range(source.randint(1, 8)):
            assert child.stdout.readline().startswith("step")
        time.sleep(source.uniform(0, 0.05))
        child.kill()
        child.communicate()
        assert child.returncode != 0
    host = studio.CountingHost(tmp_path / "killed")
    resumed, metrics = run.train(run.start(studio.spec("stage_a", models), host), steps, host=host)
    assert host.trained < steps  # it went on from where the others had come
    run.release()
    other = studio.CountingHost(tmp_path / "straight")
    straight, expected = run.train(run.start(studio.spec("stage_a", models), other), steps, host=other)
    assert other.trained == steps and studio.fingerprint(resumed) == studio.fingerprint(straight)
    assert [row["loss"] for row in metrics.rows] == [row["loss"] for row in expected.rows]
    assert not list((Path(resumed.folder) / "checkpoints").glob(".*"))


def test_a_killed_lora_goes_on_as_if_nothing_had_been(
    studio: ModuleType, models: ModelsSpec, models_folder: Path, tmp_path: Path
) -> None:
    child = process(tmp_path / "killed", models_folder, "lora", 6, save_seconds=0.0, pause=0.05)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("step 3"):
            break
    child.kill()
    child.communicate()
    host = studio.CountingHost(tmp_path / "killed")
    resumed, metrics = run.train(run.start(studio.spec("lora", models), host), 6, host=host)
    assert 2 <= host.trained <= 4
    straight_host = studio.CountingHost(tmp_path / "straight")
    straight, expected = run.train(
        run.start(studio.spec("lora", models), straight_host), 6, host=straight_host
    )
    assert studio.fingerprint(resumed) == studio.fingerprint(straight)
    assert [row["loss"] for row in metrics.rows] == [row["loss"] for row in expected.rows]


def test_a_second_process_is_refused_and_told_who_trains(
    studio: ModuleType, models: ModelsSpec, models_folder: Path, tmp_path: Path
) -> None:
    child = process(tmp_path, models_folder, "stage_a", 10_000, pause=0.05)
    assert child.stdout is not None and child.stdout.readline().startswith("step")
    host = studio.CountingHost(tmp_path)
    position = run.start(studio.spec("stage_a", models), host)
    try:
        with pytest.raises(CascadeError) as refused:
            run.train(position, 10_000, host=host)
    finally:
        child.kill()
        child.communicate()
    assert f"process {child.pid} on " in str(refused.value) and "Wait for it or stop it" in str(refused.value)
    # the lock fell with the process
    run.train(position, 1, host=host)


@pytest.mark.skipif(os.name != "posix", reason="a limit on the size of files is POSIX's")
def test_a_full_disk_leaves_the_last_checkpoint_whole(
    studio: ModuleType, models: ModelsSpec, models_folder: Path, tmp_path: Path
) -> None:
    child = process(tmp_path / "full", models_folder, "stage_a", 3, first=2, file_limit=20_000)
    _, err = child.communicate(timeout=120)
    assert child.returncode != 0 and "checkpoint at step 5 could not be written" in err
    assert "Free space" in err
    host = studio.CountingHost(tmp_path / "full")
    position = run.start(studio.spec("stage_a", models), host)
    (left,) = checkpoints.listed(Path(position.folder))
    assert left.step == 2
    position, _ = run.train(position, 2, host=host)
    assert host.trained == 0
    position, _ = run.train(position, 3, host=host)
    other = studio.CountingHost(tmp_path / "straight")
    straight, _ = run.train(run.start(studio.spec("stage_a", models), other), 5, host=other)
    assert studio.fingerprint(position) == studio.fingerprint(straight)
    assert not list(Path(position.folder).rglob("*.part"))


@pytest.mark.parametrize("where", ["between steps", "in the progress hook"])
def test_pressing_stop_keeps_every_step(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, where: str
) -> None:
    host = studio.CountingHost(tmp_path / "stopped", interrupt_before=3 if where == "between steps" else None)
    if where == "in the progress hook":

        def hook(done: int, total: int, text: str, preview: object) -> None:
            if done >= 3:
                raise Interrupted("stop")

        host.sink.progress = hook
    position = run.start(studio.spec("lora", models), host)
    run_progress, run.PROGRESS_SECONDS = run.PROGRESS_SECONDS, 0.0
    try:
        with pytest.raises(Interrupted):
            run.train(position, 6, host=host)
    finally:
        run.PROGRESS_SECONDS = run_progress
    again = studio.CountingHost(tmp_path / "stopped")
    resumed, metrics = run.train(position, 6, host=again)
    assert again.trained == 3 and len(metrics.rows) == 6
    other = studio.CountingHost(tmp_path / "straight")
    straight, _ = run.train(run.start(studio.spec("lora", models), other), 6, host=other)
    assert studio.fingerprint(resumed) == studio.fingerprint(straight)


def test_stop_signal_of_the_terminal_is_as_good(
    models_folder: Path, studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    # a shell has what it runs in the background ignore this signal, and so their children
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = process(tmp_path, models_folder, "stage_a", 10_000, pause=0.02)
    finally:
        signal.signal(signal.SIGINT, before)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("step 4"):
            break
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    host = studio.CountingHost(tmp_path)
    position = run.start(studio.spec("stage_a", models), host)
    (left,) = checkpoints.listed(Path(position.folder))
    assert left.step >= 4 and left.kind == "timed"


def test_a_damaged_checkpoint_costs_steps_but_not_the_run(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    two, _ = run.train(run.start(studio.spec("stage_a", models), host), 2, host=host)
    four, _ = run.train(two, 2, host=host)
    expected = studio.fingerprint(four)
    six, _ = run.train(four, 2, host=host)
    six_expected = studio.fingerprint(six)
    for position in (four, six):
        whole = checkpoints.folder_of(position)
        with (whole / checkpoints.STATE).open("rb+") as handle:
            handle.truncate(100)
    (checkpoints.folder_of(six) / checkpoints.INFO).unlink()
    run.release()
    again = studio.CountingHost(tmp_path)
    six, _ = run.train(four, 2, host=again)
    assert again.trained == 4 and studio.fingerprint(six) == six_expected
    assert any("cannot be read" in warning for warning in again.sink.warnings)
    assert expected != six_expected


def test_a_metrics_line_cut_off_by_a_crash_is_mended(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("stage_a", models), host), 2, host=host)
    with (Path(position.folder) / METRICS).open("a", encoding="utf-8") as lines:
        lines.write('{"step": 3, "loss": 0.12')
    assert [row["step"] for row in run.metrics(position)] == [1, 2]
    _, metrics = run.train(position, 2, host=host)
    assert [row["step"] for row in metrics.rows] == [1, 2, 3, 4]


def test_a_loss_that_is_not_a_number_stops_before_it_does_harm(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", models), host), 1, host=host)
    with pytest.raises(CascadeError, match="not a number any more at step 3") as told:
        run.train(position, 5, host=host, learning_rate=1e30)
    assert "Lower the learning rate" in str(told.value)
    before = studio.fingerprint(position)
    healthy, _ = run.train(position, 1, host=host)
    assert studio.fingerprint(position) == before and healthy.step == 2


def test_the_same_process_may_not_train_a_run_twice_at_once(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """Two prompts of one ComfyUI server, say."""
    host = studio.CountingHost(tmp_path)
    position = run.start(studio.spec("stage_a", models), host)
    refused: list[BaseException] = []
    real = host.check_interrupt

    def meanwhile() -> None:
        host.check_interrupt = real

        def other() -> None:
            try:
                run.train(position, 3, host=studio.CountingHost(tmp_path))
            except CascadeError as error:
                refused.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        real()

    host.check_interrupt = meanwhile
    run.train(position, 2, host=host)
    assert len(refused) == 1 and f"process {os.getpid()}" in str(refused[0])


def test_too_little_memory_says_what_helps(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    import torch

    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", models), host), 1, host=host)

    def no_room(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    next(iter(run._live.values())).objective.unet.register_forward_pre_hook(no_room)  # type: ignore[attr-defined]
    with pytest.raises(CascadeError, match="too little memory") as told:
        run.train(position, 1, host=host)
    assert "raise accumulation (now 1, up to 3), train in bf16, load the models in bf16" in str(told.value)
    run.train(position, 1, host=host)


class Impatient:
    """Raises when it is asked in the middle of a step, the ``number``-th time, as a pressed button would."""

    def __init__(self, host: object, number: int) -> None:
        self.host, self.left = host, number
        self.real = host.check_interrupt  # type: ignore[attr-defined]
        host.check_interrupt = self  # type: ignore[attr-defined]

    def __call__(self) -> None:
        if sys._getframe(1).f_code.co_name == "check_stop":
            self.left -= 1
            if self.left == 0:
                raise Interrupted("stop")
        elif sys._getframe(1).f_code.co_name == "check_interrupt":
            self.host.trained += 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("number", [2, 9, 12])
def test_stopping_in_the_middle_of_a_step_leaves_the_state_before_it(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, number: int
) -> None:
    """Between the parts of a batch, and while pictures and captions are encoded."""
    spec = studio.spec("dora", models, accumulation=3)
    host = studio.CountingHost(tmp_path / "stopped")
    position = run.start(spec, host)
    Impatient(host, number)
    with pytest.raises(Interrupted):
        run.train(position, 5, host=host)
    again = studio.CountingHost(tmp_path / "stopped")
    resumed, metrics = run.train(position, 5, host=again)
    other = studio.CountingHost(tmp_path / "straight")
    run.release()
    straight, expected = run.train(run.start(spec, other), 5, host=other)
    assert studio.fingerprint(resumed) == studio.fingerprint(straight)
    assert [row["loss"] for row in metrics.rows] == [row["loss"] for row in expected.rows]
    assert again.trained == 5 - (host.trained - 1), "every whole step was kept"


def test_a_pass_that_fails_takes_back_the_running_statistics_it_moved(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path / "failed")
    two, _ = run.train(run.start(studio.spec("stage_a", models), host), 2, host=host)

    passes = []

    def fail(*_: object) -> None:
        passes.append(1)
        if len(passes) == 2:
            raise Interrupted("stop")

    modules = next(iter(run._live.values())).objective.modules.modules()
    last = [module for module in modules if "BatchNorm" in type(module).__name__][-1]
    last.register_forward_hook(fail)
    with pytest.raises(Interrupted):
        run.train(two, 2, host=host)
    again = studio.CountingHost(tmp_path / "failed")
    four, _ = run.train(two, 2, host=again)
    assert again.trained == 1, "the step before was saved as it was"
    other = studio.CountingHost(tmp_path / "straight")
    run.release()
    straight, _ = run.train(run.start(studio.spec("stage_a", models), other), 4, host=other)
    assert studio.fingerprint(four) == studio.fingerprint(straight)
