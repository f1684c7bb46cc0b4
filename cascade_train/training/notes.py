"""What a person has to know of a run's samples, kept with it: it holds as well when nothing is trained."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from cascade_train.files import write_json

NOTES = "notes.json"


def keep(run_folder: Path, report: Any) -> None:
    """Write the warnings and bad samples of a dataset's ``report``, if there are any."""
    lines = list(report.warnings)
    if report.bad:
        lines.append("bad samples skipped: " + "; ".join(count.line() for count in report.bad))
    if lines and read(run_folder) != lines:
        with suppress(OSError):  # a full disk is told by what matters more
            write_json(run_folder / NOTES, lines)


def read(run_folder: Path) -> list[str]:
    """The lines that `keep` wrote; none where there are none."""
    try:
        lines = json.loads((run_folder / NOTES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(line) for line in lines] if isinstance(lines, list) else []
