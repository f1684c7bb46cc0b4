"""A run as a value: start it, train to a position, read what lies there (docs/architecture.md)."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cascade_train.data.caches import flush_all
from cascade_train.digest import canonical
from cascade_train.errors import CascadeError, Interrupted
from cascade_train.files import check_own, write_json
from cascade_train.host.base import Host
from cascade_train.migrations import read_forward, stamped
from cascade_train.models.spec import AppliedRun, ModelsSpec
from cascade_train.models.trained import TrainedState, read_trained
from cascade_train.ranks.talk import agreed, check_interrupt, wait
from cascade_train.training import checkpoints, notes, retention
from cascade_train.training.around import held, memory_errors, own_random_state, repeatable
from cascade_train.training.metrics import Metrics, MetricsFile, branch_of, read_metrics, some_lines
from cascade_train.training.precheck import examine
from cascade_train.training.previews import Preview, Previews, Standing
from cascade_train.training.spec import Block, Position, RunSpec
from cascade_train.training.trainer import Trainer
from cascade_train.words import duration

SAVE_SECONDS = 60.0
PROGRESS_SECONDS = 0.25

_live: dict[str, Trainer] = {}
"""The newest trainer, by the name of the position it stands at: continuing from there costs nothing."""


def start(spec: RunSpec, host: Host) -> Position:
    """The run of ``spec`` at step 0. Its folder is made, with ``run.json``, where it does not exist yet.

    Raises:
        CascadeError: what `precheck.examine` finds, without loading anything.
    """
    warning = examine(spec)
    if warning:
        host.warn(warning)
    folder = host.folders.runs / spec.digest
    check_own(folder)
    _describe(spec, folder, host)
    return Position(spec, (), str(folder))


def train(
    position: Position,
    steps: int,
    *,
    host: Host,
    learning_rate: float | None = None,
    preview: Preview | None = None,
    preview_every: int = 0,
    save_seconds: float = SAVE_SECONDS,
) -> tuple[Position, Metrics]:
    """Train ``steps`` optimizer updates on from ``position``.

    When the later position is on disk, returns at once. Else continues from the newest checkpoint on the way
    to it, saving every ``save_seconds``, at the end, and when anything stops it; the same call resumes.

    Args:
        position: where to go on from.
        steps: number of updates, ≥ 0.
        learning_rate: the rate of this block; None follows the run's schedule.
        preview, preview_every: draws a picture every so many steps, as `Previews` does; 0 draws none.

    Raises:
        CascadeError: another process trains this run; the data, the models or the disk fail; the loss is not
            a number. What was trained up to then is kept.
        Exception: whatever the host raises to interrupt, after saving.
    """
    if steps < 0:
        raise CascadeError(f"cannot train {steps} steps", fix="Use 0 steps or more")
    goal = position.after(Block(steps, learning_rate))
    if goal.step == 0:
        return goal, Metrics(())
    folder = Path(goal.folder)
    check_own(folder)
    if agreed(checkpoints.exists(goal), host):
        if host.rank == 0:
            checkpoints.promote(goal)
        for line in notes.read_notes(folder):
            host.warn(line)
        return goal, _metrics(goal, host)
    _reach(goal, host, Previews(preview, preview_every, host), save_seconds)
    return goal, _metrics(goal, host)


def reached(position: Position, host: Host) -> Position:
    """``position``, after making sure that what was trained there can be read.

    Where its checkpoint has been deleted since, or its files are not what was written, it is trained to
    again, from the newest checkpoint on the way.

    Raises:
        CascadeError, Exception: as `train` does.
    """
    if position.step > 0:
        why = agreed(checkpoints.fault(position) if host.rank == 0 else "", host)
        if why:
            name = position.spec.label or position.spec.digest[:12]
            host.warn(f"step {position.step} of the run {name} is made anew: {why}")
            _reach(position, host, Previews(None, 0, host), SAVE_SECONDS)
    return position


def _reach(goal: Position, host: Host, previews: Previews, save_seconds: float) -> None:
    """Train to ``goal``, whose checkpoint is not there or not to be used, and write it."""
    folder, spec = Path(goal.folder), goal.settings
    _describe(spec, folder, host)  # the folder may have been deleted since the run was started
    with (
        memory_errors(spec, release),
        held(folder, host),
        torch.inference_mode(False),
        torch.enable_grad(),
        own_random_state(host),
        repeatable(host),
    ):
        trainer = _at_newest(goal, host)
        _warn_past_schedule(goal, host)
        trainer.objective.remark()
        _keep_notes(folder, trainer, host)
        with host.keeping():
            _train_to(goal, trainer, host, previews, save_seconds)
        trainer.objective.remark()
        _keep_notes(folder, trainer, host)
        _live[goal.name] = trainer
        wait(host)  # the others read what rank 0 has written


def _keep_notes(folder: Path, trainer: Trainer, host: Host) -> None:
    if host.rank == 0:
        notes.keep_notes(folder, trainer.objective.dataset.report, trainer.objective.remarks())


def _metrics(position: Position, host: Host) -> Metrics:
    """The rows up to ``position``; a person is told of lines that cannot be read."""
    found = read_metrics(position)
    if found.damaged:
        host.warn(
            f"{len(found.damaged)} lines of the run's metrics.jsonl cannot be read and are left out of "
            f"the loss curve (line {some_lines(found.damaged)}): nothing else depends on them"
        )
    return found


def checkpoint_of(position: Position) -> Path:
    """The checkpoint folder of ``position``.

    Raises:
        CascadeError: nothing has been trained to there.
    """
    folder = checkpoints.folder_of(position)
    if not checkpoints.exists(position):
        raise CascadeError(
            f"step {position.step} of this run is not on disk",
            where=position.folder,
            fix="Train to it first" if position.step else "Train at least one step first",
        )
    return folder


def metrics(position: Position) -> list[dict[str, Any]]:
    """One row a step up to ``position``: step, loss, weighted, lr, grad_norm, seconds."""
    return [dict(row) for row in read_metrics(position).rows]


def trained(position: Position) -> TrainedState:
    """What the run has made at ``position``, read from its checkpoint."""
    return read_trained(checkpoint_of(position))


def apply_trained(
    models: ModelsSpec, position: Position, strength: float = 1.0, host: Host | None = None
) -> ModelsSpec:
    """``models`` with what ``position`` has trained laid over them; nothing is loaded yet.

    At step 0, or with strength 0, they are the models as they are. Runs that were applied before stay. With a
    ``host`` the position is trained to where it is not on disk, now and, on one process, when it is loaded.

    Raises:
        CascadeError: the position has not been trained, and there is no ``host``.
    """
    if strength == 0 or position.step == 0:
        return models
    if strength != strength or abs(strength) == float("inf"):
        raise CascadeError(f"a strength of {strength}", fix="Use a number such as 1")
    again = None
    if host is not None:
        reached(position, host)
        # processes load parts each in their own time, so none may begin to train there
        again = partial(reached, position, host) if host.world_size == 1 else None
    applied = AppliedRun(position.name, strength, str(checkpoint_of(position)), again)
    return replace(models, applied=(*models.applied, applied))


def release() -> None:
    """Let go of the trainer that is kept in memory; the next block reads its checkpoint instead."""
    _live.clear()


def _at_newest(goal: Position, host: Host) -> Trainer:
    """A trainer at the newest position on the way to ``goal``: the live one if it is, else from disk."""
    on_disk = agreed(list(checkpoints.on_the_way(goal, host.warn)), host)
    newest = on_disk[0].step if on_disk else 0
    name, trainer = next(iter(_live.items()), ("", None))
    _live.clear()
    if (
        trainer is not None
        and newest <= trainer.step <= goal.step
        and trainer.whole
        and trainer.host is host
        and trainer.spec == goal.spec
        and checkpoints.truncated(goal, trainer.step).name == name
    ):
        return trainer
    del trainer
    host.make_room()
    fresh = Trainer(goal.settings, host)
    for saved in on_disk:
        try:
            fresh.restore(checkpoints.read_state(saved.folder), saved.step)
            return fresh
        except Exception as error:
            host.warn(
                f"the checkpoint {saved.folder.name} cannot be read ({error}): going back to the one before"
            )
            fresh = Trainer(goal.settings, host)
    return fresh


def _train_to(goal: Position, trainer: Trainer, host: Host, previews: Previews, save_seconds: float) -> None:
    """Advance ``trainer`` to ``goal``, saving on the way, at the end and on any exception."""
    first, began = trainer.step, time.monotonic()
    last_saved = last_shown = began
    log: MetricsFile | None = None
    previews.begin(checkpoints.truncated(goal, first))
    try:
        while trainer.step < goal.step:
            here = checkpoints.truncated(goal, trainer.step + 1)
            if host.rank == 0 and (log is None or log.branch != branch_of(here)):
                if log is not None:
                    log.close()
                log = MetricsFile(Path(goal.folder), branch_of(here))
            check_interrupt(host)
            before = time.monotonic()
            row = trainer.advance(here.blocks[-1])
            now = time.monotonic()
            if log is not None:
                log.append({**row, "seconds": round(now - before, 4)})
            previews.note(row, trainer)
            begun, done = trainer.step == first + 1, trainer.step == goal.step
            if previews.due(trainer.step, first=begun, last=done):
                previews.drawn(trainer, here)
            if begun or done or now - last_shown > PROGRESS_SECONDS or previews.fresh:
                if log is not None:
                    log.flush()
                left = (now - began) / (trainer.step - first) * (goal.step - trainer.step)
                text = f"step {trainer.step}/{goal.step} · loss {row['loss']:.4f} · {duration(left)} left"
                # of several processes none may leave here: they stop together, where they ask each other
                with suppress(*((Interrupted,) if host.world_size > 1 else ())):
                    host.progress(trainer.step, goal.step, text, previews.shown())
                last_shown = now
            if not done and now - last_saved > save_seconds:
                _save(goal, trainer, "timed", host, began)
                last_saved = time.monotonic()
        _save(goal, trainer, "block end", host, began)
    except BaseException:
        if trainer.whole and first < trainer.step <= goal.step and log is not None:
            with suppress(CascadeError):
                log.flush()
            if _save_quietly(goal, trainer, host, began):
                here = checkpoints.truncated(goal, trainer.step)
                host.tell(
                    f"saved at step {trainer.step} of {goal.step} in {checkpoints.folder_of(here)}; "
                    "running the graph again goes on from there"
                )
        raise
    finally:
        flush_all()
        if log is not None:
            log.close()


def _save(goal: Position, trainer: Trainer, kind: checkpoints.Reason, host: Host, began: float) -> None:
    """Write the checkpoint at the trainer's step, then drop those that it supersedes."""
    if host.rank != 0:
        return
    here = checkpoints.truncated(goal, trainer.step)
    if not (checkpoints.exists(here) and kind == "timed"):
        checkpoints.write_checkpoint(here, kind, trainer.state(), trainer.trained(), time.monotonic() - began)
    retention.delete(retention.superseded(here))


