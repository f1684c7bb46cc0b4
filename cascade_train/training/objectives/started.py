"""Adapters that start as those in a LoRA file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from cascade_train.errors import CascadeError
from cascade_train.models.loras.change import Change
from cascade_train.models.loras.reading import read
from cascade_train.models.loras.state import content_of, networks_of
from cascade_train.models.spec import ModelsSpec
from cascade_train.training.spec import LoRATarget


@torch.no_grad()
def start_adapters(unet: nn.Module, target: LoRATarget, models: ModelsSpec, adapter: str) -> None:
    """Give peft's layers in ``unet`` the adapters in the target's file, so that the network first does what
    it does with the file laid over at strength 1.

    A file of a smaller rank fills its part of the matrices; the rest starts as it would without a file, with
    up matrices of zero. Of a DoRA target lengths are set so that the same holds.

    Raises:
        CascadeError: the file has changed, or what `precheck` could not see: a rank above the target's.
    """
    start = target.start
    assert start is not None
    path = Path(start.path)
    if content_of(path) != start.content:
        raise CascadeError(
            "the LoRA file to start from is another one than when it was chosen",
            where=str(path),
            fix="Choose it again",
        )
    for name, change in read(path, networks_of(models)).of("stage_c").items():
        layer = unet.get_submodule(name)
        if change.rank == 0 or change.rank > target.rank:
            size = f"rank {change.rank}" if change.rank else "full rank"
            raise CascadeError(
                f"the LoRA changes '{name}' by {size}, and the target's rank is {target.rank}",
                where=str(path),
                fix=f"Use a rank of {change.rank} or more" if change.rank else _resize(target.rank),
            )
        down, up = (getattr(layer, f"lora_{letter}")[adapter].weight for letter in "AB")
        assert change.down is not None and change.up is not None
        down[: change.rank] = change.down.reshape(change.rank, *down.shape[1:]).to(down)
        scale = change.scale / (target.alpha / target.rank)
        up[:, : change.rank] = (scale * change.up.float()).reshape(-1, change.rank, *up.shape[2:]).to(up)
        if target.kind == "dora":
            weight: Tensor = layer.weight  # type: ignore[assignment]
            length = layer.lora_magnitude_vector[adapter].weight  # type: ignore[index, union-attr]
            length.copy_(_lengths(weight.float().flatten(1).cpu(), change).view_as(length))


def _lengths(weight: Tensor, change: Change) -> Tensor:
    """peft's lengths (out,) under which the layer is what the file makes of it: rows of the changed weight
    are brought to them (Liu et al. 2024, arXiv:2402.09353, eq. 5)."""
    whole = (weight + change.delta()).norm(dim=1)
    if change.magnitude is None:
        return whole
    length = change.magnitude.float().flatten()
    return length * whole / weight.norm(dim=1) if change.over_base else length


def _resize(rank: int) -> str:
    return f"Bring it to a low rank first: cascade-train lora resize FILE OUT --rank {rank}"
