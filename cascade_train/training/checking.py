"""Whether what lies in a run folder is what was written there. Everything is read whole; imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cascade_train.digest import digest
from cascade_train.errors import CascadeError
from cascade_train.migrations import read_forward
from cascade_train.models.proof import DIGESTS, INFO, damage, read_info
from cascade_train.models.trained import TRAINED_JSON, TRAINED_TENSORS
from cascade_train.models.weights import read_header
from cascade_train.training import checkpoints
from cascade_train.training.folders import DESCRIBED
from cascade_train.training.metrics import METRICS, numbered_rows, some_lines

FILES = (checkpoints.STATE, TRAINED_TENSORS, TRAINED_JSON)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong in a run folder: which file, what with it, and what that costs."""

    file: str
    what: str
    costs: str


@dataclass(frozen=True)
class RunCheck:
    """What was found in a run folder; its checkpoints, and how many of them are from before digests."""

    findings: tuple[Finding, ...]
    checkpoints: int
    without: int


def check_run(folder: Path, telling: Callable[[str], object] = lambda text: None) -> RunCheck:
    """Read everything in a run folder and compare it with the digests that were written with it.

    ``telling`` is given the name of each checkpoint before it is read.

    Raises:
        CascadeError: a later version has written the run.
    """
    findings = [*_description(folder), *_metrics(folder)]
    count = without = 0
    root = folder / "checkpoints"
    for each in sorted(root.iterdir()) if root.is_dir() else ():
        step, _, tag = each.name.partition("-")
        if not (step.isdigit() and tag and (each / INFO).is_file()):
            continue
        telling(each.name)
        found = _checkpoint(folder, each, int(step), tag)
        if not each.is_dir():
            continue  # superseded and deleted while it was read
        count += 1
        findings += found
        without += not found and not read_info(each).get(DIGESTS)
    return RunCheck((*findings, *_exports(folder)), count, without)


def _description(folder: Path) -> Iterator[Finding]:
    costs = "it is written anew when the run is trained on; until then its label and settings are not known"
    try:
        spec = read_forward(folder / DESCRIBED, "run").get("spec")
    except (OSError, ValueError) as error:
        yield Finding(DESCRIBED, f"it cannot be read ({error})", costs)
        return
    if digest(spec) != folder.name:
        yield Finding(
            DESCRIBED,
            "its settings are not those that the folder is named by",
            "no weights: a run is found by its folder's name",
        )


def _metrics(folder: Path) -> Iterator[Finding]:
    path = folder / METRICS
    if not path.is_file():
        return
    bad = [number for number, row in numbered_rows(path) if row is None]
    if bad:
        costs = "these steps are missing in the loss curve"
        yield Finding(METRICS, f"{len(bad)} lines cannot be read (line {some_lines(bad)})", costs)


def _checkpoint(folder: Path, checkpoint: Path, step: int, tag: str) -> list[Finding]:
    name = f"checkpoints/{checkpoint.name}"
    costs = "training goes on from the checkpoint before, and makes this one anew where a graph names it"
    try:
        info = read_info(checkpoint)
    except (OSError, ValueError) as error:
        return [Finding(f"{name}/{INFO}", f"it cannot be read ({error})", costs)]
    blocks = checkpoints.blocks_of(info)
    if sum(block.steps for block in blocks) != step or not digest((folder.name, blocks)).startswith(tag):
        return [Finding(f"{name}/{INFO}", "its blocks are not those that the checkpoint is named by", costs)]
    wrong = [(each, damage(checkpoint, each)) for each in FILES]
    return [Finding(f"{name}/{each}", why, costs) for each, why in wrong if why]


def _exports(folder: Path) -> Iterator[Finding]:
    """Exports have no digests: what is seen is whether they are whole."""
    for path in sorted((folder / "exports").rglob("*.safetensors")):
        try:
            read_header(path)
        except CascadeError as error:
            yield Finding(path.relative_to(folder).as_posix(), error.what, "export it again")
