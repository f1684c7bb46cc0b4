"""Runs of the output folder taken up again without the graph that made them. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cascade_train.digest import canonical
from cascade_train.errors import CascadeError
from cascade_train.migrations import read_forward
from cascade_train.models.recognise import NAMES
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import checkpoints, folders
from cascade_train.training.spec import KeptSpec, LoRATarget, Position


def names(root: Path) -> list[str]:
    """The runs under ``root`` that have something to lay over models, the one that was worked on last first:
    ``label [name]``."""
    return [
        f"{label} [{folder.name[:12]}]" if (label := folders.label_of(folder)) else folder.name[:12]
        for folder in folders.run_folders(root)
        if any((folder / "checkpoints").glob("*/checkpoint.json"))
    ]


def folder_of(root: Path, text: str) -> Path:
    """The run that ``text`` means: one of `names`, the beginning of a name, or a label, of several runs of
    one label that was worked on last.

    Raises:
        CascadeError: there is none.
    """
    text = text.strip()
    in_brackets = re.search(r"\[([0-9a-f]{4,})\]$", text)
    found = folders.run_folders(root)
    for wanted in (in_brackets[1] if in_brackets else "", text):
        hits = [folder for folder in found if wanted and folder.name.startswith(wanted)]
        if hits:
            return hits[0]
    for folder in found if text else ():
        if folders.label_of(folder) == text:
            return folder
    known = ", ".join(names(root)[:5])
    raise CascadeError(
        f"there is no run '{text}'",
        where=str(root),
        fix=f"Choose one of {known}" if known else "Train one first; runs lie in this folder",
        typed=("name", text),
    )


def kept(
    root: Path,
    text: str,
    models: ModelsSpec,
    step: int = 0,
    told: Callable[[str], object] = lambda text: None,
) -> Position:
    """The run that ``text`` means (see `folder_of`) at ``step``, or with 0 at its last one, over ``models``.

    Args:
        told: given what a person should know: checkpoints that cannot be read, models that are held otherwise
            than when it was trained.

    Raises:
        CascadeError: there is no such run or step, or it was trained on other models.
    """
    folder = folder_of(root, text)
    try:
        about = read_forward(folder / folders.DESCRIBED, "run")
        spec = dict(about["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CascadeError(
            f"the run's {folders.DESCRIBED} cannot be read ({error})",
            where=str(folder),
            fix="Queue the graph that it was trained with, which writes it anew",
        ) from error
    label = str(about.get("label", ""))
    _same_models(spec.get("models"), models, f"{label or folder.name[:12]}", told)
    saved = _at(checkpoints.listed(folder, told), step, folder)
    target = spec.get("target") or {}
    lora = {name: target[name] for name in ("rank", "alpha", "modules", "kind") if name in target}
    laid = LoRATarget(**lora) if target.get("is") == "LoRATarget" else None
    known = KeptSpec(folder.name, models, spec.get("objective", "epsilon"), label, laid)
    position = Position(known, saved.blocks, str(folder))
    if checkpoints.tag_of(position) != saved.tag:
        raise CascadeError(
            f"the checkpoint {saved.folder.name} is not one of the run {folder.name[:12]}",
            where=str(folder),
            fix="Give the run's folder its own name again",
        )
    return position


def stamp(root: Path, text: str) -> str:
    """What changes when the run that ``text`` means is another one, or has been trained further."""
    try:
        folder = folder_of(root, text)
    except CascadeError as error:
        return str(error)
    return f"{folder.name} {sorted(each.name for each in (folder / 'checkpoints').glob('*'))}"


def _at(found: list[checkpoints.Saved], step: int, folder: Path) -> checkpoints.Saved:
    if not found:
        raise CascadeError("nothing of this run is on disk", where=str(folder), fix="Train it")
    last = step or found[-1].step
    there = [saved for saved in found if saved.step == last]
    if not there:
        steps = ", ".join(str(each) for each in dict.fromkeys(saved.step for saved in found))
        raise CascadeError(
            f"step {step} of this run is not on disk",
            where=str(folder),
            fix=f"Use one of {steps}, or 0 for the last one",
            typed=("step", str(step)),
        )
    return max(there, key=lambda saved: (saved.folder / "checkpoint.json").stat().st_mtime_ns)


def _same_models(then: Any, models: ModelsSpec, name: str, told: Callable[[str], object]) -> None:
    now = canonical(models)
    if then == now or not isinstance(then, dict):
        return
    before, here = ({each["part"]: each for each in found.get("parts", ())} for found in (then, now))
    for part in ("stage_c", "text", "stage_b"):
        if part in before and before[part] != here.get(part):
            raise CascadeError(
                f"the run {name} was trained on another {NAMES[part]}",
                fix="Wire the models that it was trained on",
            )
    if then.get("applied") != now.get("applied"):
        raise CascadeError(
            f"the run {name} was trained on models with other runs or LoRAs laid over them",
            fix="Wire the models as they were when it was trained",
        )
    told(f"the run {name} was trained on models that were held otherwise, or on other encoders")
