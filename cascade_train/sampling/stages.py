"""Stage C, Stage B and Stage A, each as one function over whole batches of pictures.

Latents are in ComfyUI's scale: Stage C's 16 channels as the network sees them, Stage B's 4 channels as
Stage A does (0.43 of what Stage B's network sees). Pictures are (B, H, W, 3) floats in [0, 1]. Random numbers
depend on a picture's own seed alone; a picture sampled in another batch differs by no more than the rounding
of batched kernels (about 1e-4 in fp32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cascade_train.diffusion.noise import batch_noise
from cascade_train.diffusion.samplers import (
    STAGE_B_NOISE,
    STAGE_C_NOISE,
    SamplerSettings,
    sample,
    sampling_logsnrs,
)
from cascade_train.diffusion.targets import Objective, noised
from cascade_train.drawing.paper import tiled, to_pictures
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, silent
from cascade_train.models import compressor, library, owner
from cascade_train.models.finite import given, made
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.stage_a import SCALE
from cascade_train.models.text import marked
from cascade_train.models.weights import PREDICTS
from cascade_train.sampling import tiles
from cascade_train.sampling.conditioning import Conditioning, as_long
from cascade_train.sampling.guidance import guided_network

if TYPE_CHECKING:
    from PIL import Image

STAGE_C = SamplerSettings(steps=20, cfg=4.0, rescale=0.7)
STAGE_B = SamplerSettings(steps=10, cfg=1.1, rescale=0.7)
BATCH = 16
"""Pictures that go through a network together at most; more only costs memory."""
A_BYTES, B_BYTES, C_BYTES, COMPRESSOR_BYTES, PREVIEWER_BYTES = 36_000, 12_000, 250_000, 1_200, 300_000
"""About how many bytes the full-size networks take for each latent pixel (the compressor: each pixel) of a
picture in fp32, guidance included; pieces are sized by them."""
TILE = 128
"""Side in latents of Stage A's tiles, where a whole picture does not fit."""
EachStep = Callable[[int, int, Tensor], None]
"""Called with (steps done, steps, clean estimate)."""
PREVIEW_EVERY = 5
"""Steps between previews."""


def sample_c(
    models: ModelsSpec,
    condition: Conditioning,
    negative: Conditioning,
    *,
    seeds: Sequence[int],
    size: tuple[int, int],
    settings: SamplerSettings = STAGE_C,
    start: Tensor | None = None,
    strength: float = 1.0,
    device: str = "cpu",
    progress: Progress = silent,
    preview: bool = True,
) -> Tensor:
    """Draw Stage C latents (B, 16, h, w), B the number of ``seeds``.

    Args:
        size: (h, w) of the latents; `sizes.picture_size` gives it for a picture.
        start: latents (B or 1, 16, h, w) to begin from (image to image).
        strength: how far ``start`` is taken back towards noise, above 0 and at most 1; 1 forgets it.

    Raises:
        CascadeError: a strength out of range, counts that do not fit together, or numbers that are none,
            given or made.
    """
    if not 0.0 < strength <= 1.0:
        raise CascadeError(f"a strength of {strength}", fix="Use a number above 0 and at most 1")
    condition, negative = (each.repeated(len(seeds)).to(device) for each in (condition, negative))
    shape = (library.geometry(models).latent_channels, *size)
    begin = strength if start is not None else 1.0
    if start is not None:
        start = _as_many(start, len(seeds), shape)
        given(start, "the latents given to Stage C")
    for each in (condition, negative):
        each.check("Stage C")
    levels = sampling_logsnrs(settings.steps, settings.shift, begin).to(device)

    def chunk(first: int, last: int, each_step: EachStep) -> Tensor:
        noise = batch_noise(seeds[first:last], 0, shape, STAGE_C_NOISE).to(device)
        x = noise if start is None else noised(start[first:last].to(device), noise, levels[0])
        with library.use(models, "stage_c", device) as network:
            return _walked(
                network,
                settings,
                condition.rows(first, last),
                negative.rows(first, last),
                x,
                levels,
                seeds[first:last],
                each_step=each_step,
                objective=predicts(network),
            )

    shows = preview and library.has(models, "previewer")
    return _in_chunks(
        chunk,
        len(seeds),
        settings.steps,
        "Stage C",
        progress,
        (lambda clean: preview_picture(models, clean, device)) if shows else None,
        models,
        each=C_BYTES * size[0] * size[1],
        device=device,
    )


def sample_network(
    network: Any,
    condition: Conditioning,
    negative: Conditioning,
    *,
    seeds: Sequence[int],
    size: tuple[int, int],
    settings: SamplerSettings = STAGE_C,
    objective: Objective = "epsilon",
) -> Tensor:
    """`sample_c` from noise, in one batch, with a Stage C of one's own, such as one in training.

    Conditions are on its device and have a row for each seed. ``objective`` is what it predicts.

    Raises:
        CascadeError: it makes numbers that are none.
    """
    noise = batch_noise(seeds, 0, (network.config.in_channels, *size), STAGE_C_NOISE)
    device = condition.pooled.device
    levels = sampling_logsnrs(settings.steps, settings.shift).to(device)
    drawn = _walked(
        network, settings, condition, negative, noise.to(device), levels, seeds, objective=objective
    )
    return made(drawn.cpu(), "Stage C", "latents")


