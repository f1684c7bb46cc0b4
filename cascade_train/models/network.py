"""The network of Stages B and C: diffusers' StableCascadeUNet, in whatever precision its weights are."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import torch
from diffusers.models.unets.unet_stable_cascade import SDCascadeAttnBlock, StableCascadeUNet
from torch import Tensor, nn

from cascade_train.models.text import marked


class StageNetwork(StableCascadeUNet):
    """diffusers' network, whose time embedding is fp32 whatever the weights are.

    The time itself stays fp32 up to its sines: bf16 would round it in steps of 0.004, which moves what is
    drawn at small times. Only the embedding, whose values lie in −1 … 1, is rounded to what the blocks
    compute in.

    Texts of several lengths may lie in one batch, marked by `marked`: none attends to what only fills it up.
    """

    @wraps(StableCascadeUNet.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        settled: Any = self.config
        width = int(settled.conditioning_dim)
        for block in self.modules():
            if isinstance(block, SDCascadeAttnBlock):
                block.register_forward_pre_hook(partial(_take_marks, width))
                block.attention.register_forward_pre_hook(_hide, with_kwargs=True)

    def get_clip_embeddings(
        self, clip_txt_pooled: Tensor, clip_txt: Tensor | None = None, clip_img: Tensor | None = None
    ) -> Tensor:
        """What blocks attend to beside the picture, (B, N, C); (B, N, C + 1) where ``clip_txt`` is marked."""
        settled: Any = self.config
        width = settled.clip_text_in_channels
        if clip_txt is None or clip_img is None or clip_txt.shape[-1] == width:
            return super().get_clip_embeddings(clip_txt_pooled, clip_txt, clip_img)
        clip = super().get_clip_embeddings(clip_txt_pooled, clip_txt[..., :-1], clip_img)
        own = clip.new_ones(clip.shape[:2])
        own[:, : clip_txt.shape[1]] = clip_txt[..., -1]
        return marked(clip, own)

    def get_timestep_ratio_embedding(self, timestep_ratio: Tensor, max_positions: int = 10000) -> Tensor:
        """Sines and cosines (B, D) of times (B,) in [0, 1], in the dtype of the first convolution."""
        embedded = super().get_timestep_ratio_embedding(timestep_ratio.float(), max_positions)
        return embedded.to(self.embedding[1].weight.dtype)


def _take_marks(width: int, block: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Before an attention block: its conditions without their marks, which its attention is told of."""
    x, conditions = inputs
    if conditions.shape[-1] == width:
        return None
    own = conditions[..., -1] > 0.5
    if block.self_attn:  # it also attends to the picture itself, which comes first
        own = torch.cat([own.new_ones(len(own), x.shape[-2] * x.shape[-1]), own], dim=1)
    block.attention.own_positions = own  # type: ignore[union-attr]
    return x, conditions[..., :-1]


def _hide(
    attention: nn.Module, inputs: tuple[Any, ...], settings: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Before attention: hide what `_take_marks` has found not to be a caption's own, this once."""
    own = attention.__dict__.pop("own_positions", None)
    return None if own is None else (inputs, {**settings, "attention_mask": own.unsqueeze(1)})
