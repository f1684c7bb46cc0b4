"""Bits that a disk or a copy has changed: what was damaged is made anew or refused, and never believed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cascade_train.cli import main
from cascade_train.errors import CascadeError
from cascade_train.jobs.export import export
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.trained import TRAINED_JSON, TRAINED_TENSORS
from cascade_train.models.weights import read_tensors
from cascade_train.training import checkpoints, run
from cascade_train.training.metrics import METRICS


def flip(path: Path) -> None:
    """Change one bit in the middle of a file; its length, and all that a reader of the format sees, stay."""
    data = bytearray(path.read_bytes())
    place = len(data) - 16 if path.suffix == ".safetensors" else data.index(b'"settings"') + 40
    data[place] ^= 1
    path.write_bytes(bytes(data))


def two_blocks(studio: ModuleType, models: ModelsSpec, host: Any, kind: str) -> list[run.Position]:
    position = run.start(studio.spec(kind, models), host)
    out = []
    for _ in range(2):
        position, _ = run.train(position, 2, host=host)
        out.append(position)
    run.release()
    return out


@pytest.mark.parametrize("kind", ["lora", "stage_a"])
@pytest.mark.parametrize("name", [checkpoints.STATE, TRAINED_TENSORS])
def test_a_flipped_bit_in_a_checkpoint_costs_its_steps_and_no_more(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str, name: str
) -> None:
    """The state of full weights lies partly in the result's file, which then counts as well."""
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, kind)
    expected = studio.fingerprint(run.train(four, 1, host=host)[0])
    run.release()
    shutil.rmtree(checkpoints.folder_of(four.after(run.Block(1))))
    flip(checkpoints.folder_of(four) / name)
    again = studio.CountingHost(tmp_path)
    five, _ = run.train(four, 1, host=again)
    assert studio.fingerprint(five) == expected
    needed = kind == "stage_a" or name == checkpoints.STATE
    assert again.trained == (3 if needed else 1)
    told = [line for line in again.sink.warnings if "going back to the one before" in line]
    assert len(told) == needed and all(f"{name} is not what was written" in line for line in told)


@pytest.mark.parametrize("name", [TRAINED_TENSORS, TRAINED_JSON, checkpoints.INFO])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_an_export_of_a_damaged_result_is_made_anew(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, name: str, how: str
) -> None:
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, "lora")
    whole = read_tensors(Path(export(four, "ComfyUI", "whole", "fp32", host)[0]))
    file = checkpoints.folder_of(four) / name
    if how == "gone":
        file.unlink()
    elif name == checkpoints.INFO:
        file.write_bytes(file.read_bytes()[:-40])
    else:
        flip(file)
    again = studio.CountingHost(tmp_path)
    made = read_tensors(Path(export(four, "ComfyUI", "again", "fp32", again)[0]))
    assert made.keys() == whole.keys() and all(torch.equal(made[key], whole[key]) for key in whole)
    (told,) = [line for line in again.sink.warnings if "is made anew" in line]
    assert "step 4 of the run" in told
    assert again.trained == (2 if name == checkpoints.INFO else 0), (
        "the state is whole, so nothing is trained"
    )
    assert not checkpoints.fault(four)


def test_without_anyone_to_train_it_again_damage_is_an_error(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, "lora")
    flip(checkpoints.folder_of(four) / TRAINED_TENSORS)
    with pytest.raises(CascadeError, match=r"trained\.safetensors is not what was written") as told:
        run.trained(four)
    assert str(checkpoints.folder_of(four)) in str(told.value) and "Run the training again" in str(told.value)
    applied = run.apply_trained(models, four)
    with pytest.raises(CascadeError, match="is not what was written"):
        library.part(applied, "stage_c")


def test_a_result_that_is_damaged_while_its_models_are_in_use_is_made_anew(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, "lora")
    applied = run.apply_trained(models, four, 1.0, host)
    expected = {name: value.clone() for name, value in library.part(applied, "stage_c").state_dict().items()}
    library.forget()
    shutil.rmtree(Path(four.folder))
    with torch.inference_mode():  # as where nodes run
        again = library.part(applied, "stage_c").state_dict()
    assert all(torch.equal(again[name], value) for name, value in expected.items())


def test_checkpoints_of_before_digests_are_taken_as_they_are(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, "lora")
    for each in checkpoints.listed(Path(four.folder)):
        info = json.loads((each.folder / checkpoints.INFO).read_text(encoding="utf-8"))
        del info["digests"]
        (each.folder / checkpoints.INFO).write_text(json.dumps(info), encoding="utf-8")
    again = studio.CountingHost(tmp_path)
    run.train(four, 1, host=again)
    assert again.trained == 1 and not again.sink.warnings


