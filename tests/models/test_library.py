"""Finding, loading and sharing models; what a person reads when files are missing or broken."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models import build, library, starts, weights
from cascade_train.models.spec import Part
from cascade_train.nano import init, widths


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A user's model folders with a Stable Cascade of small parts under its official names."""
    root = tmp_path / "models"
    names: dict[Part, str] = {
        "stage_c": "unet/stage_c_bf16.safetensors",
        "stage_b": "unet/stage_b_bf16.safetensors",
        "stage_a": "vae/stage_a.safetensors",
        "compressor": "vae/effnet_encoder.safetensors",
    }
    for part, name in names.items():
        build.save(part, starts.initial(part, "random", "quick", 0, None), root / name)
    shutil.copytree(library.nano_folder() / "text", root / "text_encoders" / "text_encoder")
    return root


def test_bundled_nano_is_small_whole_and_known_without_loading(host):
    spec = library.load_models("nano", host=host)
    assert spec == library.load_models("", host=host) and spec.digest == library.load_models(host=host).digest
    size = sum(path.stat().st_size for path in library.nano_folder().rglob("*") if path.is_file())
    assert size <= 12 * 1024 * 1024
    assert library.geometry(spec) == library.Geometry(
        latent_factor=8,
        latent_channels=16,
        stage_a_factor=4,
        stage_a_channels=4,
        native_side=64,
        size_multiple=8,
        text_width=128,
        pooled_width=128,
        image_width=32,
        smallest_grid=2,
        smallest_side=16,
    )
    for file in spec.parts:
        module = library.part(spec, file.part)
        assert all(torch.isfinite(value).all() for value in module.state_dict().values())
    assert not library.has(spec, "image")
    with pytest.raises(CascadeError, match="have no image"):
        library.part(spec, "image")


def test_modules_are_shared_and_can_be_copied_for_training(host):
    """Also when ComfyUI asks for them under inference mode."""
    library.forget()
    spec = library.load_models("nano", host=host)
    with torch.inference_mode():
        first = library.part(spec, "stage_a")
    assert library.part(spec, "stage_a") is first
    assert not first.training and not any(value.requires_grad for value in first.parameters())
    mine: Any = copy.deepcopy(first).requires_grad_(True)
    mine.encode(torch.rand(1, 3, 16, 16)).sum().backward()
    low = library.part(library.load_models("nano", host=host, precision="bf16"), "stage_a")
    assert low is not first and next(low.parameters()).dtype == torch.bfloat16


def test_files_are_found_by_official_names_and_by_name(files, host):
    spec = library.load_models("files", host=host)
    assert {file.part for file in spec.parts} == {"stage_c", "stage_b", "stage_a", "compressor", "text"}
    stage_c: Any = library.part(spec, "stage_c")
    assert stage_c.config.block_out_channels == tuple(widths.SMALLER["stage_c"]["block_out_channels"])
    other = files / "unet" / "mine.safetensors"
    build.save("stage_c", starts.initial("stage_c", "random", "quick", 5, None), other)
    named = library.load_models("files", host=host, files={"stage_c": "mine.safetensors"})
    assert named.digest != spec.digest
    same = files / "unet" / "elsewhere.safetensors"
    shutil.move(other, same)
    moved = library.load_models("files", host=host, files={"stage_c": "elsewhere.safetensors"})
    assert moved.digest == named.digest


def test_missing_parts_are_named_all_at_once(files, host):
    (files / "vae" / "stage_a.safetensors").unlink()
    (files / "unet" / "stage_b_bf16.safetensors").unlink()
    with pytest.raises(CascadeError) as caught:
        library.load_models("files", host=host)
    assert "stage_a.safetensors" in str(caught.value) and "stage_b_bf16" in str(caught.value)
    assert "stage_c" not in str(caught.value)
    with pytest.raises(CascadeError, match="no models called 'sdxl'"):
        library.load_models("sdxl", host=host)


