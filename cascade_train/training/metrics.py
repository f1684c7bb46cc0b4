"""``metrics.jsonl``: one line a step, appended as training goes.

A line holds ``step`` (from 1), ``branch`` (which tells apart different ways through one run), ``loss``
(unweighted mean), ``weighted``, ``lr``, ``grad_norm``, ``seconds``, and what else an objective tells.
Steps that were trained again after a crash appear twice; the last line counts. A line is of format 1 where it
does not say its ``format``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from cascade_train.digest import digest
from cascade_train.files import telling
from cascade_train.migrations import current, forward
from cascade_train.training.spec import Position

METRICS = "metrics.jsonl"
_NUMBERS = ("loss", "weighted", "lr", "grad_norm", "seconds")


@dataclass(frozen=True)
class Metrics:
    """The rows of every step up to a position, in order; the numbers of the file's damaged lines."""

    rows: tuple[Mapping[str, Any], ...]
    damaged: tuple[int, ...] = ()

    @property
    def last_loss(self) -> float:
        """The mean loss of the last 50 steps, or of as many as there are; NaN without any."""
        if not self.rows:
            return float("nan")
        tail = self.rows[-50:]
        return float(sum(row["loss"] for row in tail) / len(tail))


def branch_of(position: Position) -> str:
    """The name that all steps of ``position``'s last block share, however long that block becomes."""
    if not position.blocks:
        return digest(position.spec.digest, 12)
    last = replace(position.blocks[-1], steps=0)
    return digest((position.spec.digest, (*position.blocks[:-1], last)), 12)


class MetricsFile:
    """Appends rows to a run's ``metrics.jsonl``; a line cut off by a crash is removed first."""

    def __init__(self, run_folder: Path, branch: str) -> None:
        self.branch = branch
        self._format = {"format": current("metrics")} if current("metrics") > 1 else {}
        path = run_folder / METRICS
        with telling(path):
            path.touch()
            with path.open("rb+") as handle:
                handle.seek(0, 2)
                size = handle.tell()
                while size > 0:
                    handle.seek(size - 1)
                    if handle.read(1) == b"\n":
                        break
                    size -= 1
                handle.truncate(size)
            self._file: IO[str] = path.open("a", encoding="utf-8", newline="\n")

    def append(self, row: Mapping[str, Any]) -> None:
        line = json.dumps({**self._format, "branch": self.branch, **row}) + "\n"
        with telling(Path(self._file.name)):
            self._file.write(line)

    def flush(self) -> None:
        """Hand what was appended to the disk; CascadeError when it is full."""
        with telling(Path(self._file.name)):
            self._file.flush()

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been told by `flush`
            self._file.close()


def read_metrics(position: Position) -> Metrics:
    """The rows of the steps that lead to ``position``, as far as they have been trained."""
    path = Path(position.folder) / METRICS
    if not path.is_file():
        return Metrics(())
    wanted: dict[int, str] = {}
    done = 0
    for index, block in enumerate(position.blocks):
        branch = branch_of(replace(position, blocks=position.blocks[: index + 1]))
        wanted.update(dict.fromkeys(range(done + 1, done + block.steps + 1), branch))
        done += block.steps
    rows: dict[int, Mapping[str, Any]] = {}
    damaged: list[int] = []
    for number, row in numbered_rows(path):
        if row is None:
            damaged.append(number)
        elif wanted.get(row["step"]) == row["branch"]:
            rows[row["step"]] = row
    return Metrics(tuple(rows[step] for step in sorted(rows)), tuple(damaged))


def numbered_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each line's number, from 1, and its row; None for a line that is damaged. The one that is being written
    right now is left out.

    Raises:
        CascadeError: a later version has written a line.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if line.endswith("\n"):
                yield number, row_of(line, str(path))


def some_lines(numbers: Sequence[int]) -> str:
    """The first of the numbers of damaged lines: ``1, 2, 3, 4, 5, …``."""
    return ", ".join(str(number) for number in numbers[:5]) + (", …" if len(numbers) > 5 else "")


def row_of(line: str, where: str) -> dict[str, Any] | None:
    """The row that ``line`` holds; None where it is damaged. Raises as `numbered_rows` does."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    row = forward("metrics", {"format": 1, **row}, where)
    row.pop("format")
    whole = isinstance(row.get("step"), int) and isinstance(row.get("branch"), str)
    numbers = all(isinstance(row.get(name), (int, float)) for name in _NUMBERS)
    return row if whole and numbers else None
