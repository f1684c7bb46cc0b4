"""Files of a stranger, as from a shell: each ends within seconds in one plain line, in little memory, with
nothing started, read or written outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
FILES = Path(__file__).with_name("files")
MEMORY = 1200 << 20
"""Bytes that a command may take where torch is not needed for it; on Linux the system holds it to them."""

LIMITED = """
import resource, sys
from cascade_train.cli import main
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty working folder with an ``input`` folder, beside a folder that nobody has allowed."""
    (tmp_path / "outside").mkdir()
    Image.new("RGB", (64, 64), "red").save(tmp_path / "outside" / "private.png")
    (tmp_path / "outside" / "private.txt").write_text("a secret", encoding="utf-8")
    with tarfile.open(tmp_path / "outside" / "private.tar", "w") as tar:
        tar.add(tmp_path / "outside" / "private.png", "0.png")
        tar.add(tmp_path / "outside" / "private.txt", "0.txt")
    (tmp_path / "work" / "input").mkdir(parents=True)
    return tmp_path / "work"


def call(place: Path, *words: str, limit: bool = True) -> tuple[int, str]:
    """``cascade-train``; its exit code and what it says. It must end in time, with no traceback."""
    code = LIMITED.format(memory=MEMORY) if limit and sys.platform == "linux" else ""
    program = ["-c", code] if code else ["-m", "cascade_train.cli"]
    done = subprocess.run(
        [sys.executable, *program, *words],
        cwd=place,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said and "unexpected" not in said and "MemoryError" not in said, said
    assert "secret" not in said
    return done.returncode, said


def write(place: Path, kind: str, **inputs: Any) -> str:
    """A workflow that previews a dataset of ``kind``; its file name."""
    more = {"on_bad": "skip", "max_bad": 0.5, "background": "white"}
    more |= {"shuffle_buffer": 8} if kind == "CascadeWebDataset" else {"recursive": True}
    prompt = {
        "1": {"class_type": kind, "inputs": {**more, **inputs}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    }
    (place / "made.json").write_text(json.dumps(prompt), encoding="utf-8")
    return "made.json"


def test_braces_that_multiply(place: Path) -> None:
    code, said = call(place, "validate", str(FILES / "braces_bomb.json"))
    assert code == 2 and "shards" in said
    for text in (
        "{a,b}" * 40,
        "{0..9}" * 12,
        "{" + "0" * 200_000 + "..99999}",
        f"{{1..{'9' * 5000}}}",
        "{,}" * 30,
    ):
        code, said = call(place, "validate", write(place, "CascadeWebDataset", shards=text))
        assert code == 2 and "shards =" in said and len(said) < 2000
    lines = "\n".join(["{00000..99999}.tar"] * 50)
    assert call(place, "validate", write(place, "CascadeWebDataset", shards=lines))[0] == 2


@pytest.mark.parametrize("name", ["laugh.yml", "self.yml"])
def test_lists_that_refer_to_themselves(name: str, place: Path) -> None:
    shutil.copy(FILES / name, place / "input")
    code, said = call(place, "validate", write(place, "CascadeWebDataset", shards=name))
    assert code == 2 and name in said and "aliases" in said


def test_lists_that_are_deep_or_many_or_long(place: Path) -> None:
    folder = place / "input"
    (folder / "deep.yml").write_text("[" * 50_000 + "]" * 50_000, encoding="utf-8")
    (folder / "long.yml").write_text("- a.tar\n" * 1_000_000, encoding="utf-8")
    (folder / "c.yml").write_text("- d.tar\n", encoding="utf-8")
    (folder / "b.yml").write_text("- c.yml\n" * 300, encoding="utf-8")
    (folder / "many.yml").write_text("- b.yml\n" * 300, encoding="utf-8")
    (folder / "tags.yml").write_text("- !!python/object/apply:os.system [touch hacked]\n", encoding="utf-8")
    shutil.copy(FILES / "hugefirst.tar", folder / "d.tar")
    for name in ("deep", "long", "many", "tags"):
        code, said = call(place, "validate", write(place, "CascadeWebDataset", shards=f"{name}.yml"))
        assert code == 2 and "shards" in said, name
    assert not (place / "hacked").exists()


def test_lists_inside_an_input(place: Path) -> None:
    nested: Any = "x.tar"
    for _ in range(60):
        nested = [nested, nested] if _ < 12 else [nested]
    for value in (nested, {"__value__": nested}, [], [["1", 0]], {"__value__": ["a.tar"]}):
        code, said = call(place, "validate", write(place, "CascadeWebDataset", shards=value))
        assert code == 2 and len(said) < 2000


def test_a_picture_that_unpacks_to_gigabytes(place: Path) -> None:
    for words in (("validate",), ("inspect",), ("run",), ("convert",)):
        code, said = call(place, *words, str(FILES / "jsonlist.png"))
        assert code == 2 and "jsonlist.png" in said and said.count("\n") == 1

    def chunk(kind: bytes, body: bytes) -> bytes:
        return pack(">I", len(body)) + kind + body + pack(">I", zlib.crc32(kind + body))

    text = zlib.compress(b"[" + b"{}," * 8_000_000 + b"{}]", 9)
    many = b"".join(chunk(b"zTXt", b"workflow\0\0" + text) for _ in range(60))
    (place / "many.png").write_bytes(b"\x89PNG\r\n\x1a\n" + many + chunk(b"IEND", b""))
    assert call(place, "validate", "many.png")[0] == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lists.json", '{"nodes":[' + "[]," * 9_000_000 + "[]]}"),
        ("objects.json", '{"nodes":[' + '{"a":1},' * 3_000_000 + "1]}"),
        ("prompt.json", "{" + ",".join(f'"{i}":{{}}' for i in range(1_600_000)) + "}"),
        ("deep.json", '{"nodes":' + "[" * 200_000 + "]" * 200_000 + "}"),
        ("digits.json", '{"nodes":[' + "9" * 20_000 + "]}"),
        ("long.json", '{"nodes":["' + "a" * (40 << 20) + '"]}'),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_json_that_would_fill_the_memory(name: str, text: str, place: Path) -> None:
    (place / name).write_text(text, encoding="utf-8")
    code, said = call(place, "validate", name)
    assert code == 2 and name in said and said.count("\n") == 1


def test_comments_that_never_end(place: Path) -> None:
    node = {
        **{"id": 1, "type": "CascadePrompts", "inputs": [], "outputs": []},
        "widgets_values": ["/*a" * 400_000 + "{a|b}" * 20_000],
    }
    (place / "comments.json").write_text(json.dumps({"nodes": [node], "links": []}), encoding="utf-8")
    call(place, "validate", "comments.json")
    call(place, "convert", "comments.json", "--draw", "1")


def test_an_expression_without_end(place: Path) -> None:
    """The data room needs numpy and more, and so as much memory as they take."""
    code, said = call(place, "run", str(FILES / "tt_round.json"), limit=False)
    assert code == 1 and "TooMuch" in said, said


def test_a_local_tar_by_a_scheme(place: Path) -> None:
    (place / "input" / "s3:x").mkdir()
    code, said = call(place, "run", str(FILES / "read_outside_s3_local.json"), limit=False)
    assert code == 2 and "no remote address" in said, said


@pytest.mark.skipif(os.name == "nt", reason="making links needs a privilege there")
def test_links_in_a_folder(place: Path) -> None:
    folder = place / "input" / "links"
    folder.mkdir()
    Image.new("RGB", (64, 64), "blue").save(folder / "own.png")
    (folder / "own.txt").write_text("mine", encoding="utf-8")
    for name in ("private.png", "private.txt"):
        (folder / name).symlink_to(place.parent / "outside" / name)
    (folder / "folder").symlink_to(place.parent / "outside")
    code, said = call(place, "run", str(FILES / "symlinks_in_folder.json"), limit=False)
    assert code == 0 and "1 sample" in said and "3 links" in said, said


def test_nothing_was_left_outside(place: Path) -> None:
    """What a whole run of a stranger's workflow leaves: the output folder, and nothing else."""
    before = {path.name for path in place.parent.iterdir()}
    shutil.copy(FILES / "hugefirst.tar", place / "input")
    call(place, "validate", write(place, "CascadeWebDataset", shards="hugefirst.tar"))
    assert {path.name for path in place.parent.iterdir()} == before
    assert {path.name for path in place.iterdir()} <= {"input", "made.json", "output"}


