"""What is done otherwise than a workflow says, and what of a network's weights then lies on the device.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cascade_train.jobs.tasks import Footprint
from cascade_train.models.spec import ModelsSpec, Part, Precision

OPTIONAL: tuple[Part, ...] = ("stage_c", "stage_b")
"""Parts whose frozen Linear weights may be int8 or fp8, or stay on the CPU."""
BYTES: Mapping[Precision, int] = {"fp32": 4, "bf16": 2}

_BLOCKS = ["SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"]
LITE_B: Mapping[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "timestep_ratio_embedding_dim": 64,
    "patch_size": 2,
    "conditioning_dim": 1280,
    "block_out_channels": [320, 576, 1152, 1152],
    "num_attention_heads": [-1, -1, 18, 18],
    "down_num_layers_per_block": [2, 4, 14, 4],
    "up_num_layers_per_block": [4, 14, 4, 2],
    "down_blocks_repeat_mappers": [1, 1, 1, 1],
    "up_blocks_repeat_mappers": [2, 2, 2, 2],
    "block_types_per_layer": [_BLOCKS[:2], _BLOCKS[:2], _BLOCKS, _BLOCKS],
    "clip_text_in_channels": None,
    "clip_text_pooled_in_channels": 1280,
    "clip_image_in_channels": None,
    "clip_seq": 4,
    "effnet_in_channels": 16,
    "pixel_mapper_in_channels": 3,
    "kernel_size": 3,
    "dropout": [0.0, 0.0, 0.1, 0.1],
    "self_attn": True,
    "timestep_conditioning_type": ["sca"],
    "switch_level": None,
}
"""The configuration of the official lite Stage B (700 M parameters)."""


@dataclass(frozen=True)
class Way:
    """What is done otherwise than a workflow says; None is as it says."""

    precision: Precision | None = None
    checkpointing: str | None = None
    compact: str | None = None
    offload: bool | None = None
    optimizer: str | None = None
    single: bool = False
    """One sample passes at a time (accumulation as large as the batch)."""
    lite_b: bool = False

    def of(self, models: ModelsSpec) -> Held:
        return Held(
            self.precision or models.precision,
            getattr(models, "compact", "") if self.compact is None else self.compact,
            getattr(models, "offload", False) if self.offload is None else self.offload,
        )

    def and_(self, other: Way) -> Way:
        """Both together."""
        changed = {key: value for key, value in vars(other).items() if value not in (None, False)}
        return replace(self, **changed)


AS_IT_IS = Way()


@dataclass(frozen=True)
class Held:
    """How the weights of models are held."""

    precision: Precision
    compact: str
    offload: bool

    def brings(self, part: Part) -> bool:
        """Whether frozen layers of ``part`` bring their weights in each pass."""
        return part in OPTIONAL and bool(self.compact or self.offload)


def frozen_bytes(count: Footprint, part: Part, held: Held) -> int:
    """Bytes that the frozen weights of ``part`` take on the device; those that a layer brings while it
    computes are among a task's passes (`Task.brings`)."""
    each = BYTES[held.precision]
    if not held.brings(part):
        return count.frozen
    rest = count.frozen - each * count.linear
    scales = 4 * count.rows if held.compact else 0
    if held.offload:  # what comes over the bus is there beside what is made of it
        return rest + scales + (count.layer if held.compact else 0)
    return rest + scales + count.linear
