"""Checkpoint folders: one a position, written beside and renamed.

``checkpoints/<step>-<position>/`` holds ``trained.safetensors`` and ``trained.json`` (what the run has made,
see `training.trained`), ``state.safetensors`` (everything a resume needs: parameters, buffers, EMA, optimizer
moments, extra state) and ``checkpoint.json`` (step, position, kept for what). Its presence means it is whole.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from cascade_train.digest import canonical
from cascade_train.errors import CascadeError
from cascade_train.files import write_json
from cascade_train.training.spec import Position
from cascade_train.training.trained import TRAINED_JSON, TRAINED_TENSORS

STATE = "state.safetensors"
INFO = "checkpoint.json"

Kind = Literal["block end", "timed"]
"""``block end``: a position that a graph named. ``timed``: saved on the way, or when something stopped it."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint found on disk."""

    folder: Path
    step: int
    tag: str
    kind: Kind


def checkpoints_folder(position: Position) -> Path:
    return Path(position.folder) / "checkpoints"


def tag_of(position: Position) -> str:
    """The part of a checkpoint's name that tells branches apart."""
    return position.name[:12]


def folder_of(position: Position) -> Path:
    """Where the checkpoint of ``position`` lies, or would."""
    return checkpoints_folder(position) / f"{position.step:08d}-{tag_of(position)}"


def truncated(position: Position, step: int) -> Position:
    """The position ``step`` steps along the way to ``position`` (0 ≤ step ≤ position.step)."""
    blocks, left = [], step
    for block in position.blocks:
        if left <= 0:
            break
        blocks.append(replace(block, steps=min(block.steps, left)))
        left -= block.steps
    return replace(position, blocks=tuple(blocks))


def listed(run_folder: Path) -> list[Saved]:
    """Every whole checkpoint of a run, by step; folders with other names are left alone."""
    found = []
    root = run_folder / "checkpoints"
    for folder in root.iterdir() if root.is_dir() else ():
        step, _, tag = folder.name.partition("-")
        if step.isdigit() and tag and (folder / INFO).is_file():
            kind = json.loads((folder / INFO).read_text(encoding="utf-8")).get("kind", "block end")
            found.append(Saved(folder, int(step), tag, kind))
    return sorted(found, key=lambda saved: (saved.step, saved.tag))


def on_the_way(position: Position) -> Iterator[Saved]:
    """The checkpoints of ``position`` and of the positions before it, newest first."""
    for saved in reversed(listed(Path(position.folder))):
        if saved.step <= position.step and saved.tag == tag_of(truncated(position, saved.step)):
            yield saved


def exists(position: Position) -> bool:
    return (folder_of(position) / INFO).is_file()


def promote(position: Position) -> None:
    """Mark the checkpoint of ``position`` as one that a graph names."""
    info_file = folder_of(position) / INFO
    info = json.loads(info_file.read_text(encoding="utf-8"))
    if info.get("kind") != "block end":
        write_json(info_file, {**info, "kind": "block end"})


def write(position: Position, kind: Kind, state: Mapping[str, Tensor],
          trained: tuple[str, Mapping[str, Tensor], Mapping[str, Any]], seconds: float) -> Path:
    """Write the checkpoint of ``position``; it appears whole or not at all.

    Raises:
        CascadeError: the disk is full or cannot be written; checkpoints from before are untouched.
    """
    folder = folder_of(position)
    beside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        beside.mkdir(parents=True)
        _save(beside / STATE, state)
        result_kind, tensors, settings = trained
        _save(beside / TRAINED_TENSORS, tensors)
        _json(beside / TRAINED_JSON, {"format": 1, "kind": result_kind, "settings": settings})
        _json(beside / INFO, {
            "format": 1, "kind": kind, "step": position.step, "position": position.name,
            "blocks": canonical(position.blocks), "training_seconds": round(seconds, 1),
            "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        })
        if folder.exists():
            shutil.rmtree(folder)
        beside.replace(folder)
        _sync_folder(folder.parent)
    except Exception as error:
        # safetensors reports a full disk as its own error type, so the cause is told by what it says
        raise CascadeError(
            f"the checkpoint at step {position.step} could not be written: {error}", where=str(folder),
            fix="Free space or choose another output folder and run again; what was saved before is whole",
        ) from error
    finally:
        if beside.exists():
            shutil.rmtree(beside, ignore_errors=True)
    return folder


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state tensors (CPU) and ``checkpoint.json`` of a checkpoint folder."""
    from safetensors.torch import load_file

    return load_file(folder / STATE), json.loads((folder / INFO).read_text(encoding="utf-8"))


def sweep(run_folder: Path) -> None:
    """Remove what a crash left half-written. Only the holder of the run's lock may call this."""
    root = run_folder / "checkpoints"
    for folder in root.glob(".*.part") if root.is_dir() else ():
        shutil.rmtree(folder, ignore_errors=True)


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, path)
    path.chmod(0o644)  # the library makes its files private; a run folder may be shared
    _sync(path)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb+") as handle:
        os.fsync(handle.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and a rename needs no such care
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
