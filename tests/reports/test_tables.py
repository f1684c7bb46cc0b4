"""Reports of tables of metadata: several rows, numbers, separators, encodings, names of columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cascade_train.data.dataset import open_dataset
from cascade_train.data.filters.expression import expression_filters
from cascade_train.data.readers import folder_source
from cascade_train.data.spec import CaptionSpec, Dataset, WeightedSource
from cascade_train.errors import CascadeError

from .conftest import Inspect, picture, put_folder, put_tar, square


def folder(tmp_path: Path, count: int, **tables: bytes) -> Path:
    """Pictures 0.png, 1.png, … with tables beside them, ``metadata_csv`` for ``metadata.csv``."""
    files = [(f"{k}.png", picture(mark=5 * k)) for k in range(count)]
    return put_folder(
        tmp_path / "set", [*files, *((name.replace("_", "."), data) for name, data in tables.items())]
    )


def test_several_rows(tmp_path: Path, inspect: Inspect) -> None:
    rows = [{"file_name": f"{k}.png", "caption": f"caption {c} of {k}"} for k in range(3) for c in range(5)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    told = inspect(folder(tmp_path, 3, metadata_jsonl=lines))
    assert told.samples == {str(k): square(*(f"caption {c} of {k}" for c in range(5))) for k in range(3)}


def test_several_rows_of_a_csv_with_numbers(tmp_path: Path, inspect: Inspect) -> None:
    rows = b"file_name,caption\n0.png,007\n0.png,a spy\n0.png,8\n0.png,a spy\n"
    assert inspect(folder(tmp_path, 1, metadata_csv=rows)).samples == {"0": square("007", "a spy", "8")}


def test_numbers_as_captions(tmp_path: Path, inspect: Inspect) -> None:
    texts = ["1984", "007", "1e5", "infinity", "nan", "3.10", "1_000"]
    rows = "file_name,caption\n" + "".join(f"{k}.png,{text}\n" for k, text in enumerate(texts))
    told = inspect(folder(tmp_path, len(texts), metadata_csv=rows.encode()))
    assert told.samples == {str(k): square(text) for k, text in enumerate(texts)}


def test_numbers_as_captions_in_json(tmp_path: Path, inspect: Inspect) -> None:
    tar = put_tar(tmp_path / "n.tar", [("0.png", picture()), ("0.json", b'{"caption": 1984}')])
    assert inspect(tar).samples == {"0": square("1984")}


def test_numbers_are_still_numbers_for_filters(tmp_path: Path, inspect: Inspect) -> None:
    rows = b"file_name,caption,score\n0.png,a,007\n1.png,b,7.50\n2.png,c,1e1\n"
    root = folder(tmp_path, 3, metadata_csv=rows)
    assert set(inspect(root, "--filter", "score > 7").samples) == {"1", "2"}


def test_a_text_file_beside_may_be_filtered_by(tmp_path: Path) -> None:
    files = [(f"{k}.png", picture(mark=5 * k)) for k in range(2)]
    files += [("0.txt", b"zero"), ("1.txt", b"one"), ("0.tags", b"cat, dog"), ("1.tags", b"dog")]
    source = folder_source(put_folder(tmp_path / "set", files), True, tmp_path / "index")
    dataset = Dataset((WeightedSource(source),), filters=expression_filters("tags contains 'cat'"))
    opened = open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path)
    assert [opened.captions(n) for n in range(len(opened))] == [("zero",)]


@pytest.mark.parametrize("separator", [";", "\t", "|", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_separators_and_encodings(tmp_path: Path, inspect: Inspect, separator: str, encoding: str) -> None:
    rows = f"file_name{separator}caption\r\n0.png{separator}a cat\r\n1.png{separator}ein Käse\r\n"
    told = inspect(folder(tmp_path, 2, metadata_csv=rows.encode(encoding)))
    assert told.samples == {"0": square("a cat"), "1": square("ein Käse")}


def test_what_excel_writes(tmp_path: Path, inspect: Inspect) -> None:
    rows = "sep=;\r\nFile_Name;Caption\r\n0.png;a cat, sitting\r\n"
    root = folder(tmp_path, 1, metadata_csv=rows.encode("utf-8-sig"))
    told = inspect(root, "--captions", "metadata", "--field", "Caption")
    assert told.samples == {"0": square("a cat, sitting")}


def test_tab_separated(tmp_path: Path, inspect: Inspect) -> None:
    told = inspect(folder(tmp_path, 1, captions_tsv=b"image\tcaption\n.\\0.png\ta cat\n"))
    assert told.samples == {"0": square("a cat")}


def test_column_text(tmp_path: Path, inspect: Inspect) -> None:
    files = [(f"train/{k}.png", picture(mark=5 * k)) for k in range(2)]
    rows = [json.dumps({"file_name": f"train/{k}.png", "text": f"hf caption {k}"}) for k in range(2)]
    root = put_folder(tmp_path / "set", [*files, ("metadata.jsonl", "\n".join(rows).encode())])
    assert inspect(root).samples == {f"train/{k}": square(f"hf caption {k}") for k in range(2)}
    tar = put_tar(tmp_path / "hub.tar", [("0.png", picture()), ("0.json", b'{"text": "in a tar"}')])
    assert inspect(tar).samples == {"0": square("in a tar")}


def test_a_table_that_names_no_picture_tells_its_columns(tmp_path: Path, inspect: Inspect) -> None:
    root = folder(tmp_path, 1, metadata_csv=b"bild;beschriftung\n0.png;eine Katze\n", zero_txt=b"")
    told = inspect(root)
    assert not told.samples and told.unused["set/0.png"] == "without caption"
    (line,) = [text for text in told.summary["warnings"] if "metadata.csv" in text]
    assert "bild, beschriftung" in line and "file_name" in line


def test_a_missing_caption_tells_the_columns(tmp_path: Path) -> None:
    root = folder(tmp_path, 1, metadata_csv=b"file_name,beschriftung\n0.png,eine Katze\n")
    source = folder_source(root, True, tmp_path / "index")
    with pytest.raises(CascadeError, match="their metadata has: beschriftung"):
        open_dataset(Dataset((WeightedSource(source),)), multiple=8, native_side=64, cache=tmp_path)
    spec = CaptionSpec(field="beschriftung")
    opened = open_dataset(
        Dataset((WeightedSource(source),), captions=spec), multiple=8, native_side=64, cache=tmp_path
    )
    assert opened.captions(0) == ("eine Katze",)


def test_rows_of_pictures_that_are_not_there_are_told(tmp_path: Path, inspect: Inspect) -> None:
    rows = b"file_name,caption\n0.png,a\nimages/1.png,b\n"
    told = inspect(folder(tmp_path, 1, metadata_csv=rows))
    assert told.samples == {"0": square("a")}
    assert any("images/1.png" in text for text in told.summary["warnings"])


def test_a_bad_line_costs_that_line_alone(tmp_path: Path, inspect: Inspect) -> None:
    rows = (
        b'{"file_name": "0.png", "caption": "a", "score": NaN}\n{oops\n'
        b'{"file_name": "1.png", "caption": "\\ud800"}\n{"file_name": "2.png", "caption": "c"}\n'
    )
    told = inspect(folder(tmp_path, 3, metadata_jsonl=rows))
    assert told.samples == {"0": square("a"), "2": square("c")}
    (line,) = [text for text in told.summary["warnings"] if "metadata.jsonl" in text]
    assert "line 2" in line and "1 more" in line
