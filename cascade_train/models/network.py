"""The network of Stages B and C: diffusers' StableCascadeUNet, in whatever precision its weights are."""

from __future__ import annotations

from diffusers.models.unets.unet_stable_cascade import StableCascadeUNet
from torch import Tensor


class StageNetwork(StableCascadeUNet):
    """diffusers' network, whose time embedding is fp32 whatever the weights are.

    The time itself stays fp32 up to its sines: bf16 would round it in steps of 0.004, which moves what is
    drawn at small times. Only the embedding, whose values lie in −1 … 1, is rounded to what the blocks
    compute in.
    """

    def get_timestep_ratio_embedding(self, timestep_ratio: Tensor, max_positions: int = 10000) -> Tensor:
        """Sines and cosines (B, D) of times (B,) in [0, 1], in the dtype of the first convolution."""
        embedded = super().get_timestep_ratio_embedding(timestep_ratio.float(), max_positions)
        return embedded.to(self.embedding[1].weight.dtype)
