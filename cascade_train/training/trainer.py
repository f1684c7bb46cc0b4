"""A live training: one step, and its whole state as tensors. Lives only inside `training.run`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.models.owner import leave, with_room
from cascade_train.models.trained import TrainedState
from cascade_train.ranks.talk import gather_rows, share_buffers, sum_gradients
from cascade_train.training.dropout import Masks, batch_norms
from cascade_train.training.ema import Ema
from cascade_train.training.objectives import objective_for
from cascade_train.training.objectives.base import MicroBatch, Scored
from cascade_train.training.optimizers import build_optimizer, learning_rate
from cascade_train.training.spec import Block, RunSpec


class Trainer:
    """The objective, its optimizer and EMA, at some step of a run."""

    def __init__(self, spec: RunSpec, host: Host) -> None:
        self.spec = spec
        self.host = host
        self.step = 0
        self._drawn: tuple[int, list[MicroBatch]] = (-1, [])
        self._made = 0
        self.whole = True
        """False while an update is half made and the state must not be saved."""
        self.objective = objective_for(spec, host)
        self._masks = Masks(self.objective.modules)
        self.parameters = self.objective.parameters()
        self.moves_buffers = bool(self.objective.buffers())
        if host.world_size > 1 and batch_norms(self.objective.modules):
            host.warn(
                "batch norms work out their statistics over each process's own share of a batch: "
                f"on {host.world_size} processes this run is not the one that a single process trains"
            )
        self.names = {id(value): name for name, value in self.parameters.items()}
        self.optimizer = build_optimizer(spec.optimizer, self.objective.groups(), self.objective.device)
        self.counts_in_ints = spec.optimizer.name == "adamw8bit"
        decay = spec.optimizer.ema
        self.ema = Ema(self.parameters, decay) if decay > 0 else None

    def advance(self, block: Block) -> dict[str, Any]:
        """Make one optimizer update; returns the step's metrics.

        Raises:
            CascadeError: the loss or the gradient is not a number; the state is as before the step.
            Exception: the host's own where a person stops in the middle; the state is likewise.
        """
        spec, objective = self.spec, self.objective
        # a forward pass may already move running statistics
        before = {name: value.clone() for name, value in objective.buffers().items()}
        rate = 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(spec.optimizer, group["base"], self.step, spec.total_steps, block)
            rate = rate or group["lr"]
        try:
            with objective.in_place():
                scored = with_room(self._scored, self.host.device)
            sum_gradients(self.parameters.values(), self.host)
            raw, weighted, log_snr = self._gathered(scored)
            norm = self._clip()
            loss = float(raw.mean())
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise CascadeError(
                    f"the loss is not a number any more at step {self.step + 1} "
                    f"(loss {loss}, gradient {norm})",
                    fix="Lower the learning rate or use more warm-up; the steps before are kept",
                )
        except BaseException:
            with torch.no_grad():
                for name, buffer in objective.buffers().items():
                    buffer.copy_(before[name])
            raise
        self.whole = False
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(self.parameters, self.step + 1)
        objective.after_step(raw, log_snr)
        self._rest_encoders()
        share_buffers(objective.buffers().values() if self.moves_buffers else (), self.host)
        self.step += 1
        self.whole = True
        row: dict[str, Any] = {
            "step": self.step,
            "loss": loss,
            "weighted": float(weighted.mean()),
            "lr": rate,
            "grad_norm": norm,
        }
        for name in scored[0].parts:
            row[name] = sum(item.parts[name] * len(item.raw) for item in scored) / sum(
                len(item.raw) for item in scored
            )
        return row

    def _rest_encoders(self) -> None:
        """Let encoders leave the device after a step that needed none of them."""
        made = sum(feed.made for feed in self.objective.feeds())
        if made == self._made:
            leave(self.host.device)
        self._made = made

    def _scored(self) -> list[Scored]:
        """Forward and backward of this step's batch, and a beginning with what the next one needs."""
        self.optimizer.zero_grad(set_to_none=True)
        at, batches = self._drawn
        if at != self.step:
            batches = self._micro_batches(self.step)
        coming = self._micro_batches(self.step + 1)
        self._drawn = self.step, batches  # asked for again where a person stops in between
        self.objective.ahead([draw for batch in coming for draw in batch.draws])
        scored: list[Scored] = []
        for batch in batches:
            if scored:
                self.objective.check_stop()
            scored.append(self._micro(batch))
        self._drawn = self.step + 1, coming
        return scored

    def _micro_batches(self, step: int) -> list[MicroBatch]:
        """This process's share of the global batch, split for accumulation; indices stay global."""
        spec = self.spec
        draws = self.objective.dataset.draws(spec.seed, step, spec.batch_size)
        world, rank = self.host.world_size, self.host.rank
        mine = draws[len(draws) * rank // world : len(draws) * (rank + 1) // world]
        if not mine:
            raise CascadeError(
                f"a batch of {spec.batch_size} samples cannot be shared by {world} processes",
                fix=f"Use a batch size of {world} or more",
            )
        pieces = max(1, min(spec.accumulation, len(mine)))
        bounds = [len(mine) * piece // pieces for piece in range(pieces + 1)]
        return [
            MicroBatch(spec.seed, step, tuple(mine[start:end])) for start, end in itertools.pairwise(bounds)
        ]

    def _micro(self, batch: MicroBatch) -> Scored:
        """Forward and backward of one micro-batch."""
        device = self.objective.device
        cast = torch.autocast(device.type, torch.bfloat16) if self.objective.autocast else nullcontext()
        self._masks.begin(batch)
        with cast, self._masks.alone(device):
            scored = self.objective.score(batch)
        (scored.loss.float().sum() / self.spec.batch_size).backward()
        return scored

    def _gathered(self, scored: list[Scored]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Unweighted and weighted losses and logSNRs of the global batch, in order, on the CPU."""
        columns = [
            torch.cat([item.raw.detach().float() for item in scored]),
            torch.cat([item.loss.detach().float() for item in scored]),
        ]
        snrs = [item.log_snr for item in scored if item.log_snr is not None]
        if snrs:
            columns.append(torch.cat(snrs).float())
        rows = gather_rows(torch.stack(columns, dim=1), self.host).cpu()
        return rows[:, 0], rows[:, 1], rows[:, 2] if snrs else None

    def _clip(self) -> float:
        """Clip the global gradient norm; returns the norm before clipping."""
        limit = self.spec.optimizer.clip_norm or math.inf
        return float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit))

    def coming_captions(self) -> list[str]:
        """The different captions of this process's samples of the next step, if they have been drawn."""
        draws = [draw for batch in self._drawn[1] for draw in batch.draws]
        return list(dict.fromkeys(self.objective.dataset.caption(draw) for draw in draws))

    def state(self) -> dict[str, Tensor]:
        """Everything that a resume needs, by name."""
        out: dict[str, Tensor] = {f"parameter/{name}": value for name, value in self.parameters.items()}
        out.update({f"buffer/{name}": value for name, value in self.objective.buffers().items()})
        out.update({f"extra/{name}": value for name, value in self.objective.extra_state().items()})
        if self.ema is not None:
            out.update({f"ema/{name}": value for name, value in self.ema.values.items()})
        for parameter, moments in self.optimizer.state.items():
            name = self.names[id(parameter)]
            out.update(
                {
                    f"optimizer/{key}/{name}": value if isinstance(value, Tensor) else torch.tensor(value)
                    for key, value in moments.items()
                    if isinstance(value, (Tensor, int))  # bitsandbytes counts steps in an int
                }
            )
        return out

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor], step: int) -> None:
        """Take up what `state` gave at ``step``.

        Raises:
            KeyError, RuntimeError: the state belongs to another run.
        """
        for name, parameter in self.parameters.items():
            parameter.copy_(state[f"parameter/{name}"])
        for name, buffer in self.objective.buffers().items():
            buffer.copy_(state[f"buffer/{name}"])
        self.objective.load_extra_state(_under("extra/", state))
        if self.ema is not None:
            self.ema.load(_under("ema/", state))
        by_name = dict(self.parameters.items())
        self.optimizer.state.clear()
        for key, value in _under("optimizer/", state).items():
            kind, _, name = key.partition("/")
            parameter = by_name[name]
            if kind == "step" and self.counts_in_ints:
                self.optimizer.state[parameter][kind] = int(value)
                continue
            # a counter stays on the CPU unless the update is fused, as torch itself keeps it
            counter = kind == "step" and not self.optimizer.defaults.get("fused")
            # a moment takes the memory layout of its parameter, which fused updates rely on
            self.optimizer.state[parameter][kind] = (
                value.to(value.device if counter else parameter.device, copy=True)
                if counter or value.shape != parameter.shape
                else torch.empty_like(parameter, dtype=value.dtype).copy_(value)
            )
        self.step = step
        self.whole = True

    def trained(self) -> TrainedState:
        """What the run has made so far: EMA weights where kept, else the live ones."""
        weights: dict[str, Tensor] = {name: value.detach() for name, value in self.parameters.items()}
        if self.ema is not None:
            weights.update(self.ema.values)
        weights.update(self.objective.buffers())
        made = self.objective.result(weights)
        if self.spec.objective != "epsilon":
            made = replace(made, settings={**made.settings, "objective": self.spec.objective})
        return made


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
