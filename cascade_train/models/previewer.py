"""The previewer: a small convolutional decoder from Stage C's latents to a picture of eight times their
side. Module names are those of the official ``previewer.safetensors``.

For nano, whose latents are ÷8, that is the full size: the previewer is also the decoder that its semantic
compressor is trained with.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from cascade_train.models.shapes import WIDTHS


class Previewer(nn.Module):
    """Latents (B, 16, h, w) → pictures (B, 3, 8h, 8w) in about [0, 1], not clamped."""

    def __init__(self, widths: Sequence[int] = WIDTHS, channels: int = 16) -> None:
        super().__init__()
        self.widths = tuple(int(width) for width in widths)
        layers: list[nn.Module] = []
        before = channels
        for level, width in enumerate(self.widths):
            if level:
                layers.append(nn.ConvTranspose2d(before, width, 2, stride=2))
            else:
                layers.append(nn.Conv2d(before, width, 1))
            layers += [nn.GELU(), nn.BatchNorm2d(width)]
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.BatchNorm2d(width)]
            before = width
        self.blocks = nn.Sequential(*layers, nn.Conv2d(before, 3, 1))

    def forward(self, latents: Tensor) -> Tensor:
        return self.blocks(latents.to(next(self.parameters()).dtype))
