"""Run folders looked at from outside, without the graph that made them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.migrations import read_forward
from cascade_train.training import checkpoints, lock, retention
from cascade_train.training.metrics import METRICS, row_of

DESCRIBED = "run.json"
_TAIL = 16_384


def run_folders(root: Path) -> list[Path]:
    """Every run under ``root``, the one that was worked on last first."""
    found = [folder for folder in root.iterdir() if _is_run(folder)] if root.is_dir() else []
    return sorted(found, key=_touched, reverse=True)


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (DESCRIBED, METRICS, "checkpoints"))


def find(root: Path, name: str) -> Path:
    """The run whose name begins with ``name``, or whose label it is.

    Raises:
        CascadeError: none is, or several are.
    """
    folders = run_folders(root)
    hits = [folder for folder in folders if folder.name.startswith(name)]
    hits = hits or [folder for folder in folders if label_of(folder) == name]
    if len(hits) == 1:
        return hits[0]
    if hits:
        names = ", ".join(folder.name[:12] for folder in hits[:5])
        raise CascadeError(f"'{name}' is {len(hits)} runs: {names}", fix="Write more of the name")
    raise CascadeError(f"there is no run '{name}'", where=str(root), fix="See: cascade-train runs ls")


def described(folder: Path) -> dict[str, Any]:
    """The run's spec as ``run.json`` holds it; empty where that cannot be read."""
    spec = _read(folder).get("spec")
    return spec if isinstance(spec, dict) else {}


def run_summary(folder: Path) -> dict[str, Any]:
    """What a person wants to know of a run: label, target, last step and loss, checkpoints, bytes, holder.

    What cannot be read is missing in it alone; ``problems`` has a line for each.

    Raises:
        CascadeError: a later version has written it.
    """
    problems: list[str] = []
    saved = checkpoints.listed(folder, problems.append)
    last = _last_row(folder)
    about, target = _read(folder), described(folder).get("target")
    if not about:
        problems.append(f"{DESCRIBED} cannot be read: label and settings of this run are not known")
    if not isinstance(target, dict):
        target = {}
    kind = target.get("part") or {"LoRATarget": "lora", None: "?"}.get(target.get("is"), "stage_c")
    return {
        "name": folder.name,
        "label": str(about.get("label", "")),
        "folder": str(folder),
        "target": kind,
        "step": max((each.step for each in saved), default=0),
        "loss": last.get("loss"),
        "bytes": _bytes(folder.rglob("*")),
        "trained_by": lock.holder(folder),
        "checkpoints": [_about(each) for each in saved],
        "problems": problems,
    }


def prune_run(folder: Path, keep_steps: Iterable[int], dry_run: bool = False) -> list[dict[str, Any]]:
    """Delete what `retention.prunable` allows, under the run's lock; what went, or would."""
    with lock.locked(folder):
        gone = retention.prunable(folder, keep_steps)
        told = [_about(each) for each in gone]
        if not dry_run:
            retention.delete(gone)
    return told


def _about(saved: checkpoints.Saved) -> dict[str, Any]:
    blocks = [{"steps": block.steps, "learning_rate": block.learning_rate} for block in saved.blocks]
    return {
        "name": saved.folder.name,
        "step": saved.step,
        "kind": saved.kind,
        "blocks": blocks,
        "bytes": _bytes(saved.folder.glob("*")),
    }


def _bytes(paths: Iterable[Path]) -> int:
    """The size of ``paths`` together, as far as they are still there."""
    total = 0
    for path in paths:
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _read(folder: Path) -> dict[str, Any]:
    try:
        return read_forward(folder / DESCRIBED, "run")
    except (OSError, ValueError):
        return {}


def label_of(folder: Path) -> str | None:
    """The run's label; None where a later version has written it."""
    try:
        return _read(folder).get("label")
    except CascadeError:
        return None


def _last_row(folder: Path) -> dict[str, Any]:
    path = folder / METRICS
    if not path.is_file():
        return {}
    with path.open("rb") as lines:
        lines.seek(max(0, path.stat().st_size - _TAIL))
        tail = lines.read().decode("utf-8", errors="replace").splitlines()
    for line in reversed(tail):
        row = row_of(line, str(path))
        if row is not None:
            return row
    return {}


def _touched(folder: Path) -> float:
    return max(
        (path.stat().st_mtime for path in (folder / METRICS, folder / DESCRIBED) if path.exists()),
        default=0.0,
    )
