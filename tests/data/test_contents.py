"""What is used is what lies there: a picture changed in place is another dataset, or stops by its name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cascade_train.data import measured
from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.filters.expression import expression_filters
from cascade_train.data.filters.near_duplicates import duplicate_filters
from cascade_train.data.index import Index
from cascade_train.data.readers import folder_source, tar_source
from cascade_train.data.spec import BucketSpec, Dataset, Source, WeightedSource
from cascade_train.errors import CascadeError

from .conftest import encoded

FIXED = {
    "bmp": {},
    "tiff": {"compression": "raw"},
    "png": {"compress_level": 0},
}
"""Formats whose size follows from the number of pixels, with what Pillow needs to write them so."""
Opened = Callable[..., OpenDataset]


def shape(colour: tuple[int, int, int], number: int) -> Image.Image:
    pixels = np.full((128, 128, 3), 255, np.uint8)
    pixels[40:90, 30 + 8 * number : 60 + 8 * number] = colour
    return Image.fromarray(pixels)


def comment_in(data: bytes, text: bytes) -> bytes:
    """A JPEG with a comment of 20 kB in front of its pixels' tables and 9 kB of nothing at its end."""
    parts = [b"\xff\xfe" + (20_002).to_bytes(2, "big") + bytes(5_000) + text.ljust(15_000, b".")]
    return data[:2] + b"".join(parts) + data[2:-2] + bytes(9_000) + b"\xff\xd9"


def tar_of(folder: Path, to: Path) -> Path:
    with tarfile.open(to, "w") as tar:
        for path in sorted(folder.iterdir()):
            info = tarfile.TarInfo(path.name)
            info.size = path.stat().st_size
            with path.open("rb") as handle:
                tar.addfile(info, handle)
    return to


def painted(folder: Path, ending: str, colour: tuple[int, int, int]) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(4):
        shape(colour, number).save(folder / f"{number}.{ending}", **FIXED[ending])
        (folder / f"{number}.txt").write_text("a shape on white")
    return folder


def ends_of(folder: Path) -> list[tuple[bytes, bytes, int]]:
    """What tells the pictures in a folder apart as long as only their ends are read."""
    contents = [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".txt"]
    return [(data[:4096], data[-4096:], len(data)) for data in contents]


@pytest.mark.parametrize("ending", FIXED)
def test_painting_over_a_picture_of_fixed_size_is_another_dataset(
    ending: str, tmp_path: Path, opened: Opened
) -> None:
    root = painted(tmp_path / "set", ending, (0, 0, 255))
    before = opened(root, buckets=BucketSpec(crop="center"))
    draw = before.draws(0, 0, 1)[0]
    shown = before.load(draw).pixels
    key, name, ends = before.cache_key(draw), before.dataset.digest, ends_of(root)
    painted(root, ending, (255, 0, 0))
    assert ends_of(root) == ends or ending == "png", "a PNG has a checksum of its pixels at its end"
    for place in (root, shutil.copytree(root, tmp_path / "copy")):
        after = opened(place, buckets=BucketSpec(crop="center"))
        assert after.dataset.digest != name and after.cache_key(draw) != key
        assert (after.load(draw).pixels != shown).any()


def test_touching_copying_and_moving_rename_nothing(tmp_path: Path) -> None:
    root = painted(tmp_path / "set", "bmp", (0, 0, 255))
    (root / "4.jpg").write_bytes(comment_in(encoded(shape((9, 9, 9), 1), "JPEG"), b"one"))
    cache = tmp_path / "cache" / "index"
    name = folder_source(root, True, cache).content
    for path in root.iterdir():
        os.utime(path, ns=(1, 1))
        path.chmod(0o600)
    assert folder_source(root, True, cache).content == name
    copy = shutil.copytree(root, tmp_path / "copy")
    moved = root.rename(tmp_path / "moved")
    assert [folder_source(place, True, cache).content for place in (copy, moved)] == [name, name]