def test_broken_and_wrong_files_say_what_is_wrong(files, host):
    path = files / "vae" / "stage_a.safetensors"
    whole = path.read_bytes()
    spec = library.load_models("files", host=host)
    library.forget()
    path.write_bytes(whole[:-1000])
    with pytest.raises(CascadeError, match="cut off"):
        library.part(spec, "stage_a")
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(CascadeError, match="no readable safetensors"):
        library.part(spec, "stage_a")
    path.write_bytes((files / "vae" / "effnet_encoder.safetensors").read_bytes())
    with pytest.raises(CascadeError, match="holds compressor, not stage_a"):
        library.part(spec, "stage_a")


def test_a_file_that_lacks_tensors_names_them(tmp_path):
    module = starts.initial("stage_a", "random", "quick", 0, None)
    tensors = build.file_tensors("stage_a", module)
    del tensors["out_block.0.bias"]
    path = tmp_path / "a.safetensors"
    weights.write_tensors(path, tensors, build.module_config("stage_a", module))
    with pytest.raises(CascadeError, match=r"lacks tensors: out_block\.0\.bias"):
        build.load("stage_a", path)


def test_parts_come_back_as_they_were_stored(tmp_path):
    for part in ("stage_c", "stage_b", "stage_a", "compressor", "previewer"):
        module = starts.initial(part, init.NAME, "quick", 3, None)
        path = tmp_path / f"{part}.safetensors"
        build.save(part, module, path)
        again = build.load(part, path)
        assert build.module_config(part, again) == build.module_config(part, module)
        for key, value in module.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), (part, key)
    huge = {"weight": torch.tensor([1e6])}
    with pytest.raises(CascadeError, match="cannot be stored as fp16"):
        weights.write_tensors(tmp_path / "x.safetensors", huge, half=True)


def test_tensor_files_are_byte_for_byte_the_library_s(tmp_path):
    """Ours can be stopped and tells its digest; else there is no difference, whatever is in it."""
    import hashlib

    from safetensors.torch import save_file

    from cascade_train.models.tensor_file import NAMES, write_file

    kinds = {name: getattr(torch, name) for name in NAMES if hasattr(torch, name)}
    tensors = {f"é {name}": (torch.rand(3, 5) * 10).to(kind) for name, kind in kinds.items()}
    tensors |= {"number": torch.tensor(3.5), "empty": torch.zeros(0, 4), "turned": torch.rand(4, 6).t()}
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / "a", {"b": 'q"é'})
    told = write_file(tmp_path / "b", tensors, {"b": 'q"é'})
    ours = (tmp_path / "b").read_bytes()
    assert ours == (tmp_path / "a").read_bytes() and told == hashlib.sha256(ours).hexdigest()
    with pytest.raises(CascadeError, match="holds complex64"):
        write_file(tmp_path / "c", {"x": torch.zeros(2, dtype=torch.complex64)})


def test_a_stop_while_weights_are_written_leaves_what_was_there(tmp_path, monkeypatch):
    from cascade_train.models import tensor_file

    monkeypatch.setattr(tensor_file, "PIECE", 1000)
    file = tmp_path / "a.safetensors"
    weights.write_tensors(file, {"x": torch.ones(3)})
    before, asked = file.read_bytes(), []

    def check():
        asked.append(1)
        if len(asked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.write_tensors(file, {"x": torch.rand(2000)}, check=check)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_content_follows_the_bytes_not_the_place(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"x" * 1000)
    second.write_bytes(b"x" * 1000)
    assert weights.content_id(first) == weights.content_id(second)
    second.write_bytes(b"x" * 999 + b"y")
    assert weights.content_id(first) != weights.content_id(second)


def test_auto_takes_what_suits(host, monkeypatch: pytest.MonkeyPatch) -> None:
    """fp32 for nano and on a CPU; bf16 for files on a GPU that computes in it."""
    assert library.load_models("nano", host=host, precision="auto") == library.load_models("nano", host=host)
    for able in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, able=able: able)
        assert library.suited("cuda:1") == ("bf16" if able else "fp32")
        assert library.suited("cpu") == library.suited("mps") == "fp32"
