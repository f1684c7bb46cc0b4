"""Pictures that were drawn are read afterwards: equal bytes, in this process and in another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from cascade_train.cli import main
from cascade_train.data.sources import folder_dataset
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.jobs import foreseen
from cascade_train.jobs import validate as validating
from cascade_train.jobs.train import train_and_validate
from cascade_train.jobs.validate import validate
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import kept
from cascade_train.sampling.spec import Prompts
from cascade_train.training import run as runs
from cascade_train.training.spec import LoRATarget, OptimizerSpec, Position, RunSpec

PROMPTS = Prompts(texts=("a red ring", "a blue star"), pictures=3, steps_c=2, steps_b=1)


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(headless_folders(tmp_path / "output"), "cpu", Quiet())


@pytest.fixture
def start(tiny: ModelsSpec, host: HeadlessHost) -> Position:
    dataset = folder_dataset("bundled/crescent", recursive=True, host=host)
    target, optimizer = LoRATarget(rank=2, alpha=2), OptimizerSpec(learning_rate=0.05)
    return runs.start(RunSpec(tiny, dataset, target, optimizer, batch_size=2, total_steps=6), host)


@pytest.fixture
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> object:
    """From the call on, drawing anything fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("this was drawn before")

    return lambda: monkeypatch.setattr(validating, "draw_some", refuse)


def cached(host: HeadlessHost) -> list[Path]:
    return sorted((host.folders.cache / kept.FOLDER).glob("*.png"))


def test_models_are_drawn_once_and_read_with_equal_bytes(
    tiny: ModelsSpec, host: HeadlessHost, nothing_is_drawn: object
) -> None:
    grid, pictures = validate(PROMPTS, host, models=tiny, title="before")
    steps = (pictures * 255).round()
    assert torch.equal(steps / 255, pictures), "what is handed on is what can be kept"
    nothing_is_drawn()  # type: ignore[operator]
    again, same = validate(PROMPTS, host, models=tiny, title="before")
    assert torch.equal(again, grid) and torch.equal(same, pictures)
    assert not torch.equal(validate(PROMPTS, host, models=tiny, title="other")[0], grid), "the title is free"
    (file,) = cached(host)
    with Image.open(file) as sheet:
        assert sheet.size == (3 * pictures.shape[2], 2 * pictures.shape[1]), "a row for each text"


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"texts": ("a red ring", "a blue Star")},
        {"shift": 2.0},
        {"negative": "x"},
        {"steps_b": 2},
    ],
)
def test_whatever_changes_the_pictures_draws_others(
    tiny: ModelsSpec, host: HeadlessHost, other: dict[str, object]
) -> None:
    validate(PROMPTS, host, models=tiny)
    validate(replace(PROMPTS, **other), host, models=tiny)  # type: ignore[arg-type]
    assert len(cached(host)) == 2


def test_a_run_s_pictures_lie_in_its_folder_and_need_no_checkpoint(
    start: Position, host: HeadlessHost, nothing_is_drawn: object
) -> None:
    last, grids = train_and_validate(start, PROMPTS, 4, 2, None, host)
    samples = sorted(path.name for path in (Path(last.folder) / "samples").iterdir())
    assert [name[:8] for name in samples if name.endswith(".pictures.png")] == [
        "00000000",
        "00000002",
        "00000004",
    ]
    assert len(samples) == 6, "and a labelled grid beside each"
    assert len(cached(host)) == 1, "untrained pictures are any run's"
    strong = validate(PROMPTS, host, run=last, strength=2.0)[1]
    nothing_is_drawn()  # type: ignore[operator]
    again, same = train_and_validate(start, PROMPTS, 4, 2, None, host)
    assert again == last and torch.equal(same, grids)
    assert torch.equal(validate(PROMPTS, host, run=last, strength=2.0)[1], strong)
    for checkpoint in (Path(last.folder) / "checkpoints").iterdir():
        checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}"))
    assert torch.equal(validate(PROMPTS, host, run=last)[0], grids[-1:]), "read without the weights"

    other = runs.start(replace(start.settings, seed=5), host)
    assert torch.equal(validate(PROMPTS, host, run=other)[0], grids[:1]), "read from the cache"
    assert len(list((Path(other.folder) / "samples").iterdir())) == 2, "and kept with this run too"


@pytest.mark.parametrize("damage", ["cut", "flipped", "another's", "not a picture"])
def test_a_damaged_file_is_drawn_again(tiny: ModelsSpec, host: HeadlessHost, damage: str) -> None:
    pictures = validate(PROMPTS, host, models=tiny)[1]
    (file,) = cached(host)
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif damage == "not a picture":
        file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n" * 10)
    elif damage == "another's":
        with Image.open(file) as sheet:
            Image.new("RGB", sheet.size, "red").save(file)
    else:
        with Image.open(file) as sheet:
            changed, texts = sheet.copy(), dict(sheet.info)
        changed.putpixel((3, 3), (1, 2, 3))
        from PIL.PngImagePlugin import PngInfo

        noted = PngInfo()
        for name, text in texts.items():
            noted.add_text(name, text)
        changed.save(file, pnginfo=noted)
    assert torch.equal(validate(PROMPTS, host, models=tiny)[1], pictures)
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_the_copy_alone(tiny: ModelsSpec, host: HeadlessHost) -> None:
    host.folders.cache.mkdir(parents=True)
    (host.folders.cache / kept.FOLDER).write_text("in the way", encoding="utf-8")
    pictures = validate(PROMPTS, host, models=tiny)[1]
    assert len(pictures) == 6
    (told,) = host.sink.warnings  # type: ignore[attr-defined]
    assert "could not be kept" in told and str(host.folders.cache / kept.FOLDER) in told


