"""What a person has to know of a run's samples, kept with it: it holds as well when nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cascade_train.files import write_json
from cascade_train.migrations import read_forward, stamped

NOTES = "notes.json"


def keep_notes(run_folder: Path, report: Any, remarks: Sequence[str] = ()) -> None:
    """Write the warnings and bad samples of a dataset's ``report``, and ``remarks``, if there are any."""
    lines = [*report.warnings, *remarks]
    if report.bad:
        lines.append("bad samples skipped: " + "; ".join(count.line() for count in report.bad))
    if lines and read_notes(run_folder) != lines:
        with suppress(OSError):  # a full disk is told by what matters more
            write_json(run_folder / NOTES, stamped("notes", {"lines": lines}))


def read_notes(run_folder: Path) -> list[str]:
    """The lines that `keep_notes` wrote; none where there are none."""
    try:
        return [str(line) for line in read_forward(run_folder / NOTES, "notes")["lines"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
