"""Tars that lie: one bad member is one bad sample, and nothing is read for what a header claims."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from cascade_train.data import members as tar_members
from cascade_train.data.dataset import open_dataset
from cascade_train.data.members import Member, members
from cascade_train.data.readers import tar_source
from cascade_train.data.spec import Dataset, WeightedSource
from cascade_train.data.tars import entries_of
from cascade_train.errors import CascadeError

from .conftest import encoded, photo

Bad = dict[str, str]
GOOD = {"0.png", "1.png"}


def header(name: str, size: int, kind: bytes = b"0", raw_size: bytes | None = None) -> bytes:
    """A header of a tar with any size, its checksum right."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = raw_size or b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def sample(number: int) -> bytes:
    picture = encoded(photo(64, 64, number))
    return b"".join(
        header(name, len(data)) + filled(data)
        for name, data in ((f"{number}.png", picture), (f"{number}.txt", b"picture %d" % number))
    )


def read(path: Path, middle: bytes) -> tuple[set[str], Bad]:
    """(samples, bad ones by name) of a tar with two whole samples around ``middle``."""
    path.write_bytes(sample(0) + middle + sample(1) + bytes(1024))
    found = list(entries_of(path, {}))
    return {e.name for e in found if not e.bad}, {e.name: e.bad for e in found if e.bad}


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (b"\x80\0\0\0" + (1 << 62).to_bytes(8, "big"), f"claims {1 << 62} bytes"),
        (b"\x80\0\0\0" + (5 << 30).to_bytes(8, "big"), f"claims {5 << 30} bytes"),
        (b"\xff" * 12, "claims -1 bytes"),
        (b"%011o\0" % (1 << 29), tar_members.CUT),
    ],
)
def test_a_size_that_is_a_lie(tmp_path: Path, claim: bytes, said: str) -> None:
    good, bad = read(tmp_path / "a.tar", header("lie.png", 0, raw_size=claim) + filled(b"x" * 600))
    assert good == GOOD and bad == {"lie.png": said}


@pytest.mark.parametrize("kind", [b"x", b"L", b"K", b"g"])
def test_a_description_that_claims_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    tracemalloc.start()
    good, bad = read(tmp_path / "a.tar", header("long", 3 << 30, kind) + header("a.png", 3) + filled(b"png"))
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()
    assert good == GOOD and set(bad) == {"a.png"} and "claims" in bad["a.png"]


def pax(**records: bytes) -> bytes:
    data = b""
    for key, value in records.items():
        body = b" %s=%s\n" % (key.replace("__", ".").encode(), value)
        length = len(body) + 2
        data += b"%d" % length + body if len(b"%d" % length) == 2 else b"%d" % (length + 1) + body
    return header("pax", len(data), b"x") + filled(data)


def test_a_chain_of_descriptions(tmp_path: Path) -> None:
    chain = pax(comment=b"again") * 3000
    good, bad = read(tmp_path / "a.tar", chain + header("a.png", 3) + filled(b"png"))
    assert good == GOOD and bad == {"a.png": "more than 8 headers in front of it"}


def test_descriptions_that_are_right(tmp_path: Path) -> None:
    picture = encoded(photo(64, 64, 7))
    long = "/".join(["ordner" * 10] * 5) + "/ü"
    middle = b"".join(
        pax(path=f"{long}{ending}".encode(), size=b"%d" % len(data)) + header("short", 0) + filled(data)
        for ending, data in ((".png", picture), (".txt", b"a long name"))
    )
    good, bad = read(tmp_path / "a.tar", middle)
    assert good == {*GOOD, f"{long}.png"} and not bad


@pytest.mark.parametrize("record", [b"99999 path=a\n", b"x", b"5 a=", b"12 size=-1\n\n", b"3 \n"])
def test_descriptions_that_are_damaged(tmp_path: Path, record: bytes) -> None:
    middle = header("pax", len(record), b"x") + filled(record) + header("a.png", 3) + filled(b"png")
    good, bad = read(tmp_path / "a.tar", middle)
    assert good == GOOD and set(bad) == {"a.png"}


