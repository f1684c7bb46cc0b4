"""`nano make`: train every stage, store the parts, score them, draw the contact sheet.

Each stage is an ordinary run under ``<output>/cascade/runs``; stopping and calling again continues. Two
stages train at once in processes of their own, one thread each: on two cores faster than one of two threads.
A stage that is alone shares its batch among processes, as a run on several GPUs does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import STOPPED, CascadeError, Interrupted
from cascade_train.files import write_json
from cascade_train.host.place import rank
from cascade_train.migrations import stamped
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.nano import parts
from cascade_train.nano.recipe import PHASES, Recipe, Stage, blocks_of, run_spec
from cascade_train.ranks.processes import apart, joined, together
from cascade_train.words import duration

if TYPE_CHECKING:
    from PIL import Image

Tell = Callable[[str], None]
TELL_SECONDS = 15.0


@dataclass(frozen=True)
class Made:
    """A finished nano: the folder of its parts, and seconds of training by stage."""

    folder: Path
    seconds: dict[str, float]


def make(output: Path, of: Recipe, *, jobs: int = 2, tell: Tell = print) -> Made:
    """Train whatever of ``of`` is not trained yet and store all parts in ``<output>/nano``.

    Args:
        output: holds the runs, the parts of finished phases and the result.
        jobs: stages that train at once, each with one thread.
        tell: given one line at a time.

    Raises:
        CascadeError: a stage failed; what it and the others had trained is kept.
        Interrupted: a person stopped it; the same call continues.
    """
    output = output.expanduser().absolute()
    here = output / "parts" / of.name / "0"
    models = parts.write_start(here, of)
    seconds: dict[str, float] = {}
    for number, stages in enumerate(PHASES):
        _train_all(output, of, stages, models, jobs, tell)
        after = output / "parts" / of.name / str(number + 1)
        for stage in stages:
            position, took = _finished(output, of, stage, models)
            parts.write_result(after, stage, position, of)
            seconds[stage] = took
        _carry_on(here, after)
        here, models = after, library.models_in(after, name=f"nano after phase {number + 1}")
    final = output / "nano"
    _carry_on(here, final, replace=True)
    write_json(final / "recipe.json", stamped("nano recipe", {"recipe": _plain(of), "seconds": seconds}))
    return Made(final, seconds)


def progress_lines(
    stage: Stage, steps: int, tell: Tell, every: float = TELL_SECONDS
) -> Callable[[int, int, str], None]:
    """A progress function (done, total, text) that tells now and then how far a stage of ``steps`` is and
    how long it will take."""
    begun: list[tuple[float, int]] = []
    last = [0.0]

    def progress(done: int, total: int, text: str) -> None:
        now = time.monotonic()
        loss = next((piece for piece in text.split(" · ") if piece.startswith("loss")), "")
        if now - last[0] < every and not (loss and done >= steps):
            return
        last[0] = now
        if not loss:  # what comes before the steps: samples that are encoded, say
            begun.clear()
            count = f"  {done}/{total}" if total else ""
            tell(f"{stage:<15} {text or 'getting ready'}{count}")
            return
        if not begun:
            begun.append((now, done))
        began, at = begun[0]
        rate = (done - at) / (now - began) if now > began else 0.0
        left = f"{rate:.2f} steps/s  {duration((steps - done) / rate)} left" if rate > 0 else ""
        tell(f"{stage:<15} {done:>6}/{steps}  {loss}  {left}".rstrip())

    return progress


class _Lines:
    """A headless host's listener that prints lines."""

    def __init__(self, stage: Stage, tell: Tell, total: int) -> None:
        self._progress = progress_lines(stage, total, tell)
        self._stage, self._tell = stage, tell

    def progress(self, done: int, total: int, text: str, preview: Image.Image | None) -> None:
        self._progress(done, total, text)

    def warn(self, text: str) -> None:
        self._tell(f"{self._stage}: {text}")


def _host(output: Path, sink: Any = None) -> Any:
    from cascade_train.host.headless import HeadlessHost, headless_folders

    return HeadlessHost(headless_folders(output), device="cpu", sink=sink)


def _finished(output: Path, of: Recipe, stage: Stage, models: ModelsSpec) -> tuple[Any, float]:
    """The last position of a trained stage and how long it trained."""
    from cascade_train.training import run

    position = _trained(of, stage, models, _host(output))
    return position, float(sum(row.get("seconds", 0.0) for row in run.metrics(position)))


def _trained(of: Recipe, stage: Stage, models: ModelsSpec, host: Any) -> Any:
    """The last position of a stage's run; whatever of its blocks is not trained yet is trained now."""
    from cascade_train.training import run

    position = run.start(run_spec(stage, models, of), host)
    for steps, rate in blocks_of(stage, of):
        position, _ = run.train(position, steps, host=host, learning_rate=rate)
    return position


def train_stage(output: Path, of: Recipe, stage: Stage, folder: Path, tell: Tell = print) -> None:
    """Train one stage to its end on top of the parts in ``folder``, in this process and one thread."""
    import torch

    from cascade_train.host.signals import stop_on_signals

    torch.set_num_threads(1)
    models = library.models_in(folder, name="nano")
    host = _host(output, _Lines(stage, tell, sum(steps for steps, _ in blocks_of(stage, of))))
    with stop_on_signals(host, tell):
        _trained(of, stage, models, host)


def _child(output: str, of: Recipe, stage: Stage, folder: str) -> int:
    """`train_stage` in a process of its own, or one of several that share it; the exit code."""

    def tell(line: str) -> None:
        if rank() == 0:
            print(line, flush=True)

    try:
        with joined(_host(Path(output))):
            train_stage(Path(output), of, stage, Path(folder), tell)
    except CascadeError as error:
        tell(f"{stage}: {error}")
        return 1
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    return 0


def _train_all(
    output: Path, of: Recipe, stages: tuple[Stage, ...], models: ModelsSpec, jobs: int, tell: Tell
) -> None:
    folder = Path(library.part_file(models, "text").path).parent
    if jobs <= 1:
        for stage in stages:
            train_stage(output, of, stage, folder, tell)
        return
    work = {stage: (_child, (str(output), of, stage, str(folder))) for stage in stages}
    if len(stages) == 1:
        ((stage, (child, args)),) = work.items()
        codes = {stage: together(max(1, min(jobs, of.batch // 2)), child, *args)}
    else:
        codes = apart(work, at_once=jobs)
    failed = [stage for stage, code in codes.items() if code]
    if STOPPED in codes.values():
        raise Interrupted("stopped")
    if failed:
        raise CascadeError(
            f"training of {', '.join(failed)} failed",
            where=str(output),
            fix="See above; the same command continues what was trained",
        )


def _carry_on(before: Path, after: Path, replace: bool = False) -> None:
    """Copy the parts in ``before`` that ``after`` does not have."""
    import shutil

    after.mkdir(parents=True, exist_ok=True)
    for part in library.OFFICIAL:
        name = part if part in ("text", "image") else f"{part}.safetensors"
        source, goal = before / name, after / name
        if not source.exists() or (goal.exists() and not replace):
            continue
        if source.is_dir():
            shutil.copytree(source, goal, dirs_exist_ok=True)
        else:
            shutil.copy2(source, goal)


def _plain(of: Recipe) -> dict[str, Any]:
    from dataclasses import asdict

    return json.loads(json.dumps(asdict(of)))


__all__ = ["Made", "make", "progress_lines", "train_stage"]
