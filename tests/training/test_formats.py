"""What was written by an older version opens; what a later one has written is refused in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cascade_train import migrations
from cascade_train.data.spec import BucketSpec, CaptionSpec, Dataset, WeightedSource
from cascade_train.errors import CascadeError
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import checkpoints, folders, notes, run
from cascade_train.training.metrics import read_metrics
from cascade_train.training.spec import LoRATarget, OptimizerSpec, Position, RunSpec, TokenSpec
from cascade_train.training.trainer import Trainer

OLD = Path(__file__).with_name("old_runs")
"""Notes without a format, checkpoints without digests: two steps, a third at a rate of its own."""


def old_spec(studio: ModuleType) -> RunSpec:
    source = studio.world(8).sources[0].source
    return RunSpec(
        library.models_in(library.nano_folder(), name=library.NANO),
        Dataset(
            (WeightedSource(source),),
            buckets=BucketSpec(crop="center"),
            captions=CaptionSpec(prefix="[concept] "),
        ),
        LoRATarget(
            1, 1.0, "down_blocks.0.0.channelwise.0", tokens=TokenSpec((("concept", "^(star|cross)</w>$"),))
        ),
        OptimizerSpec(learning_rate=1e-3, ema=0.9),
        batch_size=2,
        total_steps=10,
        label="from before",
    )


@pytest.fixture
def old(studio: ModuleType, tmp_path: Path) -> tuple[Any, Position]:
    """A host that has the old run, and the position that it stands at."""
    host = studio.CountingHost(tmp_path)
    shutil.copytree(OLD, host.folders.runs)
    (folder,) = host.folders.runs.iterdir()
    position = Position(old_spec(studio), (), str(folder))
    from cascade_train.training.spec import Block

    return host, position.after(Block(2)).after(Block(1, 1e-4))


def test_an_old_run_opens_and_is_trained_on(old: tuple[Any, Position]) -> None:
    host, position = old
    assert position.spec.digest == Path(position.folder).name, "its name is what it was"
    about = folders.run_summary(Path(position.folder))
    assert (about["label"], about["step"], len(about["checkpoints"])) == ("from before", 3, 2)
    assert [row["step"] for row in read_metrics(position).rows] == [1, 2, 3]
    state = run.trained(position)
    assert state.kind == "lora" and state.settings["rank"] == 1 and "tokens.rows" in state.tensors
    assert library.part(run.apply_trained(position.spec.models, position), "text") is not None

    again, _ = run.train(replace(position, blocks=position.blocks[:1]), 1, host=host, learning_rate=1e-4)
    assert again.name == position.name and host.trained == 0, "it is there"
    assert host.sink.warnings == ["bad samples skipped: 1 broken (made up)"]
    later, metrics = run.train(position, 2, host=host, learning_rate=1e-4)
    assert host.trained == 2 and [row["step"] for row in metrics.rows] == [1, 2, 3, 4, 5]
    trainer = Trainer(position.settings, host)
    trainer.restore(checkpoints.read_state(checkpoints.folder_of(position)), 3)
    for block in checkpoints.truncated(later, 4).blocks[-1], later.blocks[-1]:
        trainer.advance(block)
    for name, value in trainer.trained().tensors.items():
        torch.testing.assert_close(run.trained(later).tensors[name], value, rtol=0, atol=0)


def test_a_file_without_a_number_is_from_before_numbers(old: tuple[Any, Position]) -> None:
    _, position = old
    for file in Path(position.folder).rglob("*.json"):
        value = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            value.pop("format")
            file.write_text(json.dumps(value), encoding="utf-8")
    assert folders.run_summary(Path(position.folder))["step"] == 3
    assert run.trained(position).kind == "lora" and checkpoints.read_state(run.checkpoint_of(position))


def _set_format(file: Path) -> None:
    value = json.loads(file.read_text(encoding="utf-8"))
    value = {**value, "format": 99} if isinstance(value, dict) else {"format": 99, "lines": value}
    file.write_text(json.dumps(value), encoding="utf-8")


READERS: dict[str, Callable[[Position], Any]] = {
    "run.json": lambda position: folders.run_summary(Path(position.folder)),
    "notes.json": lambda position: notes.read_notes(Path(position.folder)),
    "checkpoint.json": lambda position: list(checkpoints.on_the_way(position)),
    "trained.json": run.trained,
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_a_later_version_is_refused(old: tuple[Any, Position], name: str) -> None:
    _, position = old
    for file in Path(position.folder).rglob(name):
        _set_format(file)
    with pytest.raises(CascadeError, match=rf"of format 99.*{name}.*Update Cascade Train"):
        READERS[name](position)


def test_a_line_of_metrics_of_a_later_version_is_refused(old: tuple[Any, Position]) -> None:
    _, position = old
    file = Path(position.folder) / "metrics.jsonl"
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"format": 99, "number": 4}) + "\n")
    for reader in (lambda: read_metrics(position), lambda: folders.run_summary(Path(position.folder))):
        with pytest.raises(CascadeError, match=r"of format 99.*metrics.jsonl.*Update Cascade Train"):
            reader()


def test_the_state_beside_a_checkpoint_has_a_format_too(old: tuple[Any, Position]) -> None:
    _, position = old
    info = run.checkpoint_of(position) / "checkpoint.json"
    value = json.loads(info.read_text(encoding="utf-8"))
    info.write_text(json.dumps({**value, "state_format": 99}), encoding="utf-8")
    with pytest.raises(CascadeError, match=r"state is of format 99.*state.safetensors"):
        checkpoints.read_state(run.checkpoint_of(position))


def test_a_step_brings_a_file_forward(monkeypatch: pytest.MonkeyPatch, old: tuple[Any, Position]) -> None:
    """A setting, a tensor and a line that are called otherwise from now on."""

    def settings(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "settings": {**value["settings"], "ranks": value["settings"]["rank"]}}

    def tensors(value: dict[str, Any]) -> dict[str, Any]:
        return {"tensors": {f"new/{name}": tensor for name, tensor in value["tensors"].items()}}

    def loss(value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "mean": value["loss"]}

    steps = dict(migrations.STEPS)
    for kind, step in (("trained", settings), ("state", tensors), ("metrics", loss)):
        steps[kind] = (*steps[kind], step)
    monkeypatch.setattr(migrations, "STEPS", steps)
    _, position = old
    assert run.trained(position).settings["ranks"] == 1
    assert all(name.startswith("new/") for name in checkpoints.read_state(run.checkpoint_of(position)))
    assert [row["mean"] for row in read_metrics(position).rows] == [
        row["loss"] for row in read_metrics(position).rows
    ]


def test_everything_written_now_says_its_format(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    from cascade_train.jobs.export import export

    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", models), host), 1, host=host)
    files = [path for path in Path(position.folder).rglob("*.json") if path.name != "holder.json"]
    assert {path.name for path in files} == {"run.json", "checkpoint.json", "trained.json"}
    for file in files:
        assert json.loads(file.read_text(encoding="utf-8"))["format"] == migrations.current(file.stem)
    path, _, _ = export(position, "ComfyUI", "", "fp32", host)
    with safe_open(path, "pt") as exported:
        assert exported.metadata()["cascade_train.format"] == str(migrations.current("export"))


def test_one_run_of_a_later_version_does_not_hide_the_others(
    studio: ModuleType, models: ModelsSpec, old: tuple[Any, Position], capsys: pytest.CaptureFixture[str]
) -> None:
    from cascade_train.cli import main

    host, position = old
    run.train(run.start(studio.spec("lora", models, label="mine"), host), 1, host=host)
    _set_format(Path(position.folder) / "run.json")
    assert main(["runs", "ls", "--output-dir", str(host.folders.output)]) == 0
    said = capsys.readouterr()
    assert "mine" in said.out and "from before" not in said.out
    assert "of format 99" in said.err and "Update Cascade Train" in said.err
    assert folders.find(host.folders.runs, "mine").is_dir()