def _save_quietly(goal: Position, trainer: Trainer, host: Host, began: float) -> bool:
    """Save while another exception is on its way; a failure to is told and does not hide that one."""
    try:
        _save(goal, trainer, "timed", host, began)
    except CascadeError as error:
        host.warn(str(error))
        return False
    return True


def _describe(spec: RunSpec, folder: Path, host: Host) -> None:
    """Make the run's folder with ``run.json`` where it is not there, or damaged."""
    described = folder / "run.json"
    if host.rank != 0:
        return
    try:
        read_forward(described, "run")
        return
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        host.warn(f"{described} could not be read and is written anew")
    try:
        write_json(
            described,
            stamped(
                "run",
                {
                    "digest": spec.digest,
                    "label": spec.label,
                    "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                    "spec": canonical(spec),
                },
            ),
        )
    except OSError as error:
        raise CascadeError(
            f"the run folder cannot be written: {error.strerror or error}",
            where=str(folder),
            fix="Choose an output folder that you may write to",
        ) from error


def _warn_past_schedule(goal: Position, host: Host) -> None:
    spec = goal.settings
    if (
        goal.step > spec.total_steps
        and spec.optimizer.schedule != "constant"
        and goal.blocks[-1].learning_rate is None
    ):
        host.warn(
            f"the {spec.optimizer.schedule} schedule reaches 0 at step {spec.total_steps}: "
            f"the steps from there to {goal.step} change nothing"
        )


__all__ = [
    "Metrics",
    "Preview",
    "Standing",
    "apply_trained",
    "checkpoint_of",
    "metrics",
    "reached",
    "release",
    "start",
    "train",
    "trained",
]
