"""Checkpoint folders: one a position, written beside and renamed.

``checkpoints/<step>-<position>/`` holds ``trained.safetensors`` and ``trained.json`` (what the run has made,
see `models.trained`), ``state.safetensors`` (everything a resume needs: parameters, buffers, EMA, optimizer
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
from typing import TYPE_CHECKING, Any, Literal

from cascade_train.digest import canonical
from cascade_train.errors import CascadeError
from cascade_train.files import shared, write_json
from cascade_train.migrations import current, forward, read_forward, stamped
from cascade_train.models.trained import TRAINED_JSON, TRAINED_TENSORS, TrainedState
from cascade_train.models.weights import read_tensors
from cascade_train.training.spec import Block, Position

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.safetensors"
INFO = "checkpoint.json"

Reason = Literal["block end", "timed"]
"""``block end``: a position that a graph named. ``timed``: saved on the way, or when something stopped it."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint found on disk."""

    folder: Path
    step: int
    tag: str
    kind: Reason
    blocks: tuple[Block, ...] = ()
    """The way that led here, for looking at a folder without the graph that made it."""


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
    return replace(position, blocks=cut(position.blocks, step))


def cut(blocks: tuple[Block, ...], step: int) -> tuple[Block, ...]:
    """The part of the way ``blocks`` that leads to ``step``."""
    kept, left = [], step
    for block in blocks:
        if left <= 0:
            break
        kept.append(replace(block, steps=min(block.steps, left)))
        left -= block.steps
    return tuple(kept)


def listed(run_folder: Path) -> list[Saved]:
    """Every whole checkpoint of a run, by step; folders with other names are left alone."""
    found = []
    root = run_folder / "checkpoints"
    for folder in root.iterdir() if root.is_dir() else ():
        step, _, tag = folder.name.partition("-")
        if step.isdigit() and tag and (folder / INFO).is_file():
            info = read_forward(folder / INFO, "checkpoint")
            blocks = tuple(Block(each["steps"], each.get("learning_rate")) for each in info["blocks"])
            found.append(Saved(folder, int(step), tag, info["kind"], blocks))
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
    info = read_forward(info_file, "checkpoint")
    if info.get("kind") != "block end":
        write_json(info_file, {**info, "kind": "block end"})


def write_checkpoint(
    position: Position,
    kind: Reason,
    state: Mapping[str, Tensor],
    trained: TrainedState,
    seconds: float,
) -> Path:
    """Write the checkpoint of ``position``; it appears whole or not at all.

    Raises:
        CascadeError: the disk is full or cannot be written; checkpoints from before are untouched.
    """
    folder = folder_of(position)
    beside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        beside.mkdir(parents=True)
        shared = _in_result(state, trained.tensors)
        _save(
            beside / STATE,
            {name: value for name, value in state.items() if name.partition("/")[0] not in shared},
        )
        _save(beside / TRAINED_TENSORS, trained.tensors)
        _json(beside / TRAINED_JSON, "trained", {"kind": trained.kind, "settings": trained.settings})
        _json(
            beside / INFO,
            "checkpoint",
            {
                "kind": kind,
                "step": position.step,
                "position": position.name,
                "blocks": canonical(position.blocks),
                "training_seconds": round(seconds, 1),
                "in_trained": shared,
                "state_format": current("state"),
                "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            },
        )
        if folder.exists():
            shutil.rmtree(folder)
        beside.replace(folder)
        _sync_folder(folder.parent)
    except Exception as error:
        # safetensors reports a full disk as its own error type, so the cause is told by what it says
        raise CascadeError(
            f"the checkpoint at step {position.step} could not be written: {error}",
            where=str(folder),
            fix="Free space or choose another output folder and run again; what was saved before is whole",
        ) from error
    finally:
        if beside.exists():
            shutil.rmtree(beside, ignore_errors=True)
    return folder


def read_state(folder: Path) -> dict[str, Tensor]:
    """The state tensors (CPU) of a checkpoint folder, as `Trainer.restore` takes them."""
    info = read_forward(folder / INFO, "checkpoint")
    in_trained = info["in_trained"]
    old = {"format": info.get("state_format", 1), "tensors": read_tensors(folder / STATE)}
    state: dict[str, Tensor] = forward("state", old, str(folder / STATE))["tensors"]
    if in_trained:
        for name, value in read_tensors(folder / TRAINED_TENSORS).items():
            state.update({f"{group}/{name}": value for group in in_trained})
    return state


def _in_result(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """Groups of the state whose every tensor the result holds under the same name: these are written once."""
    groups: dict[str, bool] = {}
    for name, value in state.items():
        group, _, own = name.partition("/")
        same = own in tensors and tensors[own].data_ptr() == value.data_ptr() and value.numel() > 0
        groups[group] = groups.get(group, True) and same
    return sorted(group for group, all_there in groups.items() if all_there)


def sweep(run_folder: Path) -> None:
    """Remove what a crash left half-written. Only the holder of the run's lock may call this."""
    root = run_folder / "checkpoints"
    for folder in root.glob(".*.part") if root.is_dir() else ():
        shutil.rmtree(folder, ignore_errors=True)


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file({name: _whole(value) for name, value in tensors.items()}, path)
    shared(path)
    _sync(path)


def _whole(value: Tensor) -> Tensor:
    """``value`` on the CPU in memory of its own."""
    out = value.detach().cpu().contiguous()
    return out if out.untyped_storage().nbytes() == out.numel() * out.element_size() else out.clone()


def _json(path: Path, kind: str, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(stamped(kind, value), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
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
