"""Give finished encoders the scale that what comes after expects, without changing what they can do.

In training, batch norms see small batches of very different pictures; with the running statistics that are
used afterwards, the latents spread wider than one. Both functions measure finished encoders on pictures
(B, 3, H, W) in [0, 1] and move the factor into the layer behind, so that decoded pictures stay the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cascade_train.models.compressor import standardised
from cascade_train.models.stage_a import SCALE


@torch.no_grad()
def unit_compressor(compressor: Any, previewer: Any, pictures: Tensor) -> None:
    """Set the running statistics of the compressor's last norm so that each of its channels has mean 0 and
    variance 1 on ``pictures``; the previewer's first convolution takes up the difference."""
    compressor.eval()
    inner = torch.cat(
        [compressor.mapper[0](compressor.backbone(standardised(each))) for each in pictures.split(32)]
    )
    norm, first = compressor.mapper[1], previewer.blocks[0]
    mean, variance = inner.mean((0, 2, 3)), inner.var((0, 2, 3))
    before = (norm.running_var + norm.eps).sqrt()
    after = (variance + norm.eps).sqrt()
    # old = new · after/before + (mean − old mean)/before
    weight = first.weight[:, :, 0, 0]
    first.bias += weight @ ((mean - norm.running_mean) / before)
    first.weight *= (after / before)[None, :, None, None]
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)


@torch.no_grad()
def unit_stage_a(stage_a: Any, pictures: Tensor) -> None:
    """Scale Stage A's latents so that Stage B sees unit variance over all channels on ``pictures``; the
    codebook scales with them and the decoder's first convolution takes the factor back."""
    stage_a.eval()
    raw = torch.cat([stage_a.raw(each) for each in pictures.split(32)])
    middle = raw.mean((0, 2, 3))
    factor = SCALE / float((raw - middle[None, :, None, None]).square().mean().sqrt())
    norm, first = stage_a.down_blocks[3][1], stage_a.up_blocks[0][0]
    weight = first.weight[:, :, 0, 0]
    first.bias += weight @ middle  # raw = new / factor + middle
    first.weight /= factor
    norm.weight *= factor
    norm.bias.copy_((norm.bias - middle) * factor)
    book = stage_a.vquantizer.codebook.weight
    book.copy_((book - middle) * factor)
