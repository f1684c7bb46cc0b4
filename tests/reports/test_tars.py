"""Reports of tars: links, holes, an empty one among others."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cascade_train.data.dataset import open_dataset
from cascade_train.data.readers import tar_source
from cascade_train.data.spec import Dataset, WeightedSource

from .conftest import Inspect, picture, put_tar, square

GNU = shutil.which("tar") and b"GNU" in subprocess.run(["tar", "--version"], capture_output=True).stdout


def test_links_in_tars(tmp_path: Path, inspect: Inspect) -> None:
    with tarfile.open(tmp_path / "l.tar", "w") as archive:

        def put(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, to, len(data)
            archive.addfile(info, io.BytesIO(data))

        put("./a/0.txt", kind=tarfile.SYMTYPE, to="../words/all.text")
        for k in range(4):
            put(f"./a/{k}.png", picture(mark=9 * k))
        put("./words/all.text", b"one caption for all")
        put("./a/1.txt", kind=tarfile.LNKTYPE, to="./words/all.text")
        put("./a/2.txt", kind=tarfile.LNKTYPE, to="./a/1.txt")
        put("./a/3.txt", kind=tarfile.SYMTYPE, to="/etc/hostname")
        put("./a/4.png", kind=tarfile.LNKTYPE, to="./a/0.png")
        put("./a/4.txt", kind=tarfile.SYMTYPE, to="5.txt")
        put("./a/5.txt", kind=tarfile.SYMTYPE, to="4.txt")
        put("./a/6.png", kind=tarfile.LNKTYPE, to="./a/0.png")
        put("./a/6.txt", b"a linked picture")
    told = inspect(tmp_path / "l.tar")
    assert told.samples == {
        **{f"a/{k}": square("one caption for all") for k in range(3)},
        "a/6": square("a linked picture"),
    }
    assert told.unused["l.tar/./a/3.png"] == "a link to what is not in the tar"
    assert told.unused["l.tar/./a/4.png"] == "a link to what is not in the tar", "links in a circle"


@pytest.mark.skipif(not GNU, reason="needs GNU tar")
def test_hard_links_in_tar(tmp_path: Path, inspect: Inspect) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "0.txt").write_text("one caption for all")
    for k in range(4):
        (source / f"{k}.png").write_bytes(picture(mark=9 * k))
        if k:
            os.link(source / "0.txt", source / f"{k}.txt")
    subprocess.run(["tar", "--sort=name", "-cf", tmp_path / "h.tar", "-C", source, "."], check=True)
    assert inspect(tmp_path / "h.tar").samples == {str(k): square("one caption for all") for k in range(4)}


@pytest.mark.skipif(not GNU, reason="needs GNU tar")
@pytest.mark.parametrize("kind", ["gnu", "posix"])
def test_sparse_tar(tmp_path: Path, inspect: Inspect, kind: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    wanted = {}
    for k in range(3):
        pixels = np.zeros((400, 400, 3), np.uint8)
        pixels[20:60, 20 + 10 * k : 90] = (255, 40, 40)
        pixels[340:380, 300:360] = (40, 255, 40)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "BMP")
        with (source / f"{k}.bmp").open("wb") as file:
            for at in range(0, len(out.getvalue()), 4096):
                if any(piece := out.getvalue()[at : at + 4096]):
                    file.seek(at)
                    file.write(piece)
            file.truncate(len(out.getvalue()))
        (source / f"{k}.txt").write_text(f"two marks on black {k}")
        wanted[f"two marks on black {k}"] = pixels
    tar = tmp_path / "s.tar"
    words = ["tar", "-S", f"--format={kind}", "--hole-detection=raw", "--sort=name", "-cf", str(tar)]
    subprocess.run([*words, "-C", str(source), "."], check=True)
    assert tar.stat().st_size < 3 * 400 * 400 * 3, "it has holes"
    told = inspect(tar)
    assert told.samples == {str(k): (400, 400, [f"two marks on black {k}"]) for k in range(3)}
    dataset = Dataset((WeightedSource(tar_source(tar, tmp_path / "index")),))
    opened = open_dataset(dataset, multiple=8, native_side=400, cache=tmp_path)
    for step in range(3):
        loaded = opened.load(opened.draws(0, step, 1)[0])
        assert (loaded.pixels == wanted[loaded.caption]).all()


def test_one_empty_shard(tmp_path: Path, inspect: Inspect) -> None:
    root = tmp_path / "set"
    root.mkdir()
    files = [f for k in range(3) for f in ((f"{k}.png", picture(mark=k)), (f"{k}.txt", f"cap {k}".encode()))]
    put_tar(root / "0.tar", files)
    (root / "1.tar").write_bytes(b"")
    (root / "2.tar").write_bytes(b"<html>404 not found</html>" * 40)
    told = inspect(root)
    assert told.samples == {str(k): square(f"cap {k}") for k in range(3)}
    assert {item["name"]: item["reason"] for item in told.summary["bad_files"]} == {
        "1.tar": "the tar has zero bytes",
        "2.tar": "this is no tar file (it has no header)",
    }
    assert set(told.unused) == {"1.tar", "2.tar"}
