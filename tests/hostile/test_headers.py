"""safetensors files and animations of strangers: a plain line with the path, before memory is taken."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade_train.errors import CascadeError
from cascade_train.models import header
from cascade_train.models.weights import read_header, read_tensors


def a_file(path: Path, text: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def tensors(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


def entry(shape: list[Any], first: Any, last: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


BAD: dict[str, tuple[bytes, bytes, int | None]] = {
    "empty header": (b"", b"", None),
    "claims 2^63 bytes": (b"{}", b"", 1 << 63),
    "claims more than there is": (b"{}", b"", 3),
    "no JSON": (b"{oops", b"", None),
    "not UTF-8": (b'{"\xff":1}', b"", None),
    "a list": (b"[1,2]", b"", None),
    "nested": (b"{" + b'"a":[' + b"[" * 90_000 + b"]" * 90_000 + b"]}", b"", None),
    "a bomb of lists": (b'{"a":[' + b"[]," * 2_000_000 + b"[]]}", b"", None),
    "a bomb of objects": (b'{"a":[' + b"{}," * 2_000_000 + b"{}]}", b"", None),
    "negative side": (tensors(a=entry([-4], 0, 16)), bytes(16), None),
    "side too large": (tensors(a=entry([1 << 62, 1 << 62], 0, 16)), bytes(16), None),
    "side is a bool": (tensors(a=entry([True, 4], 0, 16)), bytes(16), None),
    "offsets turned round": (tensors(a=entry([4], 16, 0)), bytes(16), None),
    "offsets beyond the end": (tensors(a=entry([4], 0, 16)), bytes(8), None),
    "offsets of another size": (tensors(a=entry([5], 0, 16)), bytes(16), None),
    "overlap": (tensors(a=entry([4], 0, 16), b=entry([4], 8, 24)), bytes(24), None),
    "a gap": (tensors(a=entry([4], 0, 16), b=entry([4], 20, 36)), bytes(36), None),
    "longer than it says": (tensors(a=entry([4], 0, 16)), bytes(64), None),
    "no shape": (tensors(a={"dtype": "F32", "data_offsets": [0, 16]}), bytes(16), None),
    "a tensor that is a text": (tensors(a="b"), b"", None),
    "unknown kind": (tensors(a=entry([4], 0, 16, "NOPE")), bytes(16), None),
    "metadata that is a number": (tensors(__metadata__={"a": 1}, a=entry([4], 0, 16)), bytes(16), None),
}


@pytest.mark.parametrize("kind", BAD)
def test_every_fault_is_a_plain_line_with_the_path(kind: str, tmp_path: Path) -> None:
    path = a_file(tmp_path / "strange.safetensors", *BAD[kind])
    with pytest.raises(CascadeError, match=r"strange\.safetensors") as said:
        read_tensors(path)
    assert len(str(said.value)) < 500 and "\n" not in str(said.value)


def test_a_header_is_not_read_beyond_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", 90 << 20))
        handle.truncate(100 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(CascadeError, match="header has 90 MiB"):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_right_is_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    made = {"a": torch.arange(6.0).reshape(2, 3), "none": torch.zeros(0, 3), "one": torch.tensor(True)}
    made |= {"half": torch.ones(3).bfloat16(), "small": torch.ones(2).to(torch.float8_e4m3fn)}
    save_file(made, tmp_path / "a.safetensors", {"k": "v"})
    found = header.read(tmp_path / "a.safetensors")
    assert found.metadata == {"k": "v"} and found.shapes["a"] == [2, 3] and found.shapes["one"] == []
    read = read_tensors(tmp_path / "a.safetensors")
    assert all(torch.equal(read[name].float(), made[name].float()) for name in made)


def test_the_places_that_open_one_say_which(tmp_path: Path) -> None:
    from cascade_train.data.caches import open_store
    from cascade_train.formats.lora import read_token
    from cascade_train.models import build
    from cascade_train.models.trained import read_trained

    folder = tmp_path / "1-a"
    folder.mkdir()
    a_file(folder / "trained.safetensors", b"{oops")
    (folder / "trained.json").write_text('{"format": 1, "kind": "lora", "settings": {}}', encoding="utf-8")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    a_file(folder / "model.safetensors", b"{oops")
    opens: list[Callable[[], Any]] = [
        lambda: read_trained(folder),
        lambda: read_token(folder / "trained.safetensors"),
        lambda: build.load("stage_c", folder / "trained.safetensors"),
    ]
    for each in opens:
        with pytest.raises(CascadeError, match=r"trained\.safetensors"):
            each()
    store = open_store(tmp_path, "latents", "0" * 32, "of a test")
    store.folder.mkdir(parents=True, exist_ok=True)
    a_file(store.folder / "bad.safetensors", b"{oops")
    assert "0" * 32 not in store, "a shard that is damaged holds nothing"


def test_an_animation_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    from cascade_train.graph.core.load import LoadImage
    from cascade_train.host.headless import HeadlessHost, headless_folders

    (tmp_path / "in").mkdir()
    frames = [Image.new("L", (4000, 4000), shade) for shade in range(12)]
    frames[0].save(tmp_path / "in" / "bomb.gif", save_all=True, append_images=frames[1:], duration=10)
    assert (tmp_path / "in" / "bomb.gif").stat().st_size < 2_000_000
    loader = type(
        "Loader", (LoadImage,), {"host": HeadlessHost(headless_folders(tmp_path, tmp_path / "in"))}
    )()
    with pytest.raises(CascadeError, match="frames or more"):
        loader.load("bomb.gif")
    small = [Image.new("L", (8, 8), 40 * shade) for shade in range(5)]
    small[0].save(tmp_path / "in" / "ok.gif", save_all=True, append_images=small[1:], duration=10)
    assert loader.load("ok.gif")[0].shape == (5, 8, 8, 3)


def test_a_picture_of_more_pixels_than_memory_is_refused(tmp_path: Path) -> None:
    import zlib

    from cascade_train.graph.core.load import LoadImage
    from cascade_train.host.headless import HeadlessHost, headless_folders

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    about = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", about) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (tmp_path / "wide.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    loader = type("Loader", (LoadImage,), {"host": HeadlessHost(headless_folders(tmp_path, tmp_path))})()
    with pytest.raises(CascadeError, match="too large"):
        loader.load("wide.png")
