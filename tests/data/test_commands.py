"""``cascade-train dataset`` and ``cache``, as a person or a script calls them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

MakeFolder = Callable[..., Path]


def call(tmp_path: Path, *words: object, ok: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from cascade_train.cli import main; sys.exit(main())",
            *map(str, words),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=50,
    )
    assert (done.returncode == 0) is ok, done.stderr
    return done


def last(done: subprocess.CompletedProcess[str]) -> dict:
    value: dict = json.loads(done.stdout.strip().splitlines()[-1])
    return value


def test_inspect_a_folder_with_bad_files(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder([(96, 64), (64, 64), (64, 96)] * 2)
    (root / "broken 🦊.jpg").write_bytes(b"nothing")
    (root / "empty.png").write_bytes(b"")
    (root / "0003.txt").unlink()
    done = call(
        tmp_path,
        "dataset",
        "inspect",
        root,
        "--json",
        "--nano",
        "--filter",
        "width < 90",
        "--preview",
        tmp_path / "grid.png",
        "--output-dir",
        tmp_path / "out",
    )
    told = last(done)
    assert (told["samples"], told["bad"], told["dropped"]) == (4, 2, 2)
    assert {(item["name"], item["reason"]) for item in told["bad_files"]} == {
        ("broken 🦊.jpg", "not a picture that can be read"),
        ("empty.png", "zero bytes"),
    }
    assert told["buckets"][0]["latents"] == [8, 8]
    assert (tmp_path / "grid.png").is_file()
    assert "4 samples" in done.stdout and "zero bytes: empty.png" in done.stdout

    told = last(call(tmp_path, "dataset", "inspect", root, "--json", "--output-dir", tmp_path / "out"))
    assert told["samples"] == 5 and any("0003.png" in warning for warning in told["warnings"])


def test_inspect_says_why_not(tmp_path: Path) -> None:
    done = call(tmp_path, "dataset", "inspect", tmp_path / "nowhere", "--json", ok=False)
    assert "does not exist" in done.stderr and "does not exist" in last(done)["error"]
    (tmp_path / "hollow").mkdir()
    done = call(tmp_path, "dataset", "inspect", tmp_path / "hollow", ok=False)
    assert "no picture" in done.stderr and "hollow" in done.stderr and "png" in done.stderr
    assert "Traceback" not in done.stderr


def test_decoding_finds_damage_inside(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder([(96, 64)] * 3)
    data = bytearray((root / "0001.png").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (root / "0001.png").write_bytes(data)
    assert last(call(tmp_path, "dataset", "inspect", root, "--json"))["bad"] == 0
    told = last(call(tmp_path, "dataset", "inspect", root, "--json", "--decode"))
    assert told["bad"] == 1 and told["samples"] == 2 and told["bad_files"][0]["name"].endswith("0001.png")


def test_pack_and_inspect_the_shards(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder([(96, 64)] * 9)
    (root / "bad.png").write_bytes(b"")
    told = last(call(tmp_path, "dataset", "pack", root, "set/out.tar", "--json", "--shard-size", "0.05"))
    assert told["samples"] == 9 and told["bad"] == 1 and len(told["shards"]) > 1
    for shard in told["shards"]:
        assert (tmp_path / shard).is_file() and (tmp_path / f"{shard}.index").is_file()
    for name in ("set", "set/out-{00000..00001}.tar", "set/*.tar"):
        seen = last(call(tmp_path, "dataset", "inspect", name, "--json", "--nano"))
        assert seen["bad"] == 0 and (seen["samples"] == 9 or "{" in name)
    assert "exists already" in call(tmp_path, "dataset", "pack", root, "set/out.tar", ok=False).stderr


@pytest.mark.parametrize("nano", [True, False], ids=["nano", "CLIP"])
def test_captions_behind_the_text_limit_are_counted(
    make_folder: MakeFolder, server: str, tmp_path: Path, nano: bool
) -> None:
    """Of a folder, its tar, and the tar streamed."""
    root = make_folder([(64, 64)] * 5)
    for number, file in enumerate(sorted(root.glob("*.txt"))):
        file.write_text("red circle " * (40 if number < 3 else 2), encoding="utf-8")
    call(tmp_path, "dataset", "pack", root, "long.tar")
    if not nano and importlib.util.find_spec("clip") is None:
        pytest.skip("CLIP's vocabulary is not here: pip install --no-deps clip-anytorch")
    for place in (root, "long.tar", f"{server}/long.tar"):
        told = last(call(tmp_path, "dataset", "inspect", place, "--json", *["--nano"] * nano))
        assert (told["samples"], told["too_long"]) == (5, 3), place
        (note,) = [note for note in told["notes"] if "tokens that are read" in note]
        assert f"3 of 5 captions are longer than the {30 if nano else 75} tokens" in note


def test_remote_shards_are_streamed_and_told_of(server: str, shards: list[Path], tmp_path: Path) -> None:
    half = shards[2].read_bytes()
    shards[2].write_bytes(half[: len(half) // 2 + 100])
    done = call(
        tmp_path,
        *("dataset", "inspect", f"{server}/{{a,b,c,gone}}.tar", "--nano", "--json"),
        *("--filter", "n != 3", "--preview", "grid.png", "--decode"),
    )
    told = last(done)
    assert told["streamed"] and 26 <= told["samples"] < 33 and told["dropped"] in (2, 3)
    assert {item["reason"] for item in told["bad_files"]} == {
        "shard cannot be fetched",
        "shard is cut off or damaged",
    }
    assert sum(bucket["samples"] for bucket in told["buckets"]) == told["samples"]
    assert "gone.tar" in done.stdout
    assert (tmp_path / "grid.png").is_file()
    once = last(
        call(tmp_path, "dataset", "inspect", f"{server}/{{a,b}}.tar", "--json", "--duplicates", "remove")
    )
    assert once["samples"] == 12 and once["dropped_reasons"][0]["reason"] == "duplicate", "a and b are equal"
    some = last(call(tmp_path, "dataset", "inspect", f"{server}/a.tar", "--limit", "5", "--json", "--nano"))
    assert some["samples"] == 5 and any("only the first 5 samples" in text for text in some["warnings"])
    said = call(tmp_path, "dataset", "inspect", f"{server}/gone.tar", "--json", ok=False)
    assert "gone.tar" in last(said)["error"] and "Traceback" not in said.stderr


def test_cache_ls_and_prune(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder([(96, 64)] * 2)
    call(tmp_path, "dataset", "inspect", root)
    told = last(call(tmp_path, "cache", "ls", "--json"))
    assert [item["kind"] for item in told["items"]] == ["index"] and told["bytes"] > 0
    assert last(call(tmp_path, "cache", "prune", "--older-than", "1", "--json"))["bytes"] == 0
    assert last(call(tmp_path, "cache", "prune", "--json"))["bytes"] == told["bytes"]
    assert last(call(tmp_path, "cache", "ls", "--json"))["bytes"] == 0
    call(tmp_path, "dataset", "inspect", root, "--filter", "sharpness > 0")
    kinds = {item["kind"]: item for item in last(call(tmp_path, "cache", "ls", "--json"))["items"]}
    assert kinds["measures"]["files"] == 1 and kinds["measures"]["bytes"] > 0
    (gone,) = last(call(tmp_path, "cache", "prune", "--kind", "measures", "--json"))["items"]
    assert (
        gone["kind"] == "measures" and last(call(tmp_path, "dataset", "inspect", root, "--json"))["samples"]
    )


@pytest.mark.parametrize(
    "words", [("dataset",), ("dataset", "inspect"), ("dataset", "pack", "x"), ("cache", "rm")]
)
def test_wrong_words_are_told_with_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    assert "usage" in call(tmp_path, *words, ok=False).stderr
