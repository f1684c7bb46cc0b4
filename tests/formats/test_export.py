"""What Export Run writes: read back by this library, and where it may write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.formats import lora, names
from cascade_train.formats.export import export_path, export_stamp, export_trained
from cascade_train.host.headless import headless_folders
from cascade_train.models import build, library
from cascade_train.models.spec import ModelsSpec, PartFile
from cascade_train.models.weights import read_header, read_tensors, write_tensors
from cascade_train.nano import widths


@pytest.fixture
def models(tmp_path: Path) -> ModelsSpec:
    """Stage C at nano's smallest widths, as a file."""
    torch.manual_seed(0)
    config = widths.config("stage_c", "quick")
    network = build.build("stage_c", config)
    file = tmp_path / "models" / "stage_c.safetensors"
    write_tensors(file, build.file_tensors("stage_c", network), config)
    return ModelsSpec(name="quick", parts=(PartFile("stage_c", "quick", str(file)),))


def test_full_weights_load_again_as_models(models: ModelsSpec, tmp_path: Path) -> None:
    network = build.load("stage_c", Path(models.parts[0].path))
    trained = {f"stage_c.{name}": value + 0.01 for name, value in network.state_dict().items()}
    (file,) = export_trained(
        "full", trained, {"parts": ["stage_c"]}, tmp_path / "mine.safetensors", models=models
    )
    keys = read_header(file)[0]
    assert "down_blocks.0.2.attention.attn.in_proj_weight" in keys, "the official names"
    assert not [key for key in keys if ".to_q" in key]
    again = build.load("stage_c", file)
    assert all(torch.equal(value, trained[f"stage_c.{name}"]) for name, value in again.state_dict().items())


def test_bf16_halves_the_file_and_stays_close(models: ModelsSpec, tmp_path: Path) -> None:
    network = build.load("stage_c", Path(models.parts[0].path))
    trained = {f"stage_c.{name}": value for name, value in network.state_dict().items()}
    (large,) = export_trained("full", trained, {}, tmp_path / "32.safetensors", models=models)
    (small,) = export_trained(
        "full", trained, {}, tmp_path / "16.safetensors", precision="bf16", models=models
    )
    assert small.stat().st_size < 0.6 * large.stat().st_size
    first, second = read_tensors(large), read_tensors(small)
    assert all(torch.allclose(first[key], second[key].float(), rtol=1e-2) for key in first)


def width_of(models: ModelsSpec) -> int:
    """The outer width of Stage C."""
    network: Any = library.part(models, "stage_c")
    return int(network.config.block_out_channels[0])


def lora_state(models: ModelsSpec) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
    """A LoRA on one layer with a new token and a word trained in place."""
    layer = "stage_c.down_blocks.0.2.attention.to_q"
    tensors = {
        f"{layer}.lora_A.weight": torch.randn(2, width_of(models)),
        f"{layer}.lora_B.weight": torch.randn(width_of(models), 2),
        "tokens.rows": torch.randn(2, 128),
    }
    tokens = [{"name": "[crescent]", "new": True, "id": 900}, {"name": "moon</w>", "new": False, "id": 400}]
    return "lora", tensors, {"rank": 2, "alpha": 4.0, "variant": "lora", "tokens": tokens}


def test_a_lora_comes_with_a_file_for_each_token(models: ModelsSpec, tmp_path: Path) -> None:
    kind, tensors, settings = lora_state(models)
    written = export_trained(
        kind,
        tensors,
        settings,
        tmp_path / "mine.safetensors",
        models=models,
        metadata={"cascade_train.step": "12"},
    )
    assert [path.name for path in written] == [
        "mine.safetensors",
        "mine-crescent.safetensors",
        "mine-moon.safetensors",
    ]
    made = lora.read_comfy(written[0])
    assert made.modules == ("down_blocks.0.2.attention.to_q",)
    name, rows = lora.read_token(written[1])
    assert name == "crescent" and torch.equal(rows[0], tensors["tokens.rows"][0])
    assert read_header(written[0])[1]["cascade_train.step"] == "12"


def test_for_diffusers_it_is_a_folder(models: ModelsSpec, tmp_path: Path) -> None:
    written = export_trained(
        *lora_state(models), tmp_path / "mine.safetensors", format="diffusers", models=models
    )
    assert written[0].is_dir() and lora.read_peft(written[0]).alpha == 4.0


def test_tokens_alone_are_exported_too(models: ModelsSpec, tmp_path: Path) -> None:
    _, tensors, settings = lora_state(models)
    written = export_trained(
        "tokens",
        {"tokens.rows": tensors["tokens.rows"]},
        {"tokens": settings["tokens"]},
        tmp_path / "words.safetensors",
        models=models,
    )
    assert [path.name for path in written] == ["words-crescent.safetensors", "words-moon.safetensors"]


def test_a_dora_is_written_with_its_models(models: ModelsSpec, tmp_path: Path) -> None:
    kind, tensors, settings = lora_state(models)
    width = width_of(models)
    tensors["stage_c.down_blocks.0.2.attention.to_q.lora_magnitude_vector.weight"] = torch.rand(width) + 1
    (file, *_) = export_trained(kind, tensors, settings, tmp_path / "dora.safetensors", models=models)
    assert read_header(file)[0]["lora_unet_down_blocks_0_2_attention_attn_to_q.dora_scale"] == [width, 1]


