"""A run is a value: what was trained is found again, and the way to it does not matter."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import previews, run
from cascade_train.training.run import apply_trained


def test_queueing_the_same_graph_again_trains_nothing(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    first = studio.CountingHost(tmp_path)
    position, metrics = run.train(run.start(studio.spec("lora", models), first), 4, host=first)
    assert first.trained == 4 and [row["step"] for row in metrics.rows] == [1, 2, 3, 4]
    again = studio.CountingHost(tmp_path)
    second, same = run.train(run.start(studio.spec("lora", models), again), 4, host=again)
    assert again.trained == 0 and second == position and same == metrics


def test_skipped_pictures_are_told_again_when_nothing_is_left_to_train(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    from PIL import Image

    from cascade_train.data.sources import folder_dataset

    pictures = tmp_path / "input" / "pictures"
    pictures.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (64, 64), (60 * number, 0, 0)).save(pictures / f"{number}.png")
        (pictures / f"{number}.txt").write_text("a red [concept], not a circle", encoding="utf-8")
    (pictures / "3.png").write_bytes(b"no picture at all")
    said = []
    for _ in range(2):
        host = studio.CountingHost(tmp_path)
        dataset = folder_dataset(str(pictures), recursive=False, host=_reads(host, tmp_path / "input"))
        run.train(run.start(studio.spec("lora", models, dataset=dataset), host), 1, host=host)
        said.append([line for line in host.sink.warnings if "3.png" in line])
    assert host.trained == 0 and said[0] and said[0] == said[1]


def _reads(host: Any, folder: Path) -> Any:
    """``host``, which may read from ``folder``."""
    host._folders = replace(host.folders, extra_read=(folder,))
    return host


def test_three_blocks_of_two_are_one_block_of_six(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path / "blocks")
    position = run.start(studio.spec("lora", models), host)
    for _ in range(3):
        run.release()  # as when each block runs in a session of its own
        position, metrics = run.train(position, 2, host=host)
    whole_host = studio.CountingHost(tmp_path / "whole")
    whole, whole_metrics = run.train(run.start(studio.spec("lora", models), whole_host), 6, host=whole_host)
    assert position.name == whole.name
    assert studio.fingerprint(position) == studio.fingerprint(whole)
    losses = [(row["step"], row["loss"], row["lr"]) for row in metrics.rows]
    assert losses == [(row["step"], row["loss"], row["lr"]) for row in whole_metrics.rows]


def test_changing_the_last_blocks_rate_retrains_it_alone_from_the_exact_state(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path / "edited")
    middle, _ = run.train(run.start(studio.spec("lora", models), host), 3, host=host)
    first, _ = run.train(middle, 2, host=host)
    host.trained = 0
    other, metrics = run.train(middle, 2, host=host, learning_rate=1e-4)
    assert host.trained == 2 and other.name != first.name and other.step == first.step
    assert metrics.rows[-1]["lr"] == pytest.approx(1e-4) and len(metrics.rows) == 5
    fresh = studio.CountingHost(tmp_path / "fresh")
    straight, _ = run.train(run.start(studio.spec("lora", models), fresh), 3, host=fresh)
    straight, _ = run.train(straight, 2, host=fresh, learning_rate=1e-4)
    assert studio.fingerprint(straight) == studio.fingerprint(other)
    # both branches stay, each with its own metrics
    assert run.metrics(first)[-1]["lr"] == pytest.approx(1e-3) and run.metrics(other)[-1]["lr"] < 2e-4
    assert run.metrics(first)[:3] == run.metrics(other)[:3]


def test_looking_at_a_run_between_blocks_changes_nothing(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """Validation, export and preview in any order, with their own use of torch's random state."""
    import torch

    from cascade_train.models import library

    def use(position: run.Position) -> None:
        torch.manual_seed(1)
        torch.rand(3)
        applied = apply_trained(position.spec.models, position)
        library.part(applied, "stage_c")
        library.part(applied, "text")
        run.trained(position)

    fingerprints = set()
    for name, looks in (("never", ()), ("between", (1,)), ("always", (0, 1, 2))):
        run.release()
        host = studio.CountingHost(tmp_path / name)
        position = run.start(studio.spec("lora", models), host)
        for block in range(3):
            position, _ = run.train(position, 1, host=host)
            if block in looks:
                use(position)
        fingerprints.add(studio.fingerprint(position))
    assert len(fingerprints) == 1


