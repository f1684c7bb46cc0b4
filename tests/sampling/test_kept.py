"""Latents of the inference chain are drawn once: read afterwards, with the same bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import kept, links, stages

C: dict[str, Any] = {
    **{"seed": 5, "pictures": 2, "width": 0, "height": 0, "steps": 2, "cfg": 3.0, "rescale": 0.7},
    **{"sampler": "ddpm", "shift": 1.0, "strength": 1.0},
}
B: dict[str, Any] = {"seed": 5, "steps": 1, "cfg": 1.1, "sampler": "ddpm", "width": 0, "height": 0}


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(headless_folders(tmp_path / "output"), "cpu", Quiet())


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("this was drawn before")


def test_the_chain_is_read_after_a_restart(
    tiny: ModelsSpec, host: HeadlessHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chain() -> tuple[torch.Tensor, torch.Tensor]:
        text = links.encode_prompt(tiny, "a red ring", None, host)
        c = links.sample_stage_c(tiny, text, host, **C)
        b = links.decode_stage_b(tiny, c, host, positive=text, **B)
        return b["samples"], links.decode_stage_a(tiny, b, host)

    with torch.inference_mode():  # as ComfyUI runs nodes
        first = chain()
        monkeypatch.setattr(stages, "sample_c", refuse)
        monkeypatch.setattr(stages, "sample_b", refuse)
        second = chain()
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert len(list((host.folders.cache / kept.FOLDER).glob("*.safetensors"))) == 2


@pytest.mark.parametrize("other", ["seed", "text", "negative", "latent", "steps", "size"])
def test_whatever_changes_them_draws_others(tiny: ModelsSpec, host: HeadlessHost, other: str) -> None:
    text = links.encode_prompt(tiny, "a red ring", None, host)
    first = links.sample_stage_c(tiny, text, host, **C)
    more = {"negative": text} if other == "negative" else {"latent": first} if other == "latent" else {}
    changed = {"seed": {"seed": 6}, "steps": {"steps": 3}, "size": {"width": 96}}.get(other, {})
    words = links.encode_prompt(tiny, "a blue star", None, host) if other == "text" else text
    strength = {"strength": 0.5} if other == "latent" else {}
    second = links.sample_stage_c(tiny, words, host, **{**C, **changed, **strength}, **more)
    assert first["samples"].shape != second["samples"].shape or not torch.equal(
        first["samples"], second["samples"]
    )


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_file_is_drawn_again(tiny: ModelsSpec, host: HeadlessHost, damage: str) -> None:
    text = links.encode_prompt(tiny, "a red ring", None, host)
    first = links.sample_stage_c(tiny, text, host, **C)["samples"]
    (file,) = (host.folders.cache / kept.FOLDER).iterdir()
    whole = bytearray(file.read_bytes())
    whole[-5] ^= 255
    file.write_bytes(whole[:-8] if damage == "cut" else whole)
    assert torch.equal(links.sample_stage_c(tiny, text, host, **C)["samples"], first)
    assert not host.sink.warnings  # type: ignore[attr-defined]


def test_the_cache_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    for number in range(5):
        file = tmp_path / f"{number}.png"
        file.write_bytes(b"x" * 100)
        os.utime(file, (1e9 + number, 1e9 + number))
    half = tmp_path / ".5.png.abcd.part"
    half.write_bytes(b"left by a kill")
    os.utime(half, (1e9, 1e9))
    kept.used(tmp_path / "0.png")
    assert kept.bound(tmp_path, 250) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.png", "4.png"]
    assert kept.bound(tmp_path, 250) == 0
