"""Starting weights for parts that are trained from nothing.

``random`` is the library's own initialisation under a seed. ``nano`` is what small models need to learn in
minutes what would otherwise take hours; for Stages C and B it is `scaled_copy`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import nn

from cascade_train.errors import CascadeError
from cascade_train.models import build
from cascade_train.models.spec import ModelsSpec, Part
from cascade_train.nano import widths as nano_parts

INITS = ("random", "nano")

CONSTANT = 100.0
"""Size of the constant channels in the last level, against about 1 for everything else there."""

CONSTANTS = 8
"""Number of constant channels a level has, half of them negative."""

AMOUNT = 0.02
"""Size of x against the constants at the embedding."""

PLACE = 2.0
"""Size of the inner level's constant channels, and about that of the channels that tell places."""

SHARPER = 1.7
"""By how much queries and keys of the inner level start larger than the library's."""

LOUDER = 2.0
"""By how much values and outputs of that attention start larger: else the noise in x drowns the text."""

STEADY = 50.0
"""By how much the last weights of normed conditions are enlarged."""

QUIET = 0.2
"""By how much the first block works with smaller inner values: what it writes comes before x is amplified."""


def initial(part: Part, init: str, config: str, seed: int, models: ModelsSpec) -> nn.Module:
    """``part`` before its first step, fp32 on the CPU: a pure function of the arguments.

    Args:
        init: ``random`` or ``nano``.
        config: empty for nano's own widths, ``quick`` for its smaller ones, or the configuration as JSON.
        models: where the text encoder's tokenizer comes from.

    Raises:
        CascadeError: an unknown ``init`` or a configuration that cannot be read.
    """
    if init not in INITS:
        raise CascadeError(f"there is no initialisation '{init}'", fix=f"One of {', '.join(INITS)}")
    settings = _settings(part, config)
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed_of(seed, part))
        module = build.build(part, settings)
        if init == "nano" and part in ("stage_c", "stage_b"):
            scaled_copy(module)
        elif part == "stage_a":
            _open_blocks(module)
        if init == "nano" and part == "text":
            balanced_words(module)
        if part == "text":
            from pathlib import Path

            from cascade_train.models import library

            folder = Path(library.part_file(models, "text").path)
            module.tokenizer = build.load_tokenizer(folder)
        if part in ("stage_a", "compressor", "previewer"):
            # up to twice as fast on a CPU; values and names are the same
            module = module.to(memory_format=torch.channels_last)
        return module.float()


