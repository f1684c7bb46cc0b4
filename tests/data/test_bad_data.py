"""A folder and a tar as real life leaves them: everything bad is skipped, counted and named."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from cascade_train.data.dataset import OpenDataset
from cascade_train.data.readers import tar_source
from cascade_train.data.unused import OTHER, RIVAL
from cascade_train.errors import CascadeError

from .conftest import encoded, photo

Opened = Callable[..., OpenDataset]


def reasons(opened: OpenDataset) -> dict[str, tuple[str, ...]]:
    return {count.reason: count.names for count in opened.report.bad}


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    root = tmp_path / "my pictures (2)"
    (root / "ünter ordner").mkdir(parents=True)
    jpeg, png = encoded(photo(80, 60, 1), "JPEG"), encoded(photo(80, 60, 2))

    def put(name: str, data: bytes, caption: bytes | None = b"a caption") -> None:
        (root / name).write_bytes(data)
        if caption is not None:
            (root / name).with_suffix(".txt").write_bytes(caption)

    put("good.jpg", jpeg)
    put("a name with spaces.png", png)
    put("ünter ordner/狐 🦊.png", png)
    put("png called jpg.jpg", png)
    put("UPPER.JPG", jpeg)
    put("half.jpg", jpeg[: len(jpeg) // 2])
    put("cut.png", png[: len(png) // 2])
    put("nothing.png", b"")
    put("zeros.jpg", bytes(5000))
    put("unfinished.jpg", jpeg[:-400] + bytes(4000))
    put("text.jpg", b"<html>404 not found</html>")
    put("latin.png", png, "Käse".encode("latin-1"))
    put("windows.png", png, "\ufeffmit BOM".encode("utf-8"))
    put("nan.png", png)
    (root / "nan.json").write_text('{"score": NaN}')
    put("brackets.png", png)
    (root / "brackets.json").write_text("{" * 100_000)
    put("fine.png", png)
    (root / "fine.json").write_text('{"score": 3}')
    (root / "readme.txt").write_text("not a caption of anything")
    (root / "video.mp4").write_bytes(b"....")
    (root / ".hidden.png").write_bytes(b"")
    if sys.platform != "win32":
        put("new\nline.png", png)
        (root / "loop").symlink_to(root)
        (root / "dangling.png").symlink_to(root / "gone.png")
    bomb = bytearray(encoded(Image.new("L", (8, 8))))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    import zlib

    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    put("bomb.png", bytes(bomb))
    return root


def test_a_messy_folder(messy: Path, opened: Opened) -> None:
    dataset = opened(messy, max_bad=0.9)
    found = reasons(dataset)
    assert set(found["truncated"]) == {"half.jpg", "cut.png", "unfinished.jpg"}
    assert found["zero bytes"] == ("nothing.png",)
    assert found["nothing but zeros"] == ("zeros.jpg",)
    assert found["not a picture that can be read"] == ("text.jpg",)
    assert found["decompression bomb"] == ("bomb.png",)
    assert found[".txt is not UTF-8"] == ("latin.png",)
    assert found["NaN in json"] == ("nan.png",)
    assert found[".json is no valid JSON"] == ("brackets.png",)
    keys = {dataset.key(i) for i in range(len(dataset))}
    names = {
        "good.jpg",
        "a name with spaces.png",
        "ünter ordner/狐 🦊.png",
        "png called jpg.jpg",
        "UPPER.JPG",
        "windows.png",
        "fine.png",
    }
    if sys.platform != "win32":
        names.add(r"new\nline.png")
        assert found["may not be read"] == ("dangling.png",)
    assert keys == {f"my pictures (2)/{name}" for name in names}
    windows = next(i for i in range(len(dataset)) if dataset.key(i).endswith("windows.png"))
    assert dataset.captions(windows) == ("mit BOM",)
    assert any("readme.txt" in warning for warning in dataset.report.warnings)
    for step in range(len(dataset)):
        assert dataset.load(dataset.draws(0, step, 1)[0]).pixels.shape == (64, 64, 3)


def test_the_report_names_what_is_bad_for_people_and_machines(messy: Path, opened: Opened) -> None:
    report = opened(messy, max_bad=0.9, strict=False).report
    text = report.text()
    assert "other files in my pictures (2) are left alone: 1 .mp4" in text
    assert "3 truncated: cut.png, half.jpg, unfinished.jpg" in text
    data = report.data()
    assert data["bad"] == report.bad_count >= 10
    assert {"name": "text.jpg", "reason": "not a picture that can be read"} in data["bad_files"]
    json.dumps(data)


def test_too_many_bad_ones_stop_before_training(messy: Path, opened: Opened) -> None:
    with pytest.raises(CascadeError, match=r"samples are bad .*at most 50% may be.*half\.jpg"):
        opened(messy)
    with pytest.raises(CascadeError, match="none may be"):
        opened(messy, max_bad=0.9, on_bad="error")


def test_only_the_first_ten_are_named(
    tmp_path: Path, make_folder: Callable[..., Path], opened: Opened
) -> None:
    root = make_folder([(64, 64)] * 30)
    for n in range(15):
        (root / f"{n:04}.png").write_bytes(b"")
    (count,) = opened(root).report.bad
    assert count.count == 15 and len(count.names) == 10


AS_NOBODY = """
import json, os, sys
from pathlib import Path
from cascade_train.data.dataset import open_dataset
from cascade_train.data.readers import folder_source
from cascade_train.data.spec import Dataset, WeightedSource

