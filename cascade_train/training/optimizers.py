"""Optimizers by name, and the learning rate of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from cascade_train.errors import CascadeError
from cascade_train.training.objectives.base import ParameterGroup
from cascade_train.training.spec import Block, OptimizerSpec


def learning_rate(
    spec: OptimizerSpec, base: float, step: int, total: int, block: Block | None = None
) -> float:
    """The rate of the update that takes the run from ``step`` to ``step + 1``.

    Linear warm-up over ``spec.warmup`` steps, then ``base`` (constant), or falling to 0 at ``total`` steps
    (linear; half a cosine). A block's own rate is used as it stands in place of the schedule, after the
    same warm-up.
    """
    warm = min(1.0, (step + 1) / spec.warmup) if spec.warmup > 0 else 1.0
    if block is not None and block.learning_rate is not None:
        return block.learning_rate * warm * (base / spec.learning_rate if spec.learning_rate else 1.0)
    done = min(1.0, max(0, step - spec.warmup) / max(1, total - spec.warmup))
    if spec.schedule == "cosine":
        return base * warm * 0.5 * (1 + math.cos(math.pi * done))
    if spec.schedule == "linear":
        return base * warm * (1 - done)
    return base * warm


def build_optimizer(
    spec: OptimizerSpec, groups: Sequence[ParameterGroup], device: torch.device
) -> torch.optim.Optimizer:
    """The torch optimizer that ``spec`` names over ``groups`` (empty ones left out).

    Each torch group carries ``base``, its own learning rate before the schedule.

    Raises:
        CascadeError: unknown name, or nothing to train.
    """
    torch_groups: list[dict[str, Any]] = []
    for group in groups:
        if group.parameters:
            rate = spec.learning_rate if group.learning_rate is None else group.learning_rate
            torch_groups.append(
                {
                    "params": list(group.parameters.values()),
                    "base": rate,
                    "lr": rate,
                    "weight_decay": spec.weight_decay if group.decay else 0.0,
                }
            )
    if not torch_groups:
        raise CascadeError("there is nothing to train", fix="Choose modules or tokens to train")
    if spec.name == "adamw":
        fused = device.type in ("cpu", "cuda")
        return torch.optim.AdamW(torch_groups, betas=spec.betas, eps=spec.epsilon, fused=fused)
    if spec.name == "sgd":
        return torch.optim.SGD(torch_groups, momentum=spec.betas[0])
    if spec.name == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit  # Dettmers et al. 2022, arXiv:2110.02861

        return AdamW8bit(torch_groups, lr=spec.learning_rate, betas=spec.betas, eps=spec.epsilon)
    raise CascadeError(f"no optimizer is called '{spec.name}'", fix="Use adamw, adamw8bit or sgd")