def _walked(
    network: Any,
    settings: SamplerSettings,
    condition: Conditioning,
    negative: Conditioning,
    x: Tensor,
    levels: Tensor,
    seeds: Sequence[int],
    each_step: EachStep | None = None,
    objective: Objective = "epsilon",
) -> Tensor:
    """Stage C's ``x`` walked down ``levels`` in one batch."""
    condition, negative = as_long(condition, negative)
    denoise = guided_network(
        network, settings, _inputs(network, condition), _inputs(network, negative), objective
    )
    return sample(
        denoise,
        x,
        levels,
        seeds,
        sampler=settings.sampler,
        stream=STAGE_C_NOISE,
        objective=objective,
        each_step=each_step,
    )


def sample_b(
    models: ModelsSpec,
    latents: Tensor,
    condition: Conditioning,
    negative: Conditioning,
    *,
    seeds: Sequence[int],
    size: tuple[int, int],
    settings: SamplerSettings = STAGE_B,
    device: str = "cpu",
    progress: Progress = silent,
) -> Tensor:
    """Draw Stage B latents (B, 4, h, w) from Stage C latents (B, 16, …); ``size`` is (h, w).

    The unconditional pass sees zeros for Stage C's latents and ``negative`` for the text.

    Raises:
        CascadeError: a size that it cannot draw, or numbers that are none, given or made.
    """
    given(latents, "the latents given to Stage B")
    with library.use(models, "stage_b", device) as network:
        patch, channels = network.config.patch_size, network.config.in_channels
    if size[0] % patch or size[1] % patch:
        raise CascadeError(f"Stage B latents of {size[1]}×{size[0]}", fix=f"Use sides divisible by {patch}")
    for each in (condition, negative):
        each.check("Stage B")
    condition, negative = (each.repeated(len(seeds)).to(device) for each in (condition, negative))
    latents = _as_many(latents, len(seeds), tuple(latents.shape[1:])).to(device)
    shape = (channels, *size)
    levels = sampling_logsnrs(settings.steps, settings.shift).to(device)

    def chunk(first: int, last: int, each_step: EachStep) -> Tensor:
        noise = batch_noise(seeds[first:last], 0, shape, STAGE_B_NOISE).to(device)
        semantic = latents[first:last]
        with library.use(models, "stage_b", device) as network:
            denoise = guided_network(
                network,
                settings,
                {"clip_text_pooled": condition.rows(first, last).pooled, "effnet": semantic},
                {"clip_text_pooled": negative.rows(first, last).pooled, "effnet": torch.zeros_like(semantic)},
                predicts(network),
            )
            return sample(
                denoise,
                noise,
                levels,
                seeds[first:last],
                sampler=settings.sampler,
                stream=STAGE_B_NOISE,
                objective=predicts(network),
                each_step=each_step,
            )

    room, steps = B_BYTES * size[0] * size[1], settings.steps
    with library.use(models, "stage_b", device):  # pieces fit beside it
        drawn = _in_chunks(
            chunk, len(seeds), steps, "Stage B", progress, None, models, each=room, device=device
        )
    return drawn * SCALE


@torch.no_grad()
def decode_a(models: ModelsSpec, latents: Tensor, device: str = "cpu") -> Tensor:
    """Pictures (B, H, W, 3) in [0, 1] of Stage B latents (B, 4, H/4, W/4).

    As many at a time as memory allows, which changes nothing; where not even one fits, in tiles that overlap
    by as much as a latent reaches.

    Raises:
        CascadeError: numbers that are none, given or made.
    """
    given(latents, "the latents given to Stage A")
    each = A_BYTES * latents.shape[-2] * latents.shape[-1]

    def pictures(rows: Tensor) -> Tensor:
        drawn = decoder.pictures(rows.to(device)).float().cpu()
        return made(drawn, "Stage A", "pictures", models).clamp(0, 1)

    def piece(first: int, last: int) -> Tensor:
        try:
            return owner.with_room(lambda: pictures(latents[first:last]), device)
        except torch.OutOfMemoryError:
            if last - first > 1 or min(latents.shape[-2:]) <= TILE:
                raise
        return tiles.tiled(pictures, latents[first:last], library.geometry(models).stage_a_factor, TILE)

    with library.use(models, "stage_a", device) as decoder:  # pieces fit beside it
        rows = owner.in_pieces(piece, len(latents), each, device, BATCH)
    return torch.cat(rows).permute(0, 2, 3, 1).contiguous()