def test_cache_ls_and_prune_know_it(
    tiny: ModelsSpec, host: HeadlessHost, capsys: pytest.CaptureFixture[str]
) -> None:
    validate(PROMPTS, host, models=tiny)
    where = ["--output-dir", str(host.folders.output), "--json"]
    assert main(["cache", "ls", *where]) == 0
    kinds = {
        item["kind"]: item["files"] for item in json.loads(capsys.readouterr().out.splitlines()[-1])["items"]
    }
    assert kinds["drawn"] == 1
    assert main(["cache", "prune", "--kind", "drawn", *where]) == 0
    assert not cached(host)


def test_what_is_foreseen_of_pictures(start: Position, host: HeadlessHost) -> None:
    pictures, text, there = foreseen.planned_pictures(PROMPTS, host, run=start)
    assert pictures is None and text == "draws 6 pictures" and not there
    _, text, there = foreseen.planned_validation(start, PROMPTS, 4, 2, None, host)
    assert text == "trains 4 steps, 0 to 4; draws 3 of 3 grids" and not there
    seen = validate(PROMPTS, host, run=start)[1]
    pictures, text, there = foreseen.planned_pictures(PROMPTS, host, run=start)
    assert there and text == "6 pictures on disk"
    assert pictures is not None and torch.equal(torch.from_numpy(pictures), seen)
    train_and_validate(start, PROMPTS, 4, 2, None, host)
    _, text, there = foreseen.planned_validation(start, PROMPTS, 4, 2, None, host)
    assert text == "step 4 is on disk; 3 grids on disk" and there


def test_a_size_that_the_models_cannot_draw_is_told_before_training(
    start: Position, host: HeadlessHost
) -> None:
    small = replace(PROMPTS, width=8)
    for look in (
        lambda: validate(small, host, run=start),
        lambda: train_and_validate(start, small, 4, 2, None, host),
        lambda: foreseen.planned_pictures(small, host, run=start),
        lambda: foreseen.planned_validation(start, small, 4, 2, None, host),
    ):
        with pytest.raises(CascadeError, match=r"a width of 8 pixels is too small.*smallest.* is 16"):
            look()
    assert not (Path(start.folder) / "checkpoints").exists()


def test_a_finished_graph_draws_nothing_after_a_restart(tmp_path: Path) -> None:
    """The main job, small, each time in a process of its own; and --dry-run before and between."""
    short = [
        word
        for setting in (
            *("Prompts.pictures=1", "Prompts.steps_c=2", "Prompts.steps_b=1"),
            *("Draw what it knows.steps_c=1", "Draw what it knows.steps_b=1", "Training Run.batch_size=2"),
            *("Train Steps 1.steps=1", "Train Steps 2.steps=1", "Train Steps 3.steps=1"),
        )
        for word in ("--set", setting)
    ]
    graph = Path(__file__).resolve().parents[2] / "workflows" / "teach_a_concept.json"

    def run(*more: str) -> list[dict[str, object]]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "cascade_train.cli",
                "run",
                str(graph),
                "--json",
                "--output-dir",
                "out",
                *short,
                *more,
            ],
            cwd=tmp_path,
            timeout=300,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONUTF8": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def plan() -> dict[str, tuple[str, str]]:
        return {node["title"]: (node["will"], node["text"]) for node in run("--dry-run")[-1]["nodes"]}  # type: ignore[attr-defined]

    first = plan()
    assert first["Pictures of what it knows"] == ("runs", "draws 128 pictures")
    for title in ("Dataset From Images", "Training Run", "Train Steps 1", "Train Steps 3", "Validate 3"):
        assert first[title] == ("unknown", "known only when #7 is drawn"), title
    assert not list(tmp_path.rglob("runs")) and not list(tmp_path.rglob("*.png")), (
        "looking ahead draws nothing"
    )

    run()
    sheets = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.pictures.png")}
    grid = next((tmp_path / "out").rglob("before_after_00001_.png"))
    assert len(sheets) == 3
    second = plan()
    for title in (
        "Pictures of what it knows",
        "Validate before",
        "Train Steps 3",
        "Validate 1",
        "Validate 3",
    ):
        assert second[title][0] == "on disk", title
    progress = [line.get("text", "") for line in run() if line["event"] == "progress"]
    assert not [text for text in progress if "Stage" in str(text)], "nothing was drawn"
    assert grid.with_name("before_after_00002_.png").read_bytes() == grid.read_bytes()
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.pictures.png")} == sheets
