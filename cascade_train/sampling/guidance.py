"""A network with classifier-free guidance, as samplers ask it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cascade_train.diffusion.samplers import Denoiser, SamplerSettings, guided, v_of
from cascade_train.diffusion.schedule import logsnr
from cascade_train.diffusion.targets import Objective, noise_prediction


def guided_network(
    network: Any,
    settings: SamplerSettings,
    condition: dict[str, Tensor],
    negative: dict[str, Tensor],
    objective: Objective = "epsilon",
) -> Denoiser:
    """``network``, which answers ``objective``, with guidance from ``negative`` to ``condition``."""
    as_v = settings.rescale_of == "v" and objective == "epsilon" and settings.rescale != 0

    def call(x: Tensor, time: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        dtype = network.embedding[1].weight.dtype
        cast = {name: value.to(dtype) for name, value in inputs.items()}
        return network(x.to(dtype), timestep_ratio=time, return_dict=False, **cast)[0].float()

    def denoise(x: Tensor, time: Tensor) -> Tensor:
        if settings.cfg == 1:
            return call(x, time, condition)
        both = {name: torch.cat([condition[name], negative[name]]) for name in condition}
        positive, unconditional = call(torch.cat([x, x]), torch.cat([time, time]), both).chunk(2)
        if not as_v:
            return guided(positive, unconditional, settings.cfg, settings.rescale)
        level = logsnr(time)
        pair = v_of(positive, x, level), v_of(unconditional, x, level)
        return noise_prediction(guided(*pair, settings.cfg, settings.rescale), x, level, "v")

    return denoise
