"""The semantic compressor: EfficientNet features, a 1×1 convolution to 16 channels, and a batch norm that
gives them unit variance. Module names are those of the official ``effnet_encoder.safetensors``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cascade_train.models.layouts import factor_of
from cascade_train.models.shapes import CHANNELS, V2_S

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's statistics, which the backbone was trained with."""


class Compressor(nn.Module):
    """ImageNet-normalised pictures (B, 3, H, W) → semantic latents (B, 16, H/factor, W/factor).

    Args:
        blocks: rows like those of `V2_S`.
        last: channels of the backbone's last convolution.
    """

    def __init__(self, blocks: Sequence[Sequence[Any]] = V2_S, last: int = 1280) -> None:
        super().__init__()
        from torchvision.models.efficientnet import EfficientNet, FusedMBConvConfig, MBConvConfig

        self.blocks = tuple((str(row[0]), *(int(v) for v in row[1:])) for row in blocks)
        self.last = last
        kinds: dict[Any, Any] = {"fused": FusedMBConvConfig, "mb": MBConvConfig}
        settings = [kinds[kind](*numbers) for kind, *numbers in self.blocks]
        norm = partial(nn.BatchNorm2d, eps=1e-3)
        whole = EfficientNet(
            settings,
            dropout=0.0,
            stochastic_depth_prob=0.0,
            norm_layer=norm,
            last_channel=last,
            num_classes=1,
        )
        self.backbone = whole.features
        self.mapper = nn.Sequential(
            nn.Conv2d(last, CHANNELS, kernel_size=1, bias=False),
            nn.BatchNorm2d(CHANNELS, affine=False),
        )

    @property
    def factor(self) -> int:
        """Pixels a latent spans: 32 for the real one, 8 for nano."""
        return factor_of(self.blocks)

    def forward(self, normalised: Tensor) -> Tensor:
        return self.mapper(self.backbone(normalised))


def standardised(images: Tensor) -> Tensor:
    """``images`` (B, 3, H, W) in [0, 1] with ImageNet's mean and standard deviation taken out."""
    mean = torch.tensor(MEAN, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    return (images - mean) / std


def encode(compressor: nn.Module, images: Tensor) -> Tensor:
    """Semantic latents (B, 16, h, w), of unit variance and with no further scale, of ``images`` (B, 3, H, W)
    in [0, 1]; H and W should be multiples of the compressor's factor."""
    weight = next(compressor.parameters())
    return compressor(standardised(images).to(weight.dtype))
