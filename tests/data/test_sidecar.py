"""What lies beside a tar saves time and is never believed: the tar says what is in it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.folder import index_folder
from cascade_train.data.pack import pack
from cascade_train.data.readers import FolderReader, tar_source
from cascade_train.data.sidecar import beside, read_sidecar, write_sidecar
from cascade_train.data.spec import BucketSpec, Dataset, WeightedSource
from cascade_train.data.tars import entries_of, index_tar

from .conftest import encoded, photo
from .test_contents import painted, tar_of


def opened(tar: Path, cache: Path, told: list[str] | None = None) -> OpenDataset:
    source = tar_source(tar, cache / "index", tell=(told if told is not None else []).append)
    dataset = Dataset((WeightedSource(source),), buckets=BucketSpec(crop="center"))
    return open_dataset(dataset, multiple=8, native_side=64, cache=cache)


@pytest.fixture
def tar(make_tar: Callable[..., Path]) -> Path:
    path = make_tar([(f"{n:02}", encoded(photo(130, 100, n)), f"caption {n}", {"n": n}) for n in range(6)])
    write_sidecar(path, entries_of(path, {}))
    return path


def test_an_index_is_the_same_with_and_without_it(tar: Path, tmp_path: Path) -> None:
    assert len(read_sidecar(tar).sizes) == 6 and not read_sidecar(tar).notes
    with_it = index_tar(tar, tmp_path / "one")
    rows = list(with_it.rows())
    beside(tar).unlink()
    without = index_tar(tar, tmp_path / "two")
    assert list(without.rows()) == rows and without.content == with_it.content
    assert {(entry.width, entry.height) for entry in rows} == {(130, 100)}


def test_a_tar_written_anew_beside_it_is_what_is_used(tmp_path: Path) -> None:
    """Equal sizes, headers and first 4 KiB, other pictures and captions: the file beside it is old."""
    root = painted(tmp_path / "set", "bmp", (0, 0, 255))
    tar = tar_of(root, tmp_path / "set.tar")
    write_sidecar(tar, entries_of(tar, {}))
    before = opened(tar, tmp_path / "c1")
    shown = [before.load(before.draws(0, step, 1)[0]).pixels for step in range(4)]
    old = tar.read_bytes()
    painted(root, "bmp", (255, 0, 0))
    for path in root.glob("*.txt"):
        path.write_text("a shape on black")
    tar_of(root, tar)
    new = tar.read_bytes()
    assert len(old) == len(new) and old[:4096] == new[:4096] and old[-4096:] == new[-4096:] and old != new
    for cache in (tmp_path / "c1", tmp_path / "c2"):
        after = opened(tar, cache)
        assert after.captions(0) == ("a shape on black",) and after.dataset.digest != before.dataset.digest
        again = [after.load(after.draws(0, step, 1)[0]).pixels for step in range(4)]
        assert all((one != two).any() for one, two in zip(shown, again))


def test_sizes_that_are_lies_make_bad_samples(tar: Path, tmp_path: Path) -> None:
    entries = [
        replace(entry, width=400) if entry.name == "02.png" else entry for entry in entries_of(tar, {})
    ]
    write_sidecar(tar, entries)
    dataset = opened(tar, tmp_path / "cache")
    for step in range(6):
        dataset.load(dataset.draws(0, step, 1)[0])
    (count,) = dataset.bad_found()
    assert "130×100, not 400×100" in count.reason and count.names == ("0000.tar/02.png",)


def view_of_no_end(path: Path) -> None:
    path.unlink()
    database = sqlite3.connect(path)
    database.executescript(
        "CREATE TABLE facts(name TEXT, value TEXT); INSERT INTO facts VALUES ('format', '1');"
        "CREATE VIEW samples AS WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n)"
        " SELECT id, id AS name FROM n;"
    )
    database.close()


BAD: dict[str, Callable[[Path, Path], object]] = {
    "a database of an earlier version": lambda tar, file: view_of_no_end(file),
    "damaged": lambda tar, file: file.write_bytes(file.read_bytes()[:-3] + b"9]\n"),
    "cut off": lambda tar, file: file.write_bytes(file.read_bytes()[:-9]),
    "larger than the tar": lambda tar, file: file.write_bytes(bytes(tar.stat().st_size + 1)),
    "deep": lambda tar, file: file.write_bytes(b"[" * 5000),
    "no text": lambda tar, file: file.write_bytes(b"\xff\xfe\0\1" * 99),
}


@pytest.mark.parametrize("way", BAD)
def test_what_is_none_is_left_alone_with_a_line(way: str, tar: Path, tmp_path: Path) -> None:
    rows = list(index_tar(tar, tmp_path / "first").rows())
    beside(tar).unlink()
    write_sidecar(tar, entries_of(tar, {}))
    BAD[way](tar, beside(tar))
    told: list[str] = []
    dataset = opened(tar, tmp_path / "cache", told)
    assert len(told) == 1 and "0000.tar.index is not used" in told[0]
    assert len(dataset) == 6 and list(index_tar(tar, tmp_path / "cache" / "index").rows()) == rows


def test_lines_of_a_stranger_are_numbers_or_nothing(tar: Path, tmp_path: Path) -> None:
    for line in (
        "[1, 2, 3, 4]",
        "[1, 2, 3, 0, 5]",
        "[1, 2, 3, 99999999, 99999999]",
        '[1,2,3,4,"5"]',
        "{}",
        "[" * 99,
    ):
        rest = f"{line}\n".encode()
        head = {"is": "index of a tar", "format": 2, "digest": hashlib.sha256(rest).hexdigest()[:32]}
        beside(tar).write_bytes(json.dumps(head).encode() + b"\n" + rest)
        assert read_sidecar(tar).notes and not read_sidecar(tar).sizes, line


def test_packing_writes_one(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    root = make_folder([(130, 100)] * 3)
    done = pack(FolderReader(root, index_folder(root, True, tmp_path / "cache")), tmp_path / "set.tar")
    assert len(read_sidecar(done.shards[0]).sizes) == 3


def test_reading_through_a_tar_tells_how_far_it_is_and_can_be_stopped(
    make_tar: Callable[..., Path], tmp_path: Path
) -> None:
    picture = encoded(photo(16, 16))
    path = make_tar([(f"{n:04}", picture, "c", None) for n in range(600)])
    told: list[tuple[int, str]] = []
    index_tar(path, tmp_path / "one", lambda done, total, text="", preview=None: told.append((done, text)))
    members = [done for done, text in told if text.startswith("indexing")]
    pictures = [done for done, text in told if text.startswith("looking at the pictures")]
    assert len(members) >= 4 and len(pictures) >= 9 and pictures == sorted(pictures)

    class Stopped(Exception):
        pass

    for at in range(0, len(told), 3):
        left = iter(range(at))

        def stop(*_: object) -> None:
            if next(left, None) is None:  # noqa: B023
                raise Stopped

        with pytest.raises(Stopped):
            index_tar(path, tmp_path / "two", stop)
        assert not [file for file in (tmp_path / "two").glob("*") if file.is_file()]