def found(root, cache):
    source = folder_source(root, True, cache / "index")
    opened = open_dataset(Dataset((WeightedSource(source),)), multiple=8, native_side=64, cache=cache)
    opened.load(opened.draws(0, 0, 1)[0])
    return {count.reason: count.names for count in opened.report.bad}

place = Path(sys.argv[1])
found(place / "open", place / "first")  # all is imported before the libraries' folder may be closed too
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps(found(place / "closed", place / "second")))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="chmod hides no file on Windows")
def test_what_may_not_be_read() -> None:
    """In a process of its own, which becomes nobody where root, who may read everything, runs the tests."""
    with tempfile.TemporaryDirectory() as name:  # another user could not enter tmp_path
        place = Path(name)
        for folder, count in (("open", 1), ("closed", 8), ("closed/locked", 1)):
            (place / folder).mkdir()
            for n in range(count):
                photo(64, 64, n).save(place / folder / f"{n:04}.png")
                (place / folder / f"{n:04}.txt").write_text(f"picture {n}")
        (place / "second").mkdir()
        for path in (place, *place.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o644)
        hidden = [place / "closed" / name for name in ("0001.png", "0002.txt", "locked")]
        for path in hidden:
            path.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(place)], capture_output=True, text=True, timeout=50
        )
        hidden[-1].chmod(0o700)  # so that it can be removed
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "may not be read": ["0001.png", "locked"],
        ".txt may not be read": ["0002.png"],
    }


