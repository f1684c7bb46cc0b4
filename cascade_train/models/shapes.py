"""What the shapes in a file say of Stage A, the semantic compressor and the previewer. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.models.layouts import Shapes

V2_S: tuple[tuple[str, int, int, int, int, int, int], ...] = (
    ("fused", 1, 3, 1, 24, 24, 2),
    ("fused", 4, 3, 2, 24, 48, 4),
    ("fused", 4, 3, 2, 48, 64, 4),
    ("mb", 4, 3, 2, 64, 128, 6),
    ("mb", 6, 3, 1, 128, 160, 9),
    ("mb", 6, 3, 2, 160, 256, 15),
)
"""EfficientNetV2-S (Tan & Le 2021, arXiv:2104.00298, table 4): kind, expansion, kernel, stride, channels in
and out, layers."""

CHANNELS = 16
WIDTHS = (512, 256, 128, 128)
"""Channels at 1, 2, 4 and 8 times the latents' side, in the official file."""


@dataclass(frozen=True)
class StageAConfig:
    """``width`` channels at half the picture's side, ``inner`` at a quarter, ``blocks`` residual blocks in
    the decoder's inner level, ``latent`` channels, ``codes`` codebook entries."""

    width: int = 192
    inner: int = 384
    blocks: int = 12
    latent: int = 4
    codes: int = 8192

    @staticmethod
    def from_shapes(shapes: Shapes) -> StageAConfig:
        """The configuration of a file with these tensors."""
        indices = {int(m[1]) for key in shapes if (m := re.match(r"up_blocks\.(\d+)\.gammas$", key))}
        return StageAConfig(
            width=shapes["in_block.1.weight"][0],
            inner=shapes["down_blocks.1.weight"][0],
            blocks=len(indices) - 1,
            latent=shapes["vquantizer.codebook.weight"][1],
            codes=shapes["vquantizer.codebook.weight"][0],
        )


def config_from_shapes(shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The settings of the official file. Strides do not show in shapes, so no other can be inferred.

    Raises:
        CascadeError: the tensors are not those of EfficientNetV2-S with a mapper.
    """
    last = list(shapes.get("backbone.7.0.weight", ()))
    if last != [1280, 256, 1, 1] or list(shapes.get("mapper.0.weight", ())) != [CHANNELS, 1280, 1, 1]:
        raise CascadeError(
            "this is not a semantic compressor that can be recognised",
            fix="Use the official effnet_encoder.safetensors, or a file this project saved",
        )
    return {"blocks": [list(row) for row in V2_S], "last": 1280}


def widths_from_shapes(shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The widths of a file with these tensors."""
    return tuple(shapes[f"blocks.{index}.weight"][0] for index in (0, 9, 15, 21))
