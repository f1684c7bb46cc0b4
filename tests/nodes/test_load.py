"""Load Stable Cascade: the bundled models, and files in model folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cascade_train_nodes
import pytest

from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.models.library import nano_folder

SETTINGS = {"source": "files", "variant": "full", "precision": "fp32"}


@pytest.fixture
def models_folder(tmp_path: Path) -> Path:
    """nano's parts under the official names, as someone would put the full-size files."""
    root = tmp_path / "models"
    for kind, name, part in (
        ("unet", "stage_c_bf16", "stage_c"),
        ("unet", "stage_b_bf16", "stage_b"),
        ("vae", "stage_a", "stage_a"),
        ("vae", "effnet_encoder", "compressor"),
    ):
        (root / kind).mkdir(parents=True, exist_ok=True)
        shutil.copy(nano_folder() / f"{part}.safetensors", root / kind / f"{name}.safetensors")
    shutil.copytree(nano_folder() / "text", root / "text_encoders" / "stable-cascade" / "text_encoder")
    return root


def node(tmp_path: Path, *models: Path) -> Any:
    host = HeadlessHost(headless_folders(tmp_path / "output", models=models))
    return cascade_train_nodes.build_mappings(host)[0]["CascadeLoadStableCascade"]


def test_nano_needs_nothing(tmp_path: Path) -> None:
    (models,) = node(tmp_path)().run(source="nano (bundled)", variant="full", precision="bf16")
    assert {part.part for part in models.parts} >= {"stage_c", "stage_b", "stage_a", "compressor", "text"}
    assert models.precision == "bf16"


def test_official_names_are_found(tmp_path: Path, models_folder: Path) -> None:
    (models,) = node(tmp_path, models_folder)().run(**SETTINGS)
    assert (
        Path(next(part for part in models.parts if part.part == "stage_c").path).name
        == "stage_c_bf16.safetensors"
    )


def test_files_are_listed_and_can_be_chosen(tmp_path: Path, models_folder: Path) -> None:
    (models_folder / "unet" / "mine").mkdir()
    shutil.copy(nano_folder() / "stage_c.safetensors", models_folder / "unet" / "mine" / "tuned.safetensors")
    cls = node(tmp_path, models_folder)
    listed = cls.INPUT_TYPES()["optional"]
    assert listed["stage_c"][0][0] == "official name" and "mine/tuned.safetensors" in listed["stage_c"][0]
    assert "stable-cascade/text_encoder" in listed["text"][0]
    (models,) = cls().run(**SETTINGS, stage_c="mine/tuned.safetensors")
    assert (
        Path(next(part for part in models.parts if part.part == "stage_c").path).name == "tuned.safetensors"
    )


def test_another_file_under_the_same_name_is_noticed(tmp_path: Path, models_folder: Path) -> None:
    cls = node(tmp_path, models_folder)
    before = cls.IS_CHANGED(**SETTINGS)
    assert before == cls.IS_CHANGED(**SETTINGS)
    shutil.copy(nano_folder() / "stage_a.safetensors", models_folder / "unet" / "stage_c_bf16.safetensors")
    assert cls.IS_CHANGED(**SETTINGS) != before


def test_what_is_missing_is_told_all_at_once(tmp_path: Path, models_folder: Path) -> None:
    (models_folder / "vae" / "stage_a.safetensors").unlink()
    shutil.rmtree(models_folder / "text_encoders")
    with pytest.raises(CascadeError) as caught:
        node(tmp_path, models_folder)().run(**SETTINGS)
    assert (
        "stage_a" in str(caught.value) and "text" in str(caught.value) and "stage_c" not in str(caught.value)
    )


def test_a_folder_that_is_no_text_encoder(tmp_path: Path, models_folder: Path) -> None:
    (models_folder / "text_encoders" / "stable-cascade" / "text_encoder" / "config.json").unlink()
    from cascade_train.models import library

    with pytest.raises(CascadeError, match=r"config\.json|text"):
        (models,) = node(tmp_path, models_folder)().run(**SETTINGS)
        library.part(models, "text")