def test_empty_and_missing_folders_say_what_was_looked_for(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.docx").write_bytes(b"x")
    with pytest.raises(CascadeError, match=r"no picture .*empty.*png.*1 \.docx"):
        opened(tmp_path / "empty")
    with pytest.raises(CascadeError, match="does not exist"):
        opened(tmp_path / "nowhere")
    (tmp_path / "file.png").write_bytes(encoded(photo()))
    with pytest.raises(CascadeError, match="is a file, not a folder"):
        opened(tmp_path / "file.png")


def test_missing_captions_are_counted_and_named(make_folder: Callable[..., Path], opened: Opened) -> None:
    root = make_folder([(64, 64)] * 5)
    (root / "0001.txt").unlink()
    (root / "0003.txt").unlink()
    with pytest.raises(
        CascadeError, match=r"2 of 5 pictures have no caption.*0001\.png, 0003\.png.*fallback"
    ):
        opened(root)


def test_damage_that_only_decoding_finds_is_replaced_and_told(
    make_folder: Callable[..., Path], opened: Opened
) -> None:
    root = make_folder([(64, 64)] * 6)
    data = bytearray((root / "0002.png").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (root / "0002.png").write_bytes(data)
    dataset = opened(root)
    captions = [dataset.load(draw).caption for step in range(6) for draw in dataset.draws(0, step, 1)]
    assert "picture 2" not in captions and len(captions) == 6
    assert dataset.bad_found()[0].names == ("pictures/0002.png",)
    strict = opened(root, on_bad="error")
    with pytest.raises(CascadeError, match=r"0002\.png is bad"):
        for step in range(6):
            strict.load(strict.draws(0, step, 1)[0])


def test_files_that_vanish_while_training_are_replaced_until_too_many_are_gone(
    make_folder: Callable[..., Path], opened: Opened
) -> None:
    root = make_folder([(64, 64)] * 6)
    dataset = opened(root, max_bad=0.4)
    for n in (0, 1):
        (root / f"{n:04}.png").unlink()
    for step in range(6):
        dataset.load(dataset.draws(0, step, 1)[0])
    (root / "0002.png").unlink()
    with pytest.raises(CascadeError, match="more than 40% of the samples are bad"):
        for step in range(12):
            dataset.load(dataset.draws(0, step, 1)[0])


def messy_tar(path: Path) -> None:
    png = encoded(photo(80, 60, 2))
    with tarfile.open(path, "w") as tar:

        def put(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        put("0000.png", png)
        put("0000.txt", b"zero")
        put("0001.txt", b"no partner")
        put("0002.png", b"")
        put("0002.txt", b"empty")
        put("deep/0003.png", png)
        put("deep/0003.txt", "drei 🦊".encode())
        put("0004.json", b'{"caption": "four", "x": NaN}')
        put("0004.png", png)
        put("noending", b"?")
        put("0005.mask.png", png)
        put("0005.png", png)
        put("0005.json", b'{"caption": ["five", "fuenf"]}')
        put("0006.png", png)
        put("0006.txt", b"six")


def open_tar(path: Path, tmp_path: Path, **settings: object) -> OpenDataset:
    from cascade_train.data.dataset import open_dataset
    from cascade_train.data.spec import Dataset, WeightedSource

    source = tar_source(path, tmp_path / "cache" / "index")
    return open_dataset(
        Dataset((WeightedSource(source),), **settings),  # type: ignore[arg-type]
        multiple=8,
        native_side=64,
        cache=tmp_path / "cache",
    )


def test_a_messy_tar(tmp_path: Path) -> None:
    messy_tar(tmp_path / "messy.tar")
    dataset = open_tar(tmp_path / "messy.tar", tmp_path, max_bad=0.9)
    assert reasons(dataset) == {
        "no picture in this sample": ("0001.txt",),
        "zero bytes": ("0002.png",),
        "NaN in json": ("0004.png",),
    }
    assert {("noending", OTHER), ("0005.mask.png", RIVAL)} <= set(dataset.report.unused)
    captions = {dataset.captions(i) for i in range(len(dataset))}
    assert captions == {("zero",), ("drei 🦊",), ("five", "fuenf"), ("six",)}


@pytest.mark.parametrize("keep", [0.35, 0.6, 0.97])
def test_a_tar_cut_in_half_gives_what_is_whole(tmp_path: Path, keep: float) -> None:
    messy_tar(tmp_path / "whole.tar")
    data = (tmp_path / "whole.tar").read_bytes().rstrip(b"\0")
    (tmp_path / "half.tar").write_bytes(data[: int(len(data) * keep)])
    dataset = open_tar(tmp_path / "half.tar", tmp_path, max_bad=1.0)
    assert len(dataset) >= 1
    assert any("cut off" in reason for reason in reasons(dataset)), reasons(dataset)
    for step in range(len(dataset)):
        dataset.load(dataset.draws(0, step, 1)[0])
    assert not dataset.bad_found()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "zero bytes"),
        (b"hello, I am no tar" * 100, "no tar file"),
        (b"\x1f\x8b" + b"x" * 2000, "compressed"),
    ],
)
def test_what_is_no_tar(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "no.tar").write_bytes(data)
    with pytest.raises(CascadeError, match=what):
        open_tar(tmp_path / "no.tar", tmp_path)


def test_a_tar_of_nothing_usable(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "texts.tar", "w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
    with pytest.raises(CascadeError, match="bad"):
        open_tar(tmp_path / "texts.tar", tmp_path, max_bad=1.0)
