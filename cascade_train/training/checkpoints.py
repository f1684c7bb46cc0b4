"""Checkpoint folders: one a position, written beside and renamed.

``checkpoints/<step>-<position>/`` holds ``trained.safetensors`` and ``trained.json`` (what the run has made,
see `models.trained`), ``state.safetensors`` (everything a resume needs: parameters, buffers, EMA, optimizer
moments, extra state) and ``checkpoint.json`` (step, position, kept for what, and the digest of the other
files). Its presence means that all were written; whether they are still that, `models.proof` finds out.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cascade_train.digest import canonical
from cascade_train.errors import CascadeError
from cascade_train.files import sweep_parts, telling, write_json
from cascade_train.migrations import current, forward, stamped
from cascade_train.models.proof import DIGESTS, INFO, checked, damage, read_info
from cascade_train.models.tensor_file import write_file
from cascade_train.models.trained import TRAINED_JSON, TRAINED_TENSORS, TrainedState
from cascade_train.models.weights import read_tensors
from cascade_train.training.spec import Block, Position

if TYPE_CHECKING:
    from torch import Tensor

STATE = "state.safetensors"

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


def listed(run_folder: Path, told: Callable[[str], object] = lambda text: None) -> list[Saved]:
    """Every checkpoint of a run that has been written whole, by step; folders of other names are left alone.

    One whose checkpoint.json is damaged is left out, and ``told`` so.

    Raises:
        CascadeError: a later version has written one.
    """
    found = []
    root = run_folder / "checkpoints"
    for folder in root.iterdir() if root.is_dir() else ():
        step, _, tag = folder.name.partition("-")
        if step.isdigit() and tag and (folder / INFO).is_file():
            try:
                info = read_info(folder)
                blocks = blocks_of(info)
            except FileNotFoundError:
                continue  # superseded and deleted meanwhile
            except (OSError, ValueError) as error:
                told(f"the checkpoint {folder.name} is left out: its {INFO} cannot be read ({error})")
                continue
            found.append(Saved(folder, int(step), tag, info["kind"], blocks))
    return sorted(found, key=lambda saved: (saved.step, saved.tag))


def blocks_of(info: Mapping[str, Any]) -> tuple[Block, ...]:
    """The way that led to a checkpoint, as its checkpoint.json tells."""
    return tuple(Block(each["steps"], each.get("learning_rate")) for each in info["blocks"])


def on_the_way(position: Position, told: Callable[[str], object] = lambda text: None) -> Iterator[Saved]:
    """The checkpoints of ``position`` and of the positions before it, newest first; else as `listed`."""
    for saved in reversed(listed(Path(position.folder), told)):
        if saved.step <= position.step and saved.tag == tag_of(truncated(position, saved.step)):
            yield saved


def exists(position: Position) -> bool:
    """Whether ``position`` has been saved; its files are not read, see `fault`.

    Raises:
        CascadeError: a later version has written it.
    """
    try:
        read_info(folder_of(position))
    except (OSError, ValueError):
        return False
    return True


def fault(position: Position) -> str:
    """Why what the run has made at ``position`` cannot be read from its checkpoint; "" when it can."""
    folder = folder_of(position)
    if not exists(position):
        return f"{INFO} is damaged" if (folder / INFO).is_file() else "it is not on disk"
    return damage(folder, TRAINED_TENSORS, TRAINED_JSON)


def promote(position: Position) -> None:
    """Mark the checkpoint of ``position`` as one that a graph names."""
    folder = folder_of(position)
    info = read_info(folder)
    if info.get("kind") != "block end":
        write_json(folder / INFO, {**info, "kind": "block end"})


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
        with telling(folder, beside):
            beside.mkdir(parents=True)
        shared = _in_result(state, trained.tensors)
        own = {name: value for name, value in state.items() if name.partition("/")[0] not in shared}
        digests = {
            STATE: _save(beside / STATE, own),
            TRAINED_TENSORS: _save(beside / TRAINED_TENSORS, trained.tensors),
            TRAINED_JSON: _json(
                beside / TRAINED_JSON, "trained", {"kind": trained.kind, "settings": trained.settings}
            ),
        }
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
                DIGESTS: digests,
            },
        )
        with telling(folder, beside):
            if folder.exists():
                shutil.rmtree(folder)
            beside.replace(folder)
            _sync_folder(folder.parent)
    except Exception as error:
        cause = getattr(error, "strerror", None) or error
        raise CascadeError(
            f"the checkpoint at step {position.step} could not be written: {cause}",
            where=str(folder),
            fix="Free space or choose another output folder and run again; what was saved before is whole",
        ) from error
    finally:
        if beside.exists():
            shutil.rmtree(beside, ignore_errors=True)
    return folder


def read_state(folder: Path) -> dict[str, Tensor]:
    """The state tensors (CPU) of a checkpoint folder, as `Trainer.restore` takes them.

    Raises:
        CascadeError: a file is not what was written, or no such file at all.
        OSError, ValueError: one cannot be read.
    """
    info = read_info(folder)
    in_trained = info["in_trained"]
    checked(folder, STATE, *((TRAINED_TENSORS,) if in_trained else ()))
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
    sweep_parts(run_folder, run_folder / "samples", run_folder / "exports")


def _save(path: Path, tensors: Mapping[str, Tensor]) -> str:
    digest = write_file(path, tensors)
    _sync(path)
    return digest


def _json(path: Path, kind: str, value: Mapping[str, Any]) -> str:
    data = (json.dumps(stamped(kind, value), indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    with telling(path):
        path.write_bytes(data)
        _sync(path)
    return hashlib.sha256(data).hexdigest()


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
