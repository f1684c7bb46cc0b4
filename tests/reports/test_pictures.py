"""Reports of pictures: which way is up, and one painted over in place."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from cascade_train.data.pixels import decode
from cascade_train.data.readers import folder_source, tar_source

from .conftest import Files, Inspect, put_folder, put_tar

XMP = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description rdf:about="" xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    b"</rdf:RDF></x:xmpmeta>"
)


def turned() -> dict[str, bytes]:
    """Pictures that lie on their side, red at the left, by the name of what says so."""
    base = Image.new("RGB", (192, 96))
    ImageDraw.Draw(base).rectangle([0, 0, 47, 95], fill=(255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    out = {}
    for name, options in (
        ("xmp6.jpg", {"quality": 95}),
        ("tiff6.tiff", {"exif": exif}),
        ("exif6.jpg", {"quality": 95, "exif": exif}),
    ):
        data = io.BytesIO()
        base.save(data, "TIFF" if name.endswith("tiff") else "JPEG", **options)
        out[name] = data.getvalue()
    content = b"http://ns.adobe.com/xap/1.0/\0" + XMP
    jpeg = out["xmp6.jpg"]
    out["xmp6.jpg"] = jpeg[:20] + b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + jpeg[20:]
    return out


def test_which_way_is_up(lay: Callable[[Files], str], inspect: Inspect) -> None:
    files = list(turned().items())
    files += [(name.partition(".")[0] + ".txt", b"a tall picture, red on top") for name in turned()]
    told = inspect(lay(files), "--decode")
    said = ["a tall picture, red on top"]
    assert told.samples == dict.fromkeys(("xmp6", "tiff6", "exif6"), (96, 192, said))
    for name, data in turned().items():
        pixels = decode(data)
        assert pixels.shape == (192, 96, 3), name
        assert pixels[:40, :, 0].min() > 200 and pixels[60:, :, 0].max() < 60, f"{name}: red is on top"


def painted(colour: tuple[int, int, int]) -> list[tuple[str, bytes]]:
    files = []
    for k in range(4):
        pixels = np.full((128, 128, 3), 255, np.uint8)
        pixels[40:90, 30 + 8 * k : 60 + 8 * k] = colour
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "BMP")
        files += [(f"{k}.bmp", data.getvalue()), (f"{k}.txt", b"a shape on white")]
    return files


def test_edited_in_place(tmp_path: Path, inspect: Inspect) -> None:
    blue, red = painted((0, 0, 255)), painted((255, 0, 0))
    root = put_folder(tmp_path / "set", blue)
    tar = put_tar(tmp_path / "set.tar", blue)
    assert all(len(a) == len(b) and a[:4096] == b[:4096] for (_, a), (_, b) in zip(blue, red))
    told = inspect(root)
    assert told.samples == {str(k): (128, 128, ["a shape on white"]) for k in range(4)}
    folder, shard = folder_source(root, True, tmp_path / "i").content, tar_source(tar, tmp_path / "i").content
    times = {path: path.stat() for path in (*root.iterdir(), tar)}
    put_folder(root, red)
    put_tar(tar, red)
    for path, status in times.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert folder_source(root, True, tmp_path / "i").content != folder
    assert tar_source(tar, tmp_path / "i").content != shard
    assert inspect(root).summary["digest"] != told.summary["digest"]
