"""Core's nodes without core: pictures in and out, sizes, names of files, and what they carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cascade_train.errors import CascadeError
from cascade_train.graph.check.checked import Checked, checked
from cascade_train.graph.check.classes import Classes
from cascade_train.graph.core.standins import standins
from cascade_train.graph.file.load import read_workflow
from cascade_train.graph.run.loop import execute
from cascade_train.graph.run.report import ExecutionReport
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    return HeadlessHost(headless_folders(tmp_path / "out", tmp_path / "in"), "cpu", Quiet())


@pytest.fixture
def core(host: HeadlessHost) -> dict[str, Any]:
    return dict(standins(host))


def run(prompt: dict[str, Any], classes: dict[str, type], host: HeadlessHost, **more: Any) -> ExecutionReport:
    found = checked(prompt, Classes(classes), host)
    assert isinstance(found, Checked), found
    return execute(found, host, **more)


def picture(mode: str = "RGB", size: tuple[int, int] = (6, 4), seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8))


def load(core: dict[str, Any], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return core["LoadImage"]().load(name)


def test_a_picture_is_pixels_in_0_to_1_and_a_mask_of_what_is_transparent(host: Any, core: Any) -> None:
    source = picture("RGBA")
    source.save(host.folders.input / "a.png")
    pixels, mask = load(core, "a.png")
    array = np.asarray(source).astype(np.float32) / 255.0
    assert pixels.shape == (1, 4, 6, 3) and torch.equal(pixels[0], torch.from_numpy(array[..., :3].copy()))
    assert torch.equal(mask[0], 1.0 - torch.from_numpy(array[..., 3].copy()))
    picture("RGB").save(host.folders.input / "sub" / "b.png")
    assert load(core, "sub/b.png")[1].shape == (1, 64, 64)


def test_a_picture_is_turned_upright(host: Any, core: Any) -> None:
    source = picture(size=(6, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    source.save(host.folders.input / "turned.png", exif=exif)
    pixels, _ = load(core, "turned.png")
    expected = np.rot90(np.asarray(source), -1).astype(np.float32) / 255.0
    assert torch.equal(pixels[0], torch.from_numpy(expected.copy()))


def test_an_animation_is_a_batch_of_frames(host: Any, core: Any) -> None:
    frames = [picture(size=(8, 8), seed=n) for n in range(3)]
    frames[0].save(host.folders.input / "moving.webp", save_all=True, append_images=frames[1:], lossless=True)
    pixels, mask = load(core, "moving.webp")
    assert pixels.shape == (3, 8, 8, 3) and mask.shape == (3, 64, 64)
    assert torch.equal(pixels[2], torch.from_numpy(np.asarray(frames[2]).astype(np.float32) / 255.0))


def test_one_channel_as_a_mask(host: Any, core: Any) -> None:
    source = picture("RGBA")
    source.save(host.folders.input / "a.png")
    node = core["LoadImageMask"]()
    array = torch.from_numpy(np.asarray(source).astype(np.float32) / 255.0)
    for index, channel in enumerate(("red", "green", "blue")):
        assert torch.equal(node.load("a.png", channel)[0][0], array[..., index])
    assert torch.equal(node.load("a.png", "alpha")[0][0], 1.0 - array[..., 3])


def test_a_picture_outside_the_folders_and_one_that_is_none_are_refused(host: Any, core: Any) -> None:
    outside = host.folders.input.parent / "secret.png"
    picture().save(outside)
    (host.folders.input / "text.png").write_text("no picture", encoding="utf-8")
    for name in ("../secret.png", str(outside), "nothing.png"):
        assert isinstance(core["LoadImage"].VALIDATE_INPUTS(name), str)
        with pytest.raises(CascadeError):
            load(core, name)
    with pytest.raises(CascadeError, match="not a picture"):
        load(core, "text.png")


def test_a_cut_off_picture_is_used_as_far_as_it_goes_and_said(host: Any, core: Any) -> None:
    whole = host.folders.input / "whole.jpg"
    picture(size=(64, 64)).save(whole)
    (host.folders.input / "cut.jpg").write_bytes(whole.read_bytes()[:-500])
    pixels, _ = load(core, "cut.jpg")
    assert pixels.shape == (1, 64, 64, 3) and "cut.jpg is damaged" in host.sink.warnings[0]


def test_the_list_of_pictures_holds_pictures_only(host: Any, core: Any) -> None:
    for name in ("b.png", "a.jpg"):
        picture().save(host.folders.input / name)
    (host.folders.input / "notes.txt").write_text("x", encoding="utf-8")
    assert core["LoadImage"].INPUT_TYPES()["required"]["image"][0] == ["a.jpg", "b.png"]


def test_saved_pictures_count_up_and_open_as_the_graph_that_made_them(host: Any) -> None:
    blue = {"width": 8, "height": 8, "batch_size": 2, "color": 0x3366FF}
    saving = {"images": ["1", 0], "filename_prefix": "set/%width%_cat"}
    prompt = {
        "1": {"class_type": "EmptyImage", "inputs": blue},
        "2": {"class_type": "SaveImage", "inputs": saving},
    }
    workflow = {"version": 0.4, "nodes": [{"id": 1, "type": "EmptyImage"}], "links": []}
    for _ in range(2):
        report = run(prompt, standins(host), host, extra_pnginfo={"workflow": workflow})
        assert report.ok
    folder = host.folders.output / "set"
    assert sorted(p.name for p in folder.iterdir()) == [f"8_cat_{n:05}_.png" for n in (1, 2, 3, 4)]
    assert report.outputs()["2"]["images"][0] == {
        "filename": "8_cat_00003_.png",
        "subfolder": "set",
        "type": "output",
    }
    with Image.open(folder / "8_cat_00001_.png") as saved:
        assert list(saved.info) == ["prompt", "workflow"]
        assert json.loads(saved.info["prompt"])["2"]["class_type"] == "SaveImage"
        assert np.asarray(saved)[0, 0].tolist() == [0x33, 0x66, 0xFF]
    assert read_workflow(folder / "8_cat_00001_.png") == workflow


def test_a_preview_goes_to_the_temp_folder(host: Any) -> None:
    prompt = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 4, "height": 4, "batch_size": 1, "color": 0}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    report = run(prompt, standins(host), host)
    (shown,) = report.outputs()["2"]["images"]
    assert shown["type"] == "temp" and (host.folders.temp / shown["filename"]).is_file()


@pytest.mark.parametrize("prefix", ["../out", "/elsewhere/x", "a/../../b"])
def test_a_file_name_that_leaves_the_output_folder_is_refused(host: Any, core: Any, prefix: str) -> None:
    with pytest.raises(CascadeError, match="leaves the output folder"):
        core["SaveImage"]().save(torch.zeros(1, 2, 2, 3), prefix)
    assert not host.folders.output.exists() or not list(host.folders.output.iterdir())


def test_only_rank_0_writes(host: Any, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    images = torch.zeros(1, 2, 2, 3)
    done = core["SaveImage"]().save(images)
    assert done["ui"] == {"images": []} and done["result"][0] is images
    assert not host.folders.output.exists()


def test_one_side_0_keeps_the_shape_and_both_0_keep_the_picture(core: Any) -> None:
    image = torch.rand(2, 10, 20, 3)
    scale = core["ImageScale"]().scale
    assert scale(image, "bilinear", 40, 0, "disabled")[0].shape == (2, 20, 40, 3)
    assert scale(image, "area", 0, 5, "disabled")[0].shape == (2, 5, 10, 3)
    assert scale(image, "area", 0, 0, "center")[0] is image


def test_a_centred_crop_cuts_equal_strips(core: Any) -> None:
    image = torch.zeros(1, 8, 20, 3)
    image[:, :, 6:14] = 1.0
    assert core["ImageScale"]().scale(image, "nearest-exact", 4, 4, "center")[0].min() == 1.0


def test_the_second_batch_takes_the_first_ones_size(core: Any) -> None:
    (joined,) = core["ImageBatch"]().join(torch.zeros(2, 8, 8, 3), torch.ones(1, 4, 8, 4))
    assert joined.shape == (3, 8, 8, 4) and joined[0, 0, 0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    "value, text",
    [
        ("a", "a"),
        (3, "3"),
        (True, "True"),
        (None, "None"),
        (["ü"], '[\n    "ü"\n]'),
        ({1}, "{1}"),
    ],
)
def test_any_value_is_shown_as_text(core: Any, value: Any, text: str) -> None:
    assert core["PreviewAny"]().show(value) == {"ui": {"text": (text,)}, "result": (text,)}


def test_primitives_and_a_reroute_pass_their_value_on(host: Any, core: Any) -> None:
    prompt = {
        "1": {"class_type": "PrimitiveInt", "inputs": {"value": "7"}},
        "2": {"class_type": "Reroute", "inputs": {"": ["1", 0]}},
        "3": {"class_type": "PreviewAny", "inputs": {"source": ["2", 0]}},
        "4": {"class_type": "MarkdownNote", "inputs": {"text": "# hi"}},
    }
    assert run(prompt, core, host).outputs()["3"]["text"] == ["7"]