def test_a_damaged_checkpoint_json_costs_that_checkpoint_alone(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    two, four = two_blocks(studio, models, host, "stage_a")
    expected = studio.fingerprint(four)
    (checkpoints.folder_of(four) / checkpoints.INFO).write_bytes(b"\0" * 300)
    again = studio.CountingHost(tmp_path)
    remade, _ = run.train(two, 2, host=again)
    assert again.trained == 2 and studio.fingerprint(remade) == expected
    (told,) = again.sink.warnings
    assert checkpoints.folder_of(four).name in told and "checkpoint.json cannot be read" in told


@pytest.mark.parametrize(
    "bad", ["\0\0\0\0", '{"step": "3"}', "[1, 2]", '{"step": 3, "branch": "x", "loss": "?"}']
)
def test_a_damaged_metrics_line_costs_that_line_alone(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, bad: str
) -> None:
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, "stage_a")
    path = Path(four.folder) / METRICS
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], bad, *lines[3:]]) + "\n", encoding="utf-8")
    again = studio.CountingHost(tmp_path)
    _, metrics = run.train(four, 1, host=again)
    assert again.trained == 1 and [row["step"] for row in metrics.rows] == [1, 2, 4, 5]
    (told,) = again.sink.warnings
    assert "1 lines of the run's metrics.jsonl cannot be read" in told and "(line 3)" in told


def test_a_damaged_run_json_costs_the_label_alone_and_is_written_anew(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = studio.CountingHost(tmp_path)
    spec = studio.spec("stage_a", models, label="mine")
    position, _ = run.train(run.start(spec, host), 2, host=host)
    described = Path(position.folder) / "run.json"
    whole = json.loads(described.read_text(encoding="utf-8"))
    for damaged in (b"", b"\xff\xfe\x00", b'"text"', b"[]"):
        described.write_bytes(damaged)
        again = studio.CountingHost(tmp_path)
        _, metrics = run.train(run.start(spec, again), 2, host=again)
        assert again.trained == 0 and len(metrics.rows) == 2
        assert [line for line in again.sink.warnings if "run.json could not be read" in line]
        mended = json.loads(described.read_text(encoding="utf-8"))
        assert (mended["spec"], mended["label"]) == (whole["spec"], "mine")


def test_runs_ls_lists_a_run_whatever_is_damaged_in_it_and_all_others(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = studio.CountingHost(tmp_path)
    positions = [
        run.train(
            run.start(studio.spec("stage_a", models, seed=seed, label=f"run {seed}"), host), 1, host=host
        )[0]
        for seed in range(5)
    ]
    folders = [Path(position.folder) for position in positions]
    (folders[0] / "run.json").unlink()
    (folders[1] / "run.json").write_bytes(b'{"spec": "no"')
    (checkpoints.folder_of(positions[2]) / checkpoints.INFO).write_text('{"blocks": 7}', encoding="utf-8")
    (folders[3] / METRICS).write_bytes(b"\xff" * 100 + b"\n")
    assert main(["runs", "ls", "--output-dir", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    listed = {each["name"]: each for each in json.loads(said.out.splitlines()[-1])["runs"]}
    assert listed.keys() == {folder.name for folder in folders}
    assert [listed[folder.name]["label"] for folder in folders] == ["", "", "run 2", "run 3", "run 4"]
    assert [listed[folder.name]["step"] for folder in folders] == [1, 1, 0, 1, 1]
    assert listed[folders[3].name]["loss"] is None and listed[folders[4].name]["loss"] > 0
    lines = [line for line in said.err.splitlines() if line]
    assert len(lines) == 3 and "checkpoint.json cannot be read" in said.err
    for folder in folders[:2]:
        assert f"{folder.name[:12]}: run.json cannot be read" in said.err


def command(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """``runs check``, in a process of its own, which never loads torch."""
    code = (
        "import sys; from cascade_train.cli import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "runs", "check", *words, "--output-dir", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_runs_check_names_every_file_that_is_not_what_was_written(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    two, four = two_blocks(studio, models, host, "lora")
    exported = Path(export(four, "ComfyUI", "", "fp32", host)[0])
    code, told, text = command(tmp_path)
    assert code == 0 and told["ok"] and "ok       2 checkpoints" in text
    folder = Path(four.folder)
    flip(checkpoints.folder_of(two) / checkpoints.STATE)
    flip(checkpoints.folder_of(four) / TRAINED_TENSORS)
    exported.write_bytes(exported.read_bytes()[:-8])
    described = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    described["spec"]["seed"] = 12
    (folder / "run.json").write_text(json.dumps(described), encoding="utf-8")
    with (folder / METRICS).open("ab") as lines:
        lines.write(b"\0\0\0\n")
    code, told, text = command(tmp_path, folder.name[:8])
    assert code == 1 and not told["ok"]
    (about,) = told["runs"]
    assert [each["file"] for each in about["findings"]] == [
        "run.json",
        METRICS,
        f"checkpoints/{checkpoints.folder_of(two).name}/{checkpoints.STATE}",
        f"checkpoints/{checkpoints.folder_of(four).name}/{TRAINED_TENSORS}",
        f"exports/{exported.name}",
    ]
    assert "goes on from the checkpoint before" in text and "export it again" in text


def test_runs_check_sees_a_checkpoint_that_says_it_came_another_way(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    _, four = two_blocks(studio, models, host, "stage_a")
    file = checkpoints.folder_of(four) / checkpoints.INFO
    info = json.loads(file.read_text(encoding="utf-8"))
    info["blocks"][0]["learning_rate"] = 0.5
    file.write_text(json.dumps(info), encoding="utf-8")
    code, told, _ = command(tmp_path)
    (finding,) = told["runs"][0]["findings"]
    assert code == 1 and "its blocks are not those" in finding["what"]