def scaled_copy(net: Any) -> None:
    """Make a two-level Stage C or B start as ε̂ = √(1−ᾱ)·x, exact to about 2e-4; same architecture.

    Why: near t = 1 the right answer is ε ≈ x, and what the text has to say about the picture is only
    √ᾱ = 0.01 … 0.08 of it. A network that must first learn to copy its input through its blocks is off by
    0.01 for a long time, so the first sampling steps add more noise than the text adds signal, and shape
    and place stay at chance. √(1−ᾱ)·x is the best answer that knows nothing of the picture (for latents of
    unit variance), so everything that training adds is about the picture. Stage B, which takes ten steps
    only, suffers from a bad copy in the same way.

    How, in the words of the code:
    - The outer level has ``plus`` and ``minus`` channels that carry x and −x, ``const`` channels that hold
      large constants, and free ones. The layer norms divide by a deviation that the constants dominate, so
      they scale x almost exactly linearly; the mean they take away falls out of the difference plus − minus.
    - The embedding leaves x small; the first time block brings it to x. The last level takes it from the
      skip connection through GELU(u) − GELU(−u) = u.
    - The time dependence √(1−ᾱ) is a least-squares fit on the time embedding in the last time block.
    - No block writes to these channels at the start; free channels begin as in the library.
    - Constants meet zero padding at the borders, so convolutions can tell where they are. The inner level
      turns that into channels that attention can see too (`_places`).
    - Text attention starts stronger than the library's, so that captions matter early.

    Exactness is not enough: one step of Adam moves every weight by the learning rate, so weights whose
    inputs are large or whose outputs are amplified are kept out of the copy's way.

    The network needs strided levels and an outer one wide enough.

    Raises:
        CascadeError: it has another form.
    """
    config = net.config
    channels = config.in_channels * config.patch_size**2
    if len(config.block_out_channels) != 2 or config.block_out_channels[0] <= 2 * channels + CONSTANTS:
        raise CascadeError(
            "the nano initialisation needs two levels, the outer one of more than "
            f"{2 * channels + CONSTANTS} channels",
            fix="Use the initialisation 'random'",
        )
    w0, w1 = config.block_out_channels
    period, inner_period = (len(types) for types in config.block_types_per_layer)
    plus, minus = slice(0, channels), slice(channels, 2 * channels)
    const = slice(2 * channels, 2 * channels + CONSTANTS)
    held, free = slice(0, const.stop), slice(const.stop, w0)
    sign = torch.tensor([1.0, -1.0]).repeat(CONSTANTS // 2)
    eye = torch.eye(channels)

    embedding = net.embedding[1]  # a norm follows, so its scale is free: large weights move less in a step
    embedding.weight.zero_()
    embedding.weight[plus], embedding.weight[minus] = eye[:, :, None, None], -eye[:, :, None, None]
    embedding.bias.zero_()
    embedding.bias[const] = sign / AMOUNT
    seen = AMOUNT / math.sqrt((CONSTANTS + 2 * channels * AMOUNT**2) / w0)  # of x, after that norm
    for name in ("effnet_mapper", "pixels_mapper"):
        if hasattr(net, name):
            _beside_copy(getattr(net, name)[2], held, free)

    first, time, *attention = net.down_blocks[0][:period]
    _gain(first.depthwise, slice(0, 2 * channels), 1 / seen)
    _gain(first.depthwise, const, 0.4)
    _time_zero(time, held, w0)
    time.mapper.bias[: 2 * channels] = 1 / seen - 1
    _silence(held, first, *attention)
    first.channelwise[0].weight *= QUIET
    first.channelwise[0].bias *= QUIET
    first.channelwise[4].weight /= QUIET
    for index in range(period, len(net.down_blocks[0]), period):
        _plain_layer(net.down_blocks[0][index : index + period], held, const, w0, 0.4)

    down = net.down_downscalers[1][1]
    level1 = [*net.down_blocks[1], *net.up_blocks[0]]
    text = config.clip_text_in_channels is not None  # Stage B's condition tells it where things are
    kept = slice(0, 2 * CONSTANTS if text else CONSTANTS)
    down.weight[kept] = 0
    down.bias[:CONSTANTS] = sign
    for index in range(0, len(level1), inner_period):
        res, timing, *attending = level1[index : index + inner_period]
        _time_zero(timing, kept, w1)
        _silence(kept, res, *attending)
        for block in attending if text else ():
            for projection in (block.attention.to_q, block.attention.to_k):
                projection.weight *= SHARPER
            for projection in (block.attention.to_v, block.attention.to_out[0]):
                projection.weight *= LOUDER
    if text:
        _places(down, level1[0], level1[inner_period])

    up = net.up_upscalers[0][1]
    up.weight[:, held] = 0
    up.bias[held] = 0
    up.bias[const] = sign * CONSTANT

    last = net.up_blocks[1]
    for index in range(0, len(last), period):
        _plain_layer(last[index : index + period], held, const, w0, 1 / CONSTANT)
    for block in last:
        if hasattr(block, "attention"):
            # the constants fill its norm: look less at them and more at everything else
            inner = block.attention
            for projection in (inner.to_q, inner.to_k, inner.to_v):
                projection.weight *= 8.0
                projection.weight[:, const] /= 80.0
    mlp = last[0].channelwise
    up_units, down_units = slice(0, channels), slice(channels, 2 * channels)
    both = slice(0, 2 * channels)
    mlp[0].bias[both] = 0
    mlp[0].weight[both] = 0
    skip = slice(w0, w0 + 2 * channels)
    mlp[0].weight[up_units, skip] = torch.cat([eye, -eye], dim=1) / 2
    mlp[0].weight[down_units, skip] = torch.cat([-eye, eye], dim=1) / 2
    mlp[4].weight[:, both] = 0
    mlp[4].weight[plus, both] = torch.cat([eye, -eye], dim=1)
    mlp[4].weight[minus, both] = torch.cat([-eye, eye], dim=1)
    _fit_time(net, last[len(last) - period + 1], slice(0, 2 * channels))

    power = CONSTANTS * CONSTANT**2 + 2 * channels + 0.4 * (free.stop - free.start)
    out = net.clf[1]
    out.weight.zero_()
    out.bias.zero_()
    out.weight[:, both] = torch.cat([eye, -eye], dim=1)[:, :, None, None] * math.sqrt(power / w0) / 2
    for block in (*net.down_blocks[0], *level1, *last):
        if hasattr(block, "kv_mapper"):
            block.kv_mapper[1].weight *= 3.0


def balanced_words(text_model: Any) -> None:
    """Make a CLIP text model that is left as it starts carry every word of a caption alike.

    Why nano's is not trained: trained with Stage C it lets the words that matter most to the loss, background
    and colour, grow until the norms behind it crush all others; place and shape then stay unheard for
    thousands of steps. With embeddings well above CLIP's 0.02 its states keep every word apart, and Stage C's
    attention learns which to use.
    """
    embeddings = text_model.text_model.embeddings
    nn.init.normal_(embeddings.token_embedding.weight, std=0.5)
    nn.init.normal_(embeddings.position_embedding.weight, std=0.1)


def _places(down: Any, first: Any, second: Any) -> None:
    """Let the inner level say where it is: ``CONSTANTS`` constant channels, and as many that the first two
    residual blocks fill from them, large against what x gives, which near t = 1 is noise.

    A kernel with one tap beside its centre gives the constant, or zero where the border is that way. The
    second block does the same with what the first wrote, one step further in.
    """
    const, place = slice(0, CONSTANTS), slice(CONSTANTS, 2 * CONSTANTS)
    down.bias[: 2 * CONSTANTS] = 0
    down.bias[const] = PLACE
    sides = ((1, 0), (1, 2), (0, 1), (2, 1))
    for block, source, goal, number in ((first, const, place, 0), (second, place, place, 1)):
        kernels = block.depthwise.weight
        kernels[source] = 0
        block.depthwise.bias[source] = 0
        half = CONSTANTS // 2
        chosen = range(source.start, source.start + half) if number else range(source.start, source.stop)
        for index, channel in enumerate(chosen):
            row, column = sides[index % 4]
            kernels[channel, 0, row, column] = 1.0
        units = slice(0, 4)
        mlp = block.channelwise
        mlp[0].weight[units] = 0
        mlp[0].bias[units] = 0
        mlp[4].weight[:, units] = 0
        for index in range(4):
            mlp[0].weight[index, source.start + index] = 1.0
            mlp[4].weight[goal.start + number * half + index, index] = 1.0


def _plain_layer(layer: Any, held: slice, const: slice, width: int, gain: float) -> None:
    """A layer of the outer level that leaves ``held`` channels alone."""
    res, time, *attention = layer
    _gain(res.depthwise, const, gain)
    _time_zero(time, held, width)
    _silence(held, res, *attention)


def _silence(held: slice, *blocks: Any) -> None:
    """Let residual and attention blocks write nothing to ``held`` channels."""
    for block in blocks:
        out = block.attention.to_out[0] if hasattr(block, "attention") else block.channelwise[4]
        out.weight[held] = 0
        out.bias[held] = 0


def _beside_copy(mapper: Any, held: slice, free: slice) -> None:
    """Let a condition that is normed and added to the embedding speak through the free channels alone. The
    norm takes a mean away: the free channels sum to zero, so that there is none. It also makes the scale
    free: larger weights move less in a step, which keeps the rows of the copy near zero."""
    mapper.weight[held] = 0
    mapper.bias[held] = 0
    mapper.weight[free] -= mapper.weight[free].mean(0, keepdim=True)
    mapper.bias[free] -= mapper.bias[free].mean()
    mapper.weight *= STEADY
    mapper.bias *= STEADY


def _time_zero(block: Any, held: slice, width: int) -> None:
    """Let a time block leave ``held`` channels alone, and begin gently on the others."""
    names = ("mapper", "mapper_sca", "mapper_crp")
    for mapper in (getattr(block, name) for name in names if hasattr(block, name)):
        nn.init.normal_(mapper.weight, std=0.02)
        mapper.bias.zero_()
        mapper.weight[held] = 0
        mapper.weight[width + held.start : width + held.stop] = 0


def _gain(depthwise: Any, channels: slice, gain: float) -> None:
    """Depthwise kernels whose taps are random around a sum of about one, times ``gain``."""
    kernel = torch.rand_like(depthwise.weight[channels]) * (2 / 9)
    kernel[:, :, 1, 1] += 0.5
    depthwise.weight[channels] = kernel * gain
    depthwise.bias[channels] = 0


def _fit_time(net: Any, block: Any, copy: slice, points: int = 2048) -> None:
    """Fit √(1−ᾱ(t)) − 1 on the time embedding and put it into the scale of the ``copy`` channels."""

    from cascade_train.diffusion.schedule import alpha_sigma, logsnr, time_input

    log_snr = logsnr(torch.linspace(0.0, 1.0, points, dtype=torch.float64))
    times = time_input(log_snr)
    wanted = alpha_sigma(log_snr)[1] - 1
    seen = net.get_timestep_ratio_embedding(times.float()).double()
    # only the slow waves: fast ones fit the points and swing between them
    half = seen.shape[1] // 2
    slow = torch.arange(half // 2, half)
    columns = torch.cat([slow, slow + half])
    basis = torch.cat([seen[:, columns], torch.ones(points, 1, dtype=torch.float64)], dim=1)
    ridge = 1e-9 * torch.eye(basis.shape[1], dtype=torch.float64)
    solution = torch.linalg.solve(basis.T @ basis + ridge * points, basis.T @ wanted)
    rows = block.mapper.weight[copy]
    rows[:, columns] = solution[:-1].float().expand(rows.shape[0], -1)
    block.mapper.bias[copy] = solution[-1].float()


def _open_blocks(stage_a: Any) -> None:
    """Give Stage A's blocks a gain of 1; at the official 0 they only begin to learn after a while."""
    for name, value in stage_a.named_parameters():
        if name.endswith("gammas"):
            value.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0]))
    nn.init.normal_(stage_a.vquantizer.codebook.weight, std=1.0)


def _settings(part: Part, config: str) -> dict[str, Any]:
    if config in ("", "nano", "quick"):
        return nano_parts.config(part, config)
    try:
        value = json.loads(config)
    except ValueError:
        raise CascadeError(f"'{config[:60]}' is no configuration", fix="Use JSON, or none") from None
    return value.get(part, value)


def _seed_of(seed: int, part: Part) -> int:
    import hashlib

    return int.from_bytes(hashlib.sha256(f"{seed}|{part}".encode()).digest()[:8], "big") >> 1


__all__ = ["INITS", "initial", "scaled_copy"]
