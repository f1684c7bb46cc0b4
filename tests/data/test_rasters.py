"""Pictures are pixels: what is a program inside a file called .png is started by nobody."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from cascade_train.data.pixels import BadImage, decode
from cascade_train.rasters import FORMATS, open_raster

from .conftest import encoded, photo

RENAMED = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 64 64
%%EndComments
0 1 0 setrgbcolor 0 0 64 64 rectfill
showpage
%%EOF
"""
ENDLESS = RENAMED.replace(b"showpage", b"{ } loop showpage")

WAYS = """
import sys
from pathlib import Path
from cascade_train.data.dataset import open_dataset
from cascade_train.data.pixels import BadImage, decode
from cascade_train.data.sources import folder_dataset, tars_dataset
from cascade_train.data.spec import CaptionSpec
from cascade_train.errors import CascadeError
from cascade_train.graph.core.standins import standins
from cascade_train.host.headless import HeadlessHost, headless_folders

root = Path(sys.argv[1])
host = HeadlessHost(headless_folders(root / "out", root / "in"), "cpu")
folder = folder_dataset("set", recursive=True, host=host)
for dataset in (folder, tars_dataset("set.tar", shuffle=1, host=host)):
    dataset = dataset.with_captions(CaptionSpec(source="fixed"))
    opened = open_dataset(dataset, multiple=8, native_side=64, host=host, strict=False)
    print(opened.report.data()["bad_files"], len(opened))
    for step in range(2):
        opened.load(opened.draws(0, step, 1)[0])
for name in ("set/renamed.png", "set/endless.jpg"):
    for node in ("LoadImage", "LoadImageMask"):
        try:
            dict(standins(host))[node]().load(name, *(("red",) if "Mask" in node else ()))
            print("opened")
        except CascadeError as error:
            print(error)
    try:
        decode((root / "in" / name).read_bytes())
        print("decoded")
    except BadImage as error:
        print(error)
"""


def test_no_way_in_starts_ghostscript(tmp_path: Path) -> None:
    root, marker = tmp_path / "in" / "set", tmp_path / "started"
    root.mkdir(parents=True)
    for name, content in (("renamed.png", RENAMED), ("endless.jpg", ENDLESS), ("good.png", encoded(photo()))):
        (root / name).write_bytes(content)
    with tarfile.open(tmp_path / "in" / "set.tar", "w") as tar:
        for path in sorted(root.iterdir()):
            tar.add(path, path.name)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in (
        "gs",
        "gswin32c",
        "gswin64c",
        "gswin32c.bat",
        "gswin64c.bat",
        "inkscape",
        "convert",
        "magick",
    ):
        (programs / name).write_text(f'#!/bin/sh\necho started > "{marker}"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    seen = subprocess.run(["gs"], env=environment, check=False, shell=sys.platform == "win32")
    assert seen.returncode == 0 and marker.exists(), "the planted program is the one that is found"
    marker.unlink()
    done = subprocess.run(
        [sys.executable, "-c", WAYS, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=55,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert (
        lines[0] == lines[1]
        and lines[0].endswith(" 1")
        and lines[0].count("not a picture that can be read") == 2
    )
    assert len(lines) == 8 and all("not a picture" in line for line in lines[2:])
    assert not marker.exists(), "no program was started"


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "TGA", "PCX"])
def test_what_is_no_raster_of_the_list_is_no_picture(kind: str) -> None:
    data = encoded(photo(64, 64), kind)
    with pytest.raises(BadImage, match="not a picture"):
        decode(data)
    with pytest.raises(OSError):
        open_raster(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_the_rasters_of_the_list_are_read(kind: str) -> None:
    assert kind in FORMATS
    image = open_raster(io.BytesIO(encoded(photo(64, 48), kind)))
    assert isinstance(image, Image.Image) and image.size == (64, 48)
