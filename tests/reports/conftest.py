"""Small datasets as people reported them, and what ``dataset inspect --list --json`` tells of each."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from cascade_train.cli import main

Samples = dict[str, tuple[int, int, list[str]]]
Files = Iterable[tuple[str, bytes]]


def picture(width: int = 96, height: int = 96, mark: int = 0, kind: str = "PNG", **options: Any) -> bytes:
    """A picture that ``mark`` tells from others, encoded."""
    image = Image.new("RGB", (width, height), (200, 30, 30))
    ImageDraw.Draw(image).rectangle([mark % 40, 5, mark % 40 + 20, 30], fill=(20, 200, 90))
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def put_tar(path: Path, files: Files) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def put_folder(root: Path, files: Files) -> Path:
    for name, data in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@dataclass(frozen=True)
class Told:
    """What the command told: samples by their key, without their source and with composed accents."""

    samples: Samples
    lines: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def unused(self) -> dict[str, str]:
        """Reasons by name."""
        return {item["name"]: item["reason"] for item in self.summary["unused"]}


Inspect = Callable[..., Told]


@pytest.fixture
def inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Inspect:
    def look(path: object, *words: str) -> Told:
        capsys.readouterr()
        output = str(tmp_path / "out")
        code = main(["dataset", "inspect", str(path), "--list", "--json", "--output-dir", output, *words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        *lines, summary = [json.loads(line) for line in printed.out.splitlines()]
        samples = {}
        for line in lines:
            assert set(line) == {"key", "width", "height", "bucket", "captions"}
            key = line["key"] if summary["streamed"] else line["key"].partition("/")[2]
            samples[unicodedata.normalize("NFC", key)] = line["width"], line["height"], line["captions"]
        assert len(samples) == len(lines) == summary["samples"], "every key once"
        return Told(samples, lines, summary)

    return look


@pytest.fixture(params=["folder", "tar", "stream"])
def lay(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Files], str]:
    """Lays files out as a folder, a tar, or a remote tar that was copied already; gives what to inspect."""

    def make(files: Files) -> str:
        if request.param == "folder":
            return str(put_folder(tmp_path / "set", files))
        tar = put_tar(tmp_path / "set.tar", files)
        if request.param == "tar":
            return str(tar)
        url = "s3://nobody/set.tar"
        copies = tmp_path / "out" / "cascade" / "cache" / "shards"
        copies.mkdir(parents=True, exist_ok=True)
        shutil.copy(tar, copies / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.tar")
        return url

    return make


def square(*captions: str) -> tuple[int, int, list[str]]:
    return 96, 96, list(captions)