def test_text_that_is_none(tmp_path: Path) -> None:
    picture = encoded(photo(64, 64, 7))
    middle = b""
    for name, text in (
        ("half", b'{"caption": "\\ud83e"}'),
        ("deep", b"[" * 100_000),
        ("name", b'{"\\udfff": 1}'),
        ("list", b'["\\ud800", "b"]'),
    ):
        middle += header(f"{name}.png", len(picture)) + filled(picture)
        middle += header(f"{name}.json", len(text)) + filled(text)
    good, bad = read(tmp_path / "a.tar", middle)
    assert good == GOOD and bad == {
        "half.png": ".json holds half a surrogate pair",
        "name.png": ".json holds half a surrogate pair",
        "list.png": ".json holds half a surrogate pair",
        "deep.png": ".json is no valid JSON",
    }


def test_names_of_any_bytes(tmp_path: Path) -> None:
    picture = encoded(photo(64, 64, 7))
    block = bytearray(header("X" * 5 + ".png", len(picture)))
    block[:5] = b"\xed\xa0\x80\xff\n"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    middle = bytes(block) + filled(picture)
    middle += pax(path=b"\xed\xa0\x80.png") + header("s", len(picture)) + filled(picture)
    good, bad = read(tmp_path / "a.tar", middle)
    assert len(good) == 4 and not bad


def test_damage_in_the_middle_costs_what_it_hits(tmp_path: Path) -> None:
    whole = sample(2)
    good, bad = read(tmp_path / "a.tar", b"\x55" * 512 + whole[512:])
    assert good == GOOD and bad["a.tar"] == tar_members.DAMAGED
    assert set(bad) == {"a.tar", "2.txt"}, "its caption lost its picture"


def test_the_same_name_twice(tmp_path: Path) -> None:
    good, bad = read(tmp_path / "a.tar", sample(1))
    assert good == {"0.png"} and bad == {"1.png": "the same name twice"}


def test_a_tar_inside_that_is_cut_off_gives_no_samples(tmp_path: Path) -> None:
    inner = sample(5) + bytes(1024)
    path = tmp_path / "a.tar"
    path.write_bytes(sample(0) + header("inner.tar", len(inner) + 9000) + inner)
    assert [member.name for member in members(path)] == ["0.png", "0.txt", "inner.tar"]


def test_maps_of_holes_that_lie(tmp_path: Path) -> None:
    def sparse(first: int, length: int, real: int) -> bytes:
        block = bytearray(header("s.bmp", 512, b"S"))
        block[386:410] = b"%011o\0%011o\0" % (first, length)
        block[483:495] = b"%011o\0" % real
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return bytes(block) + bytes(512)

    for first, length, real in ((0, 1 << 29, 1 << 30), (8 << 29, 4, 600), (0, 512, (4 << 30) - 1)):
        good, bad = read(tmp_path / f"{real}.tar", sparse(first, length, real))
        assert good == GOOD and set(bad) == {"s.bmp"}, bad


def test_a_bad_member_is_a_bad_sample_of_the_dataset(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    lie = header("lie.png", 0, raw_size=b"\x80" + b"\x7f" * 11)
    path.write_bytes(sample(0) + lie + sample(1) + bytes(1024))
    dataset = Dataset((WeightedSource(tar_source(path, tmp_path / "index")),))
    opened = open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path)
    loaded = [opened.load(opened.draws(0, step, 1)[0]) for step in range(2)]
    assert {each.caption for each in loaded} == {"picture 0", "picture 1"}
    assert [count.names for count in opened.report.bad] == [("lie.png",)]


@pytest.mark.parametrize("start", [b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"])
def test_packed_tars_are_told_how_to_unpack(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(start + b"x" * 900)
    with pytest.raises(CascadeError, match=r"compressed.*Unpack it first"):
        members(tmp_path / "a.tar")


def test_every_member_that_python_writes(tmp_path: Path, make_tar: Callable[..., Path]) -> None:
    picture = encoded(photo())
    names = ["a", "ordner/" * 30 + "b", "ü" * 120, "c" * 99]
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=kind) as archive:
            for name in names:
                info = tarfile.TarInfo(f"{name}.png")
                info.size, info.mtime = len(picture), 1.5
                archive.addfile(info, io.BytesIO(picture))
        found = members(tmp_path / "a.tar")
        assert [member.name for member in found] == [f"{name}.png" for name in names]
        data = (tmp_path / "a.tar").read_bytes()
        assert all(data[m.offset : m.offset + m.size] == picture for m in found)
        assert not any(isinstance(m, Member) and m.bad for m in found)
