"""A workflow is read from whatever carries it, and from damaged files nothing but a clear error comes."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from cascade_train.errors import CascadeError
from cascade_train.graph.file.load import read_workflow

UI = {"nodes": [{"id": 1, "type": "Note", "title": "ünïcode 猫 🐈"}], "links": [], "version": 0.4}
API = {"1": {"class_type": "RuleShow", "inputs": {}}}


def saved(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def test_json_of_both_forms_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    assert read_workflow(saved(tmp_path / "ui.json", UI)) == UI
    assert read_workflow(saved(tmp_path / "api.json", API)) == API
    assert read_workflow(saved(tmp_path / "queued.json", {"prompt": API, "client_id": "x"})) == API
    marked = tmp_path / "mark.json"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps(UI).encode())
    assert read_workflow(marked) == UI


@pytest.mark.parametrize("kind", ["tEXt", "zTXt", "iTXt"])
def test_a_png_gives_its_workflow_before_its_prompt(tmp_path: Path, kind: str) -> None:
    info = PngImagePlugin.PngInfo()
    for key, value in (("prompt", API), ("workflow", UI)):
        text = json.dumps(value, ensure_ascii=kind != "iTXt")
        if kind == "iTXt":
            info.add_itxt(key, text, zip=True)
        else:
            info.add_text(key, text, zip=kind == "zTXt")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", pnginfo=info)
    assert read_workflow(tmp_path / "a.png") == UI


def test_a_png_with_a_prompt_alone_gives_that(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("prompt", json.dumps(API))
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png", pnginfo=info)
    assert read_workflow(tmp_path / "a.png") == API


def test_a_webp_carries_it_in_its_exif(tmp_path: Path) -> None:
    picture = Image.new("RGB", (4, 4))
    exif = picture.getexif()
    exif[0x0110] = "prompt:" + json.dumps(API)
    exif[0x010F] = "workflow:" + json.dumps(UI)
    picture.save(tmp_path / "a.webp", exif=exif)
    assert read_workflow(tmp_path / "a.webp") == UI


def test_a_picture_without_a_workflow_says_so(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    Image.new("RGB", (4, 4)).save(tmp_path / "a.webp")
    for name in ("a.png", "a.webp"):
        with pytest.raises(CascadeError, match="carries no workflow"):
            read_workflow(tmp_path / name)


def test_a_picture_that_was_cut_off_says_so_where_the_workflow_is_lost(tmp_path: Path) -> None:
    info = PngImagePlugin.PngInfo()
    info.add_text("workflow", json.dumps(UI))
    noise = Image.effect_noise((64, 64), 80)
    noise.save(tmp_path / "whole.png", pnginfo=info)
    whole = (tmp_path / "whole.png").read_bytes()
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole[: len(whole) * 3 // 4])
    assert read_workflow(cut) == UI, "the workflow comes before the picture"
    for length in (40, 60):
        cut.write_bytes(whole[:length])
        with pytest.raises(CascadeError, match="is cut off"):
            read_workflow(cut)


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 10,
    "cut off": json.dumps(UI).encode()[:-12],
    "deep list": b"[" * 5_000_000 + b"]" * 5_000_000,
    "deep object": b'{"nodes":' * 300 + b"[]" + b"}" * 300,
    "deep values": b'{"nodes":[{"id":1,"type":"a","widgets_values":' + b"[" * 500 + b"]" * 500 + b"}]}",
    "a number": b"3",
    "null": b"null",
    "no nodes": b'{"hello": "world"}',
    "nodes of another kind": b'{"nodes": {"1": {}}}',
    "long number": b'{"nodes": [' + b"9" * 6000 + b"]}",
    "utf-16": '{"nodes": []}'.encode("utf-16"),
    "png magic alone": b"\x89PNG\r\n\x1a\n",
    "webp magic alone": b"RIFF\x00\x00\x00\x00WEBP",
    "webp with a wild exif": b"RIFF\x40\x00\x00\x00WEBPEXIF\x10\x00\x00\x00II*\x00\xff\xff\xff\xff"
    + b"\xff" * 8,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_give_one_clear_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(CascadeError) as error:
        read_workflow(path)
    assert "w.json" in str(error.value) and "\n" not in str(error.value)
    assert path.read_bytes() == DAMAGED[name] and len(list(tmp_path.iterdir())) == 1


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone.json", Path("a\0b")):
        with pytest.raises(CascadeError):
            read_workflow(path)


def test_a_text_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    packed = zlib.compress(b"0" * (80 * 2**20))
    body = b"workflow\0\0" + packed
    chunk = struct.pack(">I4s", len(body), b"zTXt") + body + b"\0\0\0\0"
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    with pytest.raises(CascadeError, match="too long"):
        read_workflow(tmp_path / "bomb.png")