def test_a_picture_whose_size_and_time_were_kept_is_looked_at_again(tmp_path: Path, opened: Opened) -> None:
    root = tmp_path / "set"
    root.mkdir()
    pictures = [encoded(shape(colour, 2), "BMP") for colour in ((0, 0, 255), (255, 0, 0))]
    (root / "0.bmp").write_bytes(pictures[0])
    (root / "0.txt").write_text("blue")
    before, times = opened(root), [(root / name).stat() for name in ("0.bmp", "0.txt")]
    (root / "0.bmp").write_bytes(pictures[1])
    (root / "0.txt").write_text("pink")
    for name, state in zip(("0.bmp", "0.txt"), times):
        os.utime(root / name, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = opened(root)
    assert after.captions(0) == ("pink",) and after.dataset.digest != before.dataset.digest


def sources(kind: str, root: Path, cache: Path) -> Source:
    if kind == "folder":
        return folder_source(root, True, cache / "index")
    return tar_source(tar_of(root, root.with_suffix(".tar")), cache / "index")


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize("when", ["when it is opened", "when it is decoded"])
def test_a_picture_changed_between_its_ends_stops_by_its_name(when: str, kind: str, tmp_path: Path) -> None:
    root, cache = tmp_path / "set", tmp_path / "cache"
    root.mkdir()
    plain = encoded(shape((0, 0, 255), 1), "JPEG")
    first, second = comment_in(plain, b"one"), comment_in(plain, b"two")
    assert len(first) == len(second) and first[:4096] == second[:4096] and first[-4096:] == second[-4096:]
    (root / "0.jpg").write_bytes(first)
    (root / "0.txt").write_text("a shape")

    def used(place: Path) -> OpenDataset:
        dataset = Dataset((WeightedSource(sources(kind, place, cache)),))
        opened = open_dataset(dataset, multiple=8, native_side=64, cache=cache)
        opened.load(opened.draws(0, 0, 1)[0])
        measured.flush_all()
        return opened

    name = used(root).dataset.digest
    place = root if when == "when it is opened" else shutil.copytree(root, tmp_path / "other" / "set")
    (place / "0.jpg").write_bytes(second)
    for _ in range(2):
        with pytest.raises(CascadeError, match=r"no longer the one .*0\.jpg"):
            used(place)
    (place / "0.jpg").write_bytes(first)
    assert used(place).dataset.digest == name, "put back, it goes on"
    (place / "0.jpg").write_bytes(second)
    (place / "0.jpg").rename(place / "0 new.jpg")
    (place / "0.txt").rename(place / "0 new.txt")
    assert used(place).dataset.digest != name, "under another name it is another dataset"


def test_a_picture_that_changes_under_a_run_stops_it_by_name(
    make_folder: Callable[..., Path], opened: Opened
) -> None:
    root = make_folder([(96, 64)] * 3)
    dataset = opened(root)
    shutil.copy(root / "0000.png", root / "0001.png")
    with pytest.raises(CascadeError, match=r"has changed since .*0001\.png"):
        for step in range(3):
            dataset.load(dataset.draws(0, step, 1)[0])


def test_filters_see_what_lies_there(tmp_path: Path, opened: Opened) -> None:
    root = painted(tmp_path / "set", "bmp", (0, 0, 255))
    dark = expression_filters("brightness < 0.95")
    before = len(opened(root, filters=dark))
    painted(root, "bmp", (250, 250, 250))
    assert before == 4 and opened(root, filters=dark, strict=False).report.samples == 0
    same = shape((0, 0, 255), 0)
    same.save(root / "0.bmp")
    same.save(root / "1.bmp")
    exact = opened(root, filters=duplicate_filters("remove"))
    assert [count.names for count in exact.report.dropped] == [("1.bmp",)], (
        "equal ends are not equal pictures"
    )


def test_a_damaged_index_is_made_anew_at_once(
    make_folder: Callable[..., Path], opened: Opened, tmp_path: Path
) -> None:
    root = make_folder([(96, 64)] * 40)
    name = opened(root).dataset.digest
    told: list[str] = []
    cache = tmp_path / "cache" / "index"
    for where in (0.1, 0.5, 0.9):
        (path,) = cache.glob("*.sqlite")
        data = bytearray(path.read_bytes())
        data[int(len(data) * where)] ^= 4
        path.write_bytes(data)
        source = folder_source(root, True, cache, tell=told.append)
        assert Dataset((WeightedSource(source),)).digest == name
        assert (
            len(told) == 1 and "pictures was damaged" in told.pop() and len(list(cache.glob("*.sqlite"))) == 1
        )
        folder_source(root, True, cache, tell=told.append)
        assert not told, "and told once"
    stale = cache / ".1234.sqlite.abcd.part"
    stale.write_bytes(b"half")
    os.utime(stale, ns=(1, 1))
    path.unlink(missing_ok=True)
    for other in cache.glob("*.sqlite"):
        other.unlink()
    opened(root)
    assert not stale.exists(), "what a killed process left is swept"


def test_an_index_of_an_earlier_version_is_made_anew(
    make_folder: Callable[..., Path], opened: Opened, tmp_path: Path
) -> None:
    root, cache = make_folder([(96, 64)] * 4), tmp_path / "cache" / "index"
    opened(root)
    (path,) = cache.glob("*.sqlite")
    path.rename(path.with_name(f"{path.name.partition('-')[0]}-{'0' * 32}.sqlite"))
    told: list[str] = []
    folder_source(root, True, cache, tell=told.append)
    assert (
        len(told) == 1
        and "another version" in told[0]
        and isinstance(Index(next(cache.glob("*.sqlite"))), Index)
    )


def test_the_content_of_earlier_versions_still_names_datasets(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Of pictures that their ends tell apart, the name is what it was before wholes were read."""
    root = make_folder([(96, 64)] * 3)
    content = hashlib.sha256(b"index 1")
    for path in sorted(root.glob("*.png")):
        data = path.read_bytes()
        crc = zlib.crc32(data[max(0, len(data) - 4096) :], zlib.crc32(data[:4096]))
        said = json.dumps({".txt": path.with_suffix(".txt").read_text()})
        for part in (path.name.encode(), b"%d %d" % (len(data), crc), said.encode(), b"{}"):
            content.update(b"%d:" % len(part) + part)
    assert folder_source(root, True, tmp_path / "cache").content == content.hexdigest()[:32]
