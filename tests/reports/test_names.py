"""Reports of names of files: dots, several pictures of one name, accents, case, folders of network disks."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from cascade_train.errors import CascadeError

from .conftest import Files, Inspect, picture, put_folder, put_tar, square

Lay = Callable[[Files], str]


def test_dots_in_names(lay: Lay, inspect: Inspect) -> None:
    names = ["22.05", "22.06", "22.07", "track 2.0 (clean)", "track 2.1 (live)"]
    files = []
    for number, name in enumerate(names):
        files += [(f"{name}.png", picture(mark=3 * number)), (f"{name}.txt", f"caption of {name}".encode())]
    told = inspect(lay(files))
    assert told.samples == {name: square(f"caption of {name}") for name in names}
    assert not told.unused


def test_dots_in_folders_written_on_windows(tmp_path: Path, inspect: Inspect) -> None:
    files = [
        (f"v{number}.0\\{name}", data)
        for number in range(2)
        for name, data in (("0.png", picture(mark=9 * number)), ("0.txt", b"one"), ("notes", b"?"))
    ]
    told = inspect(put_tar(tmp_path / "w.tar", files))
    assert told.samples == {"v0.0/0": square("one"), "v1.0/0": square("one")}
    assert set(told.unused) == {"v0.0/notes", "v1.0/notes"}


def test_dotted_metadata(lay: Lay, inspect: Inspect) -> None:
    files = [
        ("a.v1.png", picture()),
        ("a.v1.json", b'{"caption": "of the first"}'),
        ("a.v2.png", picture(mark=5)),
        ("a.v2.wd.txt", b"tags"),
        ("a.v2.txt", b"of the second"),
    ]
    assert inspect(lay(files)).samples == {"a.v1": square("of the first"), "a.v2": square("of the second")}


def test_what_is_left_over_is_counted_and_named(lay: Lay, inspect: Inspect) -> None:
    files = [
        ("0.png", picture()),
        ("0.txt", b"zero"),
        ("0.cls", b"7"),
        ("1.jxl", b"no picture here"),
        ("LICENSE", b"free"),
        (".hidden.png", picture()),
    ]
    told = inspect(lay(files))
    assert told.samples == {"0": square("zero")}
    assert set(told.unused) == {"0.cls", "1.jxl", "LICENSE", ".hidden.png"}
    (line,) = [text for text in told.summary["warnings"] if "left alone" in text]
    assert "1 .cls, 1 .jxl, 1 without ending" in line and "1.jxl" in line


def test_photo_and_mask(lay: Lay, inspect: Inspect) -> None:
    files = []
    for k in range(4):
        files += [
            (f"{k:04}.jpg", picture(mark=k, kind="JPEG")),
            (f"{k:04}.png", picture(64, 64)),
            (f"{k:04}.txt", b"an orange square"),
        ]
    where = lay(files)
    told = inspect(where)
    assert told.samples == {f"{k:04}": square("an orange square") for k in range(4)}
    assert set(told.unused) == {f"{k:04}.png" for k in range(4)}
    assert any("4 pictures in" in text and "0000.png" in text for text in told.summary["warnings"])
    masks = inspect(where, "--ending", ".PNG")
    assert masks.samples == {f"{k:04}": (64, 64, ["an orange square"]) for k in range(4)}
    assert set(masks.unused) == {f"{k:04}.jpg" for k in range(4)}


@pytest.mark.parametrize("first", ["0.mask.png", "0.png"])
def test_a_picture_that_accompanies_another(lay: Lay, inspect: Inspect, first: str) -> None:
    files = [("0.mask.png", picture(64, 64)), ("0.png", picture()), ("0.txt", b"zero")]
    where = lay(sorted(files, key=lambda item: item[0] != first))
    assert inspect(where).samples == {"0": square("zero")}
    assert inspect(where).unused == {"0.mask.png": "another picture of the same name is used"}
    assert inspect(where, "--ending", "mask.png").samples == {"0.mask": (64, 64, ["zero"])}


def test_pictures_of_one_name_that_are_told_apart(tmp_path: Path, inspect: Inspect) -> None:
    root = put_folder(
        tmp_path / "set",
        [
            ("a.jpg", picture(kind="JPEG")),
            ("a.png", picture(64, 64)),
            ("b.jpg", picture(kind="JPEG")),
            ("b.png", picture(64, 64)),
            ("b.jpg.txt", b"photo"),
            ("b.png.txt", b"drawing"),
            ("metadata.csv", b"file_name,caption\na.jpg,one\na.png,two\n"),
        ],
    )
    with_rows = [(line["width"], line["captions"]) for line in listed(inspect, root)]
    assert with_rows == [(96, ["one"]), (64, ["two"]), (96, ["photo"]), (64, ["drawing"])]


def listed(inspect: Inspect, root: Path) -> list[dict]:
    from cascade_train.data.dataset import open_dataset
    from cascade_train.data.listing import listed as samples
    from cascade_train.data.readers import folder_source
    from cascade_train.data.spec import Dataset, WeightedSource

    source = folder_source(root, True, root.parent / "index")
    opened = open_dataset(
        Dataset((WeightedSource(source),)), multiple=8, native_side=64, cache=root.parent / "c"
    )
    return [sample.data() for sample in samples(opened)]


def test_composed_and_decomposed(lay: Lay, inspect: Inspect) -> None:
    words = ["café", "über", "naïve", "한글"]
    files = []
    for k, word in enumerate(words):
        files += [
            (unicodedata.normalize("NFD", word) + ".png", picture(mark=5 * k)),
            (unicodedata.normalize("NFC", word) + ".txt", f"cap of {k}".encode()),
        ]
    told = inspect(lay(files))
    assert told.samples == {word: square(f"cap of {k}") for k, word in enumerate(words)}


def test_composed_and_decomposed_in_a_table(tmp_path: Path, inspect: Inspect) -> None:
    rows = "file_name,caption\nCafé.png,one\nüber,two\n"
    root = put_folder(
        tmp_path / "set",
        [
            (unicodedata.normalize("NFD", "café") + ".PNG", picture()),
            (unicodedata.normalize("NFD", "Über") + ".png", picture(mark=5)),
            ("metadata.csv", rows.encode()),
        ],
    )
    assert inspect(root).samples == {"café": square("one"), "Über": square("two")}


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the system folds case itself")
def test_case_of_names(lay: Lay, inspect: Inspect) -> None:
    files = []
    for k in range(3):
        files += [(f"Cat{k}.PNG", picture(mark=5 * k)), (f"cat{k}.txt", f"cat {k}".encode())]
    files += [("DOG.png", picture()), ("dog.png", picture(64, 64)), ("dog.txt", b"a"), ("DOG.txt", b"b")]
    told = inspect(lay(files))
    assert told.samples == {
        **{f"Cat{k}": square(f"cat {k}") for k in range(3)},
        "DOG": square("b"),
        "dog": (64, 64, ["a"]),
    }


def test_network_disk(lay: Lay, inspect: Inspect) -> None:
    files = []
    for k in range(4):
        files += [(f"a{k}.jpg", picture(mark=7 * k, kind="JPEG")), (f"a{k}.txt", f"cap {k}".encode())]
    files += [
        (f"{folder}/a0.jpg", picture(64, 64, kind="JPEG"))
        for folder in ("@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX")
    ]
    told = inspect(lay(files))
    assert told.samples == {f"a{k}": square(f"cap {k}") for k in range(4)}
    assert {name.partition("/")[0] for name in told.unused} == {
        *("@eaDir", "#recycle", "$RECYCLE.BIN", "__MACOSX")
    }


def test_windows_paths(tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [("0.png", picture()), ("0.txt", b"zero")]
    put_folder(tmp_path / "sets" / "crescent", files)
    (tmp_path / "sets" / "tars").mkdir()
    for k in range(2):
        put_tar(tmp_path / "sets" / "tars" / f"{k}.tar", [(f"{k}.png", picture()), (f"{k}.txt", b"tar")])
    monkeypatch.chdir(tmp_path)
    assert inspect("sets\\crescent").samples == {"0": square("zero")}
    for text in ("sets\\tars", "sets\\tars\\{0..1}.tar", "sets\\tars\\*.tar"):
        assert inspect(text).samples == {"0": square("tar"), "1": square("tar")}, text


def test_windows_paths_in_workflows(tmp_path: Path) -> None:
    from cascade_train.data.sources import folder_dataset, tars_dataset
    from cascade_train.graph.core.load import located
    from cascade_train.graph.core.save import next_name
    from cascade_train.host.headless import HeadlessHost, headless_folders

    root = put_folder(tmp_path / "in" / "sets" / "crescent", [("0.png", picture()), ("0.txt", b"zero")])
    put_tar(tmp_path / "in" / "sets" / "0.tar", [("0.png", picture()), ("0.txt", b"zero")])
    (tmp_path / "in" / "list.yml").write_text("- sets\\0.tar\n")
    host = HeadlessHost(headless_folders(tmp_path / "out", tmp_path / "in"), "cpu")
    slashed = folder_dataset("sets/crescent", recursive=True, host=host)
    assert folder_dataset("sets\\crescent", recursive=True, host=host).digest == slashed.digest
    assert folder_dataset("bundled\\crescent", recursive=True, host=host).digest
    one = tars_dataset("sets/0.tar", shuffle=1, host=host).digest
    for text in ("sets\\0.tar", "file:sets\\0.tar", "list.yml", ".\\sets\\*.tar"):
        assert one == tars_dataset(text, shuffle=1, host=host).digest, text
    assert located(host, "sets\\crescent\\0.png") == (root / "0.png").resolve()
    folder, stem, _, _ = next_name(tmp_path / "out", "grids\\cat", 64, 64)
    assert (folder, stem) == (tmp_path / "out" / "grids", "cat")
    for outside in ("..\\out", "sets\\..\\..\\out"):
        (tmp_path / "out").mkdir(exist_ok=True)
        with pytest.raises(CascadeError):
            folder_dataset(outside + "side", recursive=True, host=host)


def test_what_lies_beside_tars_is_named(tmp_path: Path, inspect: Inspect) -> None:
    put_tar(tmp_path / "0.tar", [("0.png", picture()), ("0.txt", b"zero")])
    (tmp_path / "README.md").write_text("about it")
    told = inspect(tmp_path)
    assert told.samples == {"0": square("zero")} and "README.md" in told.unused


def test_the_list_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cascade_train.cli import main

    root = put_folder(
        tmp_path / "set",
        [
            ("a.png", picture(120, 96)),
            ("a.json", b'{"caption": ["one", "two"]}'),
            ("b.png", b""),
            ("c.md", b""),
        ],
    )
    words = ["dataset", "inspect", str(root), "--list", "--nano", "--output-dir", str(tmp_path / "out")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "set/a  120×96  bucket 64×56  one | two"
    assert {"not used: set/b.png (zero bytes)"} < set(lines)
    assert any(line.startswith("not used: c.md") for line in lines)