def test_training_leaves_the_callers_random_state_and_models_alone(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    import torch

    from cascade_train.models import library

    before = {name: value.clone() for name, value in library.part(models, "stage_c").state_dict().items()}
    host = studio.CountingHost(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    run.train(run.start(studio.spec("stage_c", models), host), 2, host=host)
    assert torch.equal(torch.rand(4), expected)
    after = library.part(models, "stage_c").state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_training_works_where_comfyui_has_inference_mode_on(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    import torch

    from cascade_train.models import library

    library.forget()
    host = studio.CountingHost(tmp_path / "inside")
    with torch.inference_mode():
        inside, _ = run.train(run.start(studio.spec("lora", models), host), 2, host=host)
    outside_host = studio.CountingHost(tmp_path / "outside")
    outside, _ = run.train(run.start(studio.spec("lora", models), outside_host), 2, host=outside_host)
    assert studio.fingerprint(inside) == studio.fingerprint(outside)


def test_the_run_folder_can_be_read_by_a_person(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", models, label="my cat"), host), 2, host=host)
    folder = Path(position.folder)
    described = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert described["label"] == "my cat" and described["digest"] == folder.name
    assert described["spec"]["target"]["tokens"]["new"] == [["concept", "^(star|cross)</w>$"]]
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    assert checkpoint.name.startswith("00000002-")
    assert not list(folder.rglob("*.part")) and not (folder / "holder.json").exists()


def test_the_name_of_a_run_is_what_determines_its_weights(studio: ModuleType, models: ModelsSpec) -> None:
    base = studio.spec("lora", models)
    assert replace(base, label="another name").digest == base.digest
    for change in (
        {"seed": 1},
        {"batch_size": 4},
        {"caption_dropout": 0.5},
        {"optimizer": replace(base.optimizer, ema=0.5)},
        {"target": replace(base.target, rank=3)},
    ):
        assert replace(base, **change).digest != base.digest


def test_progress_tells_step_loss_and_time_left(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    run.train(run.start(studio.spec("lora", models), host), 3, host=host)
    last = host.sink.texts[-1]
    assert host.sink.steps[-1] == 3 and last.startswith("step 3/3 · loss ") and last.endswith("0 s left")


@pytest.fixture
def seen_host(studio: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host whose previews somebody sees, and which has all the time in the world for them."""
    monkeypatch.setattr(previews, "SHARE", float("inf"))
    host = studio.CountingHost(tmp_path / "seen")
    host.previews = True
    return host


@pytest.mark.parametrize("kind", ["lora", "stage_c", "stage_a"])
def test_looking_in_the_middle_of_a_block_changes_no_bit(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, seen_host: Any, kind: str
) -> None:
    """With dropout, running statistics and an optimizer's moments; the look runs the networks itself."""
    import torch

    seen: list[tuple[int, bool]] = []

    def draw(here: run.Standing) -> None:
        torch.rand(3)
        seen.append((here.position.step, here.stage_c is not None))
        if here.stage_c is not None and here.text is not None:
            assert not any(module.training for module in here.stage_c.modules()) and here.captions
            states = here.text(list(here.captions))
            count = len(here.captions)
            stage_c: Any = here.stage_c
            width = stage_c.config.clip_image_in_channels
            here.stage_c(
                sample=torch.zeros(count, 16, 8, 8),
                timestep_ratio=torch.ones(count),
                clip_text_pooled=states.pooled,
                clip_text=states.hidden,
                clip_img=torch.zeros(count, 1, width),
            )

    watched, _ = run.train(
        run.start(studio.spec(kind, models), seen_host), 3, host=seen_host, preview=draw, preview_every=1
    )
    assert seen == [(step, kind != "stage_a") for step in (1, 2, 3)]
    run.release()
    host = studio.CountingHost(tmp_path / "not seen")
    alone, _ = run.train(
        run.start(studio.spec(kind, models), host), 3, host=host, preview=draw, preview_every=1
    )
    assert len(seen) == 3, "nobody sees it, so nothing is drawn"
    assert studio.fingerprint(watched) == studio.fingerprint(alone)


def test_a_picture_that_fails_is_told_once_and_training_goes_on(
    studio: ModuleType, models: ModelsSpec, seen_host: Any
) -> None:
    def draw(here: run.Standing) -> None:
        raise RuntimeError("out of memory")

    later, _ = run.train(
        run.start(studio.spec("lora", models), seen_host), 3, host=seen_host, preview=draw, preview_every=1
    )
    assert later.step == 3 and len(seen_host.sink.warnings) == 1
    assert "out of memory" in seen_host.sink.warnings[0]


def test_pictures_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch, seen_host: Any) -> None:
    clock = [0.0]
    monkeypatch.setattr(previews, "SHARE", 0.05)
    monkeypatch.setattr(previews.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(previews, "standing", lambda trainer, position: contextlib.nullcontext(position))

    def draw(position: Any) -> None:
        clock[0] += 2.0

    some = previews.Previews(draw, 10, seen_host)
    drawn = 0
    for step in range(1, 1001):
        clock[0] += 0.1
        if some.due(step):
            assert step % 10 == 0
            some.drawn(None, step)  # type: ignore[arg-type]
            drawn += 1
    assert 0.03 < 2.0 * drawn / clock[0] <= 0.051


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "the batch size is 0"),
        ({"caption_dropout": 1.5}, "the caption dropout is 1.5"),
        ({"total_steps": 0}, "the planned total of steps is 0"),
    ],
)
def test_settings_that_cannot_train_are_refused_at_once(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, change: dict, message: str
) -> None:
    with pytest.raises(CascadeError, match=message):
        run.start(studio.spec("lora", models, **change), studio.CountingHost(tmp_path))


def test_what_was_never_trained_is_told(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    host = studio.CountingHost(tmp_path)
    position = run.start(studio.spec("lora", models), host)
    assert apply_trained(models, position) == models
    with pytest.raises(CascadeError, match="step 0 of this run is not on disk"):
        run.trained(position)


def test_steps_past_the_end_of_a_schedule_are_warned_of(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    base = studio.spec("lora", models, total_steps=2)
    base = replace(base, optimizer=replace(base.optimizer, schedule="cosine", warmup=0))
    run.train(run.start(base, host), 3, host=host)
    assert any("reaches 0 at step 2" in warning for warning in host.sink.warnings)