@torch.no_grad()
def encode_a(models: ModelsSpec, images: Tensor, device: str = "cpu") -> Tensor:
    """Stage A latents (B, 4, H/4, W/4) of pictures (B, H, W, 3) in [0, 1]; raises as `decode_a` does."""
    pictures = _channels_first(given(images, "the pictures given to Stage A"))

    def piece(first: int, last: int) -> Tensor:
        with library.use(models, "stage_a", device) as encoder:
            latents = encoder.raw(pictures[first:last].to(device)).float().cpu()
        return made(latents, "Stage A", "latents", models)

    each = A_BYTES // 16 * pictures.shape[-2] * pictures.shape[-1]
    return torch.cat(owner.in_pieces(piece, len(pictures), each, device, BATCH))


@torch.no_grad()
def encode_c(models: ModelsSpec, images: Tensor, device: str = "cpu") -> Tensor:
    """Semantic latents (B, 16, h, w) of pictures (B, H, W, 3) in [0, 1]; raises as `decode_a` does."""
    pictures = _channels_first(given(images, "the pictures given to the semantic compressor"))

    def piece(first: int, last: int) -> Tensor:
        with library.use(models, "compressor", device) as encoder:
            latents = compressor.encode(encoder, pictures[first:last].to(device)).float().cpu()
        return made(latents, "the semantic compressor", "latents", models)

    each = COMPRESSOR_BYTES * pictures.shape[-2] * pictures.shape[-1]
    return torch.cat(owner.in_pieces(piece, len(pictures), each, device, BATCH))


@torch.no_grad()
def preview_latents(models: ModelsSpec, latents: Tensor, device: str = "cpu") -> Tensor:
    """Small rough pictures (B, H, W, 3) in [0, 1] of Stage C latents, by the previewer.

    Raises:
        CascadeError: the models have no previewer; numbers that are none, given or made.
    """
    given(latents, "the latents given to the previewer")
    if not library.has(models, "previewer"):
        raise CascadeError(f"'{models.name}' has no previewer", fix="Decode with Stage B and Stage A instead")

    def piece(first: int, last: int) -> Tensor:
        with library.use(models, "previewer", device) as previewer:
            drawn = previewer(latents[first:last].to(device)).float().cpu()
        return made(drawn, "the previewer", "pictures", models).clamp(0, 1)

    each = PREVIEWER_BYTES * latents.shape[-2] * latents.shape[-1]
    rows = owner.in_pieces(piece, len(latents), each, device, BATCH)
    return torch.cat(rows).permute(0, 2, 3, 1).contiguous()


def preview_picture(models: ModelsSpec, latents: Tensor, device: str = "cpu") -> Image.Image:
    """`preview_latents` side by side as one small picture, for a progress bar."""
    return tiled(to_pictures(preview_latents(models, latents[:4], device)))


def predicts(network: Any) -> Objective:
    """What ``network``, a part of models, was trained to answer."""
    return getattr(network, PREDICTS, "epsilon")


def _channels_first(images: Tensor) -> Tensor:
    return images[..., :3].permute(0, 3, 1, 2).contiguous()


def _as_many(latents: Tensor, count: int, shape: tuple[int, ...]) -> Tensor:
    if tuple(latents.shape[1:]) != tuple(shape):
        raise CascadeError(
            f"latents of shape {tuple(latents.shape[1:])} where {tuple(shape)} is needed",
            fix="Encode the picture at the size that is sampled",
        )
    if latents.shape[0] == 1:
        return latents.expand(count, *latents.shape[1:])
    if latents.shape[0] != count:
        raise CascadeError(f"{latents.shape[0]} latents for {count} pictures", fix="Give one, or one each")
    return latents


def _inputs(network: Any, condition: Conditioning) -> dict[str, Tensor]:
    inputs = {"clip_text_pooled": condition.pooled, "clip_text": marked(condition.hidden, condition.own)}
    width = network.config.clip_image_in_channels
    image = condition.image
    # The network leaves the text states out unless an image embedding comes with them; zeros are "none".
    inputs["clip_img"] = (
        image if image is not None else condition.pooled.new_zeros(len(condition), 1, width or 1)
    )
    return inputs


def _in_chunks(
    chunk: Callable[[int, int, EachStep], Tensor],
    count: int,
    steps: int,
    title: str,
    progress: Progress,
    preview: Callable[[Tensor], Image.Image] | None,
    models: ModelsSpec,
    *,
    each: int,
    device: str,
) -> Tensor:
    def piece(first: int, last: int) -> Tensor:
        def each_step(done: int, _steps: int, clean: Tensor) -> None:
            due = done % PREVIEW_EVERY == 0 or done == steps
            if due:
                made(clean, title, "latents", models)  # here, not at the end of all steps
            picture = preview(clean) if preview is not None and due else None
            number, within = divmod(first, BATCH)
            rows = min(BATCH, count - number * BATCH)  # a piece is a whole batch unless memory is short
            at = steps * number + (steps * within + done * (last - first)) // rows
            progress(at, steps * -(-count // BATCH), f"{title} {done}/{steps}", picture)

        return made(chunk(first, last, each_step).cpu(), title, "latents", models)

    return torch.cat(owner.in_pieces(piece, count, each, device, BATCH))
