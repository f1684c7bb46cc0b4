"""The inference chain as nodes pass it on: core's CONDITIONING, LATENT and IMAGE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import links, pipeline
from cascade_train.sampling.pictures import load_pictures, stamp

TEXT = "a large red circle on a black background"
STAGE_C: dict[str, Any] = {
    "seed": 5,
    "pictures": 2,
    "width": 0,
    "height": 0,
    "steps": 3,
    "cfg": 3.0,
    "rescale": 0.7,
    "sampler": "ddpm",
    "shift": 1.0,
    "strength": 1.0,
}
STAGE_B: dict[str, Any] = {"seed": 5, "steps": 2, "cfg": 1.1, "sampler": "ddpm", "width": 0, "height": 0}


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(headless_folders(tmp_path / "output", tmp_path / "input"), "cpu")


def test_node_by_node_is_the_same_as_all_at_once(tiny: ModelsSpec, host: HeadlessHost) -> None:
    with torch.inference_mode():  # as ComfyUI runs nodes
        text = links.encode_prompt(tiny, TEXT, None, host)
        assert text[0][0].shape[0] == 1 and text[0][1]["pooled_output"].ndim == 2, "core's form"
        c = links.sample_stage_c(tiny, text, host, **STAGE_C)
        assert c["samples"].shape == (2, 16, 8, 8)
        b = links.decode_stage_b(tiny, c, host, positive=text, **STAGE_B)
        assert b["samples"].shape == (2, 4, 16, 16)
        pictures = links.decode_stage_a(tiny, b, host)
        assert links.preview_latent(tiny, c, host).shape[0] == 2
    whole = pipeline.text_to_image(tiny, [TEXT], seeds=[5, 6], steps_c=3, cfg_c=3.0, steps_b=2, shift=1.0)
    assert torch.allclose(pictures, whole, atol=1e-4)


def test_wide_pictures_keep_their_shape_through_the_chain(tiny: ModelsSpec, host: HeadlessHost) -> None:
    text = links.encode_prompt(tiny, TEXT, None, host)
    c = links.sample_stage_c(tiny, text, host, **{**STAGE_C, "width": 96, "height": 48})
    pictures = links.decode_stage_a(tiny, links.decode_stage_b(tiny, c, host, **STAGE_B), host)
    assert pictures.shape == (2, 48, 96, 3)


def test_a_latent_with_a_strength_is_image_to_image(tiny: ModelsSpec, host: HeadlessHost) -> None:
    picture = torch.rand(1, 64, 96, 3)
    start = links.encode_stage_c(tiny, picture, host)
    text = links.encode_prompt(tiny, TEXT, None, host)
    drawn = links.sample_stage_c(tiny, text, host, latent=start, **{**STAGE_C, "strength": 0.1})
    assert drawn["samples"].shape == (2, 16, 8, 12), "two pictures from one, in its size"
    batch = links.encode_stage_c(tiny, torch.rand(3, 64, 64, 3), host)
    assert links.sample_stage_c(tiny, text, host, latent=batch, **STAGE_C)["samples"].shape[0] == 3
    with pytest.raises(CascadeError, match="Encode the picture at the size"):
        links.sample_stage_c(tiny, text, host, latent=start, **{**STAGE_C, "width": 64, "height": 64})


def test_an_image_makes_variations_where_there_is_an_encoder(
    tiny_with_image: ModelsSpec, tiny: ModelsSpec, host: HeadlessHost
) -> None:
    first, second = torch.zeros(1, 64, 64, 3), torch.rand(1, 80, 64, 3)
    one = links.encode_prompt(tiny_with_image, "", first, host)
    two = links.encode_prompt(tiny_with_image, "", second, host)
    assert one[0][1]["clip_image"].shape == (1, 32)
    drawn = [links.sample_stage_c(tiny_with_image, each, host, **STAGE_C)["samples"] for each in (one, two)]
    assert not torch.equal(*drawn), "the picture conditions what is drawn"
    pictures = pipeline.text_to_image(
        tiny_with_image, [""], seeds=[1, 2], variation_of=second, steps_c=2, steps_b=1
    )
    assert pictures.shape == (2, 64, 64, 3)
    with pytest.raises(CascadeError, match="image encoder"):
        links.encode_prompt(tiny, "", first, host)


def test_latents_of_the_other_stage_are_refused(tiny: ModelsSpec, host: HeadlessHost) -> None:
    b = links.encode_stage_a(tiny, torch.rand(1, 64, 64, 3), host)
    c = links.encode_stage_c(tiny, torch.rand(1, 64, 64, 3), host)
    with pytest.raises(CascadeError, match="takes Stage C latents, which have 16 channels"):
        links.decode_stage_b(tiny, b, host, **STAGE_B)
    with pytest.raises(CascadeError, match="takes Stage B latents, which have 4 channels"):
        links.decode_stage_a(tiny, c, host)
    with pytest.raises(CascadeError, match="a height of 60 pixels"):
        links.encode_stage_a(tiny, torch.rand(1, 60, 64, 3), host)


def test_a_conditioning_from_elsewhere_is_refused(tiny: ModelsSpec, host: HeadlessHost) -> None:
    with pytest.raises(CascadeError, match="Encode Text"):
        links.sample_stage_c(tiny, [[torch.zeros(1, 77, 768), {}]], host, **STAGE_C)


def test_pictures_are_loaded_in_one_size(host: HeadlessHost) -> None:
    folder = host.folders.input / "cats"
    folder.mkdir(parents=True)
    Image.new("RGB", (200, 100), (255, 0, 0)).save(folder / "a.png")
    Image.new("L", (50, 80), 128).save(folder / "b.jpg")
    (folder / "notes.txt").write_text("no picture", encoding="utf-8")
    both = load_pictures("cats", 0, 9, 64, 32, host)
    assert both.shape == (2, 32, 64, 3) and torch.allclose(both[0, 0, 0], torch.tensor([1.0, 0.0, 0.0]))
    assert load_pictures("cats", 1, 1, 64, 64, host).shape[0] == 1
    assert load_pictures("cats/a.png", 0, 9, 64, 64, host).shape[0] == 1
    before = stamp("cats", 0, 9, host)
    Image.new("RGB", (200, 100), (0, 255, 0)).save(folder / "c.png")
    assert stamp("cats", 0, 9, host) != before, "a new picture is noticed"


@pytest.mark.parametrize(
    "path, first, words",
    [
        ("dogs", 0, "'dogs' does not exist"),
        ("empty", 0, "no pictures"),
        ("cats", 5, "no picture number 5"),
        ("broken", 0, "'x.png' cannot be read"),
        ("../..", 0, "outside|does not exist"),
    ],
)
def test_pictures_that_are_not_there(path: str, first: int, words: str, host: HeadlessHost) -> None:
    for name in ("cats", "empty", "broken"):
        (host.folders.input / name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(host.folders.input / "cats" / "a.png")
    (host.folders.input / "broken" / "x.png").write_bytes(b"\x89PNG not really")
    with pytest.raises(CascadeError, match=words):
        load_pictures(path, first, 4, 64, 64, host)
    assert isinstance(stamp(path, first, 4, host), (str, list))
