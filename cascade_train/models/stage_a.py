"""Stage A: the VQGAN between pictures and latents of a quarter of their side (Rampas et al. 2022,
arXiv:2211.07292). Module names are those of the official ``stage_a.safetensors``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cascade_train.models.shapes import StageAConfig

SCALE = 0.43
"""Stage B sees Stage A's own latents divided by this, which gives them about unit variance."""


class MixingBlock(nn.Module):
    """A depthwise convolution and an MLP, each on a layer norm with learnt scale, shift and gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.depthwise = nn.Sequential(nn.ReplicationPad2d(1), nn.Conv2d(width, width, 3, groups=width))
        self.norm2 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.channelwise = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))
        self.gammas = nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        g = self.gammas
        mixed = self.norm1(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * (1 + g[0]) + g[1]
        x = x + self.depthwise(mixed) * g[2]
        mixed = self.norm2(x.permute(0, 2, 3, 1)) * (1 + g[3]) + g[4]
        return x + self.channelwise(mixed).permute(0, 3, 1, 2) * g[5]


class Quantizer(nn.Module):
    """The nearest of ``codes`` vectors."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.codebook = nn.Embedding(codes, width)

    def forward(self, z: Tensor) -> Tensor:
        """The codebook entry nearest to each position of ``z`` (B, C, h, w)."""
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        book = self.codebook.weight
        distance = book.square().sum(1) - 2 * flat @ book.t()
        nearest = book[distance.argmin(dim=1)]
        return nearest.view(z.shape[0], z.shape[2], z.shape[3], z.shape[1]).permute(0, 3, 1, 2)


class StageA(nn.Module):
    """Pictures (B, 3, H, W) in [0, 1] ↔ latents (B, 4, H/4, W/4) as Stage B sees them (see `SCALE`)."""

    factor = 4

    def __init__(self, config: StageAConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or StageAConfig()
        width, inner = config.width, config.inner
        self.in_block = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, width, 1))
        self.down_blocks = nn.Sequential(
            MixingBlock(width),
            nn.Conv2d(width, inner, 4, stride=2, padding=1),
            MixingBlock(inner),
            nn.Sequential(nn.Conv2d(inner, config.latent, 1, bias=False), nn.BatchNorm2d(config.latent)),
        )
        self.vquantizer = Quantizer(config.codes, config.latent)
        self.up_blocks = nn.Sequential(
            nn.Sequential(nn.Conv2d(config.latent, inner, 1)),
            *(MixingBlock(inner) for _ in range(config.blocks)),
            nn.ConvTranspose2d(inner, width, 4, stride=2, padding=1),
            MixingBlock(width),
        )
        self.out_block = nn.Sequential(nn.Conv2d(width, 12, 1), nn.PixelShuffle(2))

    def encode(self, images: Tensor) -> Tensor:
        """Latents before quantisation, (B, 4, H/4, W/4), as Stage B sees them."""
        return self.raw(images) / SCALE

    def decode(self, latents: Tensor, quantize: bool = False) -> Tensor:
        """Pictures, not clamped, of latents as Stage B sees them; ``quantize``: of their nearest codes."""
        raw = latents * SCALE
        return self.pictures(self.vquantizer(raw) if quantize else raw)

    def raw(self, images: Tensor) -> Tensor:
        """Latents in Stage A's own scale, in the weights' precision."""
        return self.down_blocks(self.in_block(images.to(next(self.in_block.parameters()).dtype)))

    def pictures(self, raw: Tensor) -> Tensor:
        """Pictures, not clamped and in the weights' precision, of latents in Stage A's own scale."""
        return self.out_block(self.up_blocks(raw.to(next(self.out_block.parameters()).dtype)))

    def forward(self, images: Tensor, quantised: Tensor) -> tuple[Tensor, Tensor]:
        """For training: reconstructions, not clamped, and the VQ loss (B,) (codebook + 0.25 · commitment; van
        den Oord et al. 2017, arXiv:1711.00937, eq. 3).

        ``quantised`` (B,) says whose latents pass the codebook before they are decoded (gradients pass
        straight through); Stage B gives latents that did not, so the decoder has to do well on both.
        """
        raw = self.raw(images)
        codes = self.vquantizer(raw)
        commitment = (raw - codes.detach()).square().flatten(1).mean(1)
        book = (codes - raw.detach()).square().flatten(1).mean(1)
        through = raw + (codes - raw).detach()
        seen = torch.where(quantised.view(-1, 1, 1, 1), through, raw)
        return self.pictures(seen), book + 0.25 * commitment


def psnr(first: Tensor, second: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of pictures (B, …) in [0, 1], one a picture."""
    error = F.mse_loss(first.clamp(0, 1), second, reduction="none").flatten(1).mean(1)
    return -10 * torch.log10(error.clamp(min=1e-10))
