"""CLIP vision: pictures → the embedding that conditions Stage C on a picture. nano has none; the network
then sees zeros, as it does for most training samples of the full-size models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's pixel statistics."""


def encode_image(image_model: Any, images: Tensor) -> Tensor:
    """Embeddings (B, 1, D), fp32, of ``images`` (B, 3, H, W) in [0, 1] under a
    CLIPVisionModelWithProjection: shorter side resized to the model's, centre cropped."""
    side = int(image_model.config.image_size)
    height, width = images.shape[-2:]
    scale = side / min(height, width)
    size = (max(side, round(height * scale)), max(side, round(width * scale)))
    resized = F.interpolate(images, size=size, mode="bicubic", antialias=True).clamp(0, 1)
    top, left = (size[0] - side) // 2, (size[1] - side) // 2
    cropped = resized[..., top : top + side, left : left + side]
    mean = torch.tensor(CLIP_MEAN, device=images.device).view(1, 3, 1, 1)
    std = torch.tensor(CLIP_STD, device=images.device).view(1, 3, 1, 1)
    weight = next(image_model.parameters())
    return image_model(pixel_values=((cropped - mean) / std).to(weight.dtype)).image_embeds.float()[:, None]