@pytest.mark.skipif(os.name == "nt", reason="the fake is a shell script")
def test_postscript_named_as_a_picture_starts_nothing(place: Path) -> None:
    bin_ = place / "bin"
    bin_.mkdir()
    fake = bin_ / "gs"
    fake.write_text(f"#!/bin/sh\necho started >> {place}/started\n", encoding="utf-8")
    fake.chmod(0o755)
    (place / "input" / "epsset").mkdir()
    for name in ("eps_renamed.png", "eps_endless.png"):
        shutil.copy(FILES / name, place / "input" / "epsset")
        shutil.copy(FILES / name, place / "input")
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{bin_}{os.pathsep}{path}"
    try:
        code, said = call(place, "run", str(FILES / "tt_epsset.json"), limit=False)
        assert code != 0 and "eps_renamed.png" in said, said
        prompt = {
            "1": {"class_type": "LoadImage", "inputs": {"image": "eps_renamed.png"}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        }
        (place / "load.json").write_text(json.dumps(prompt), encoding="utf-8")
        assert call(place, "run", "load.json", limit=False)[0] == 1
    finally:
        os.environ["PATH"] = path
    assert not (place / "started").exists()


def test_an_index_beside_a_tar_that_never_ends(place: Path) -> None:
    (place / "input" / "t").mkdir()
    for name in ("ix_count.tar", "ix_count.tar.index"):
        shutil.copy(FILES / name, place / "input" / "t")
    code, said = call(place, "run", str(FILES / "tt_ix_count.json"), limit=False)
    assert code == 0 and "6 samples" in said, said


def test_a_member_that_claims_two_to_the_62_bytes(place: Path) -> None:
    shutil.copy(FILES / "hugefirst.tar", place / "input")
    code, said = call(place, "dataset", "inspect", "input/hugefirst.tar", "--nano", limit=False)
    assert code == 0 and "0 samples" in said and "claims 12089258196146291747" in said and "a.png" in said, (
        said
    )
