"""Tables of metadata (jsonl, csv, tsv, parquet): which row is about which picture, and what it says."""

from __future__ import annotations

import csv
import io
import json
import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade_train.data.entry import WRITTEN, printable, split_ending
from cascade_train.data.names import composed, folded, slash_path
from cascade_train.data.probe import read_text
from cascade_train.data.said import TEXT_LIMIT

NAME_FIELDS = ("file_name", "filename", "file", "path", "image", "image_path", "key")
"""Columns of a metadata table that may name the picture, in order of preference."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SEPARATORS = ",;\t|"
_TOLD = 10
_SHOWN = 12


class TableRows:
    """The rows of a folder's tables by the picture they are about. Several rows of one picture all count."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._folded: dict[str, str] = {}
        self._taken: set[str] = set()

    def read(self, path: Path, prefix: str) -> Iterator[str]:
        """Take in the table at ``path``, whose pictures are named from the folder ``prefix`` on; yields what
        is wrong with it, a short line each."""
        found = nameless = 0
        seen: dict[str, None] = {}
        damaged: list[str] = []
        try:
            for row in table_rows(path, damaged.append):
                if len(seen) < _SHOWN:
                    seen.update(dict.fromkeys(row))
                column = name_column(row)
                if column is None:
                    nameless += 1
                    continue
                found += 1
                self.add(
                    prefix + str(row[column]), {key: value for key, value in row.items() if key != column}
                )
        except UnicodeDecodeError:
            yield "it is neither UTF-8 nor UTF-16"
        except (ValueError, OSError, csv.Error, ImportError, RecursionError) as error:
            yield str(error) or type(error).__name__
        if damaged:
            yield damaged[0] + (f", and {len(damaged) - 1} more lines" if len(damaged) > 1 else "")
        if nameless:
            which = "no column" if not found else f"{nameless} rows in which no column"
            columns = ", ".join(printable(key) for key in list(seen)[:_SHOWN] if key != WRITTEN)
            yield f"{which} names a picture ({', '.join(NAME_FIELDS)}); there are: {columns or 'none'}"

    def add(self, name: str, values: dict[str, Any]) -> None:
        name = composed(slash_path(name))
        self._rows.setdefault(name, []).append(values)
        self._folded.setdefault(folded(name), name)

    def tells(self, name: str) -> bool:
        """Whether a row names the picture ``name`` with its ending."""
        return composed(name) in self._rows or folded(name) in self._folded

    def of(self, name: str, present: Callable[[str], bool]) -> dict[str, Any] | None:
        """What the rows of the picture ``name`` say; None where there is none.

        A row that differs from it in case is its own unless another picture, which is ``present``, has just
        that name.
        """
        whole = composed(name)
        for exact in (whole, split_ending(whole)[0]):
            if exact in self._rows:
                self._taken.add(exact)
                return merged(self._rows[exact])
        for alike in (folded(whole), folded(split_ending(whole)[0])):
            row = self._folded.get(alike)
            if row is not None and not present(row):
                self._taken.add(row)
                return merged(self._rows[row])
        return None

    def unused(self) -> tuple[int, tuple[str, ...]]:
        """How many names there are rows of but no picture, and the first of them."""
        left = [name for name in self._rows if name not in self._taken]
        return len(left), tuple(printable(name) for name in left[:_TOLD])


def name_column(row: Mapping[str, Any]) -> str | None:
    """The column of ``row`` that names its picture, whatever the case it is written in."""
    named = {key.strip().lower(): key for key, value in row.items() if value and key != WRITTEN}
    return next((named[name] for name in NAME_FIELDS if name in named), None)


def merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows of one picture as one: where they differ, a field is the list of all its values in order."""
    if len(rows) == 1:
        return rows[0]
    out: dict[str, Any] = {}
    written: dict[str, Any] = {}
    for column in dict.fromkeys(key for row in rows for key in row if key != WRITTEN):
        out[column] = _together([row.get(column) for row in rows])
        if any(column in row.get(WRITTEN, ()) for row in rows):
            written[column] = _together([row.get(WRITTEN, {}).get(column, row.get(column)) for row in rows])
    return {**out, WRITTEN: written} if written else out


def _together(values: list[Any]) -> Any:
    each = [item for value in values for item in (value if isinstance(value, list) else [value])]
    once = list({json.dumps(item, default=str): item for item in each if item not in (None, "")}.values())
    if len(once) == 1 and not any(isinstance(value, list) for value in values):
        return once[0]
    given = [value for value in values if value is not None]
    return once or (given[0] if given else None)


def table_rows(path: Path, trouble: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a jsonl, csv, tsv or parquet file; ``trouble`` is told of lines that cannot be read.

    Cells of csv and tsv that are numbers become such; what they were written like is kept under `WRITTEN`
    where the number would be written otherwise.

    Raises:
        ValueError: it is damaged (a line too, where there is no ``trouble``).
        ImportError: parquet without pyarrow.
    """
    ending = path.suffix.lower()
    if ending == ".parquet":
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise ImportError("parquet needs the extra 'parquet' (pyarrow)") from error
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):
                for row in batch.to_pylist():
                    yield {key: None if value != value else value for key, value in row.items()}
        return
    text = read_text(path.read_bytes())
    if ending in (".csv", ".tsv"):
        yield from _cells(text, "\t" if ending == ".tsv" else ",")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = _row(line)
            except (ValueError, RecursionError) as error:
                if trouble is None:
                    raise ValueError(f"line {number}: {error}") from error
                trouble(f"line {number}: {error}")
                continue
            if isinstance(value, dict):
                yield value


def _row(line: str) -> Any:
    """A line of a jsonl as JSON; NaN is no value, as in the other tables."""
    if len(line) > TEXT_LIMIT:
        raise ValueError("longer than 1 MiB")
    value = json.loads(line, parse_constant=lambda _: None)
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair, which is no text") from None
    return value


def _cells(text: str, usual: str) -> Iterator[dict[str, Any]]:
    first, _, rest = text.partition("\n")
    told = re.fullmatch(r"sep=(.)\r?", first, re.IGNORECASE)  # what Excel writes
    if told:
        text, usual = rest, told[1]
    separator = usual if told else _separator(text, usual)
    for row in csv.DictReader(io.StringIO(text, newline=""), delimiter=separator):
        values: dict[str, Any] = {}
        written: dict[str, str] = {}
        for key, cell in row.items():
            if not isinstance(key, str):
                continue
            key = key.strip()
            values[key] = cell if key.lower() in NAME_FIELDS else _number(cell)
            if isinstance(cell, str) and not isinstance(values[key], str) and str(values[key]) != cell:
                written[key] = cell
        yield {**values, WRITTEN: written} if written else values


def _separator(text: str, usual: str) -> str:
    """What stands between the columns: that with which the header names a column for pictures."""
    for separator in (usual, *_SEPARATORS):
        for header in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if name_column(dict.fromkeys(header, True)) is not None:
                return separator
            break
    first = text.partition("\n")[0]
    return max((usual, *_SEPARATORS), key=first.count)


def _number(text: Any) -> Any:
    """A csv cell as a number where it is one, None where it says that there is none."""
    if not isinstance(text, str):
        return text
    cell = text.strip()
    if cell.lower() == "nan":
        return None
    if not _NUMBER.fullmatch(cell) or len(cell) > 300:
        return text
    value = int(cell) if cell.lstrip("+-").isdigit() else float(cell)
    return value if math.isfinite(value) else text


def beside_table(name: str) -> str:
    """The folder, with a slash, that names in the table ``name`` start from."""
    folder = posixpath.dirname(name)
    return folder + "/" if folder else ""