def test_nothing_to_export_is_an_error(models: ModelsSpec, tmp_path: Path) -> None:
    with pytest.raises(CascadeError, match="nothing that could be exported"):
        export_trained("lora", {}, {}, tmp_path / "none.safetensors", models=models)
    with pytest.raises(CascadeError, match="'kohya'"):
        export_trained(*lora_state(models), tmp_path / "x.safetensors", format="kohya", models=models)


def test_where_exports_go(tmp_path: Path) -> None:
    folders = headless_folders(tmp_path / "output")
    run = tmp_path / "output" / "cascade" / "runs" / "abc"
    assert export_path(folders, "", run, "mine-000300") == run / "exports" / "mine-000300.safetensors"
    assert export_path(folders, "loras/cat", run, "x") == tmp_path / "output" / "loras" / "cat.safetensors"
    assert export_path(folders, "cat v1.2.safetensors", run, "x").name == "cat v1.2.safetensors"
    for outside in ("../cat", "/etc/cat", "loras/../../cat"):
        with pytest.raises(CascadeError, match="leaves the output folder"):
            export_path(folders, outside, run, "x")


def test_an_export_that_was_taken_away_is_noticed(tmp_path: Path) -> None:
    folders = headless_folders(tmp_path)
    assert export_stamp(folders, "cat") == "not there"
    (tmp_path / "cat.safetensors").write_bytes(b"x")
    there = export_stamp(folders, "cat")
    assert there != "not there" and there == export_stamp(folders, "cat")
    (tmp_path / "cat.safetensors").unlink()
    assert export_stamp(folders, "cat") == "not there"


@pytest.mark.parametrize(
    "entries",
    [
        ("[circle]", "circle</w>"),
        ("[c++]", "[c--]"),
        ("[Circle]", "[circle]", "CIRCLE</w>", "circle"),
        ("[é]", "[e\u0301]"),
        ("[ß]", "[ss]"),
        ("[a-b]", "[a/b]", "[a\\b]", "[a:b]"),
        ("[", "]", "!</w>", "?</w>"),
        ("[circle]", "circle</w>", "[circle-4e1c49]"),
        tuple(f"[{'x' * 300}{number}]" for number in range(3)),
        ("[" + "é" * 100 + "1]", "[" + "é" * 100 + "2]"),
    ],
)
def test_every_token_has_a_file_of_its_own(
    models: ModelsSpec, tmp_path: Path, entries: tuple[str, ...]
) -> None:
    """On a file system that does not tell case apart, too."""
    rows = torch.arange(len(entries) * 128.0).view(-1, 128)
    tokens = [{"name": entry, "new": entry.startswith("["), "id": 900 + n} for n, entry in enumerate(entries)]
    path = tmp_path / f"{'m' * 150}.safetensors"
    written = export_trained("tokens", {"tokens.rows": rows}, {"tokens": tokens}, path, models=models)
    assert len({file.name.casefold() for file in written}) == len(entries) == len(list(tmp_path.glob("mm*")))
    for file, row in zip(written, rows):
        assert torch.equal(lora.read_token(file)[1][0], row)
        assert len(f".{file.name}.01234567.part".encode()) <= 255


def test_names_of_tokens_are_what_they_were_where_nothing_is_in_the_way() -> None:
    assert names.token_names(["[crescent]", "moon</w>", "[c++]"]) == ["crescent", "moon", "c--"]
    first, second = names.token_names(["[circle]", "circle</w>"])
    assert first == "circle" and second.startswith("circle-")
    assert names.token_names(["[c++]", "[c--]"])[1] == "c--", "whose name it is"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 151, "too long: 151 bytes"),
        ("loras/" + "é" * 76, "too long: 152 bytes"),
        ("con", "device on Windows"),
        ("loras/NUL.v2", "device on Windows"),
        ("lpt1/cat", "device on Windows"),
        ("cat: the movie", "the sign :"),
        ("what?", r"the sign \?"),
        ("folder./cat", "a dot or a space at the end"),
        ("cat\0dog", "characters that no name can have"),
        ("cat\ndog", "characters that no name can have"),
        ("taken", "is a folder"),
        ("file/cat", "file is a file"),
    ],
)
def test_a_name_that_cannot_be_written_is_known_before_training(tmp_path: Path, name: str, said: str) -> None:
    """ComfyUI and the command line ask the node's check before anything runs."""
    from cascade_train.host.headless import HeadlessHost
    from nodes.results import ExportRun

    (tmp_path / "taken.safetensors").mkdir()
    (tmp_path / "file").write_text("", encoding="utf-8")
    host = HeadlessHost(headless_folders(tmp_path), "cpu")
    with pytest.raises(CascadeError, match=said):
        ExportRun.CHECKS["filename"](name, host)
    for fine in ("", "x" * 150, "loras/cat v1.2", "console", "com", "nullify.safetensors", "日本"):
        ExportRun.CHECKS["filename"](fine, host)


def test_a_long_label_still_makes_a_name(models: ModelsSpec) -> None:
    from cascade_train.data.spec import Dataset
    from cascade_train.jobs.export import default_name
    from cascade_train.training.spec import LoRATarget, OptimizerSpec, Position, RunSpec

    for label in ("x" * 3000, "猫" * 500, "a\0b/c", "..", "con"):
        spec = RunSpec(models, Dataset(()), LoRATarget(), OptimizerSpec(), label=label)
        name = default_name(Position(spec))
        names.check_name(name)
        assert name.isprintable() and name.endswith("-000000-" + Position(spec).name[:8])
