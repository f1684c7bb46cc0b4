"""From a text, a picture or both to pictures: Stage C, then Stage B, then Stage A."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cascade_train.diffusion.samplers import RescaleOf, SamplerName, SamplerSettings
from cascade_train.errors import CascadeError
from cascade_train.host.progress import Progress, part_of, silent
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import stages
from cascade_train.sampling.conditioning import Conditioning, encode_prompts, with_image
from cascade_train.sampling.sizes import PictureSize, picture_size


def text_to_image(
    models: ModelsSpec,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    width: int = 0,
    height: int = 0,
    negative: str = "",
    steps_c: int = 20,
    cfg_c: float = 4.0,
    rescale: float = 0.7,
    steps_b: int = 10,
    cfg_b: float = 1.1,
    sampler: SamplerName = "ddpm",
    shift: float = 0.0,
    start: Tensor | None = None,
    strength: float = 1.0,
    variation_of: Tensor | None = None,
    device: str = "cpu",
    progress: Progress = silent,
    preview: bool = True,
    rescale_of: RescaleOf = "answer",
) -> Tensor:
    """Pictures (N, H, W, 3) in [0, 1], one for each of the N ``seeds``.

    Args:
        prompts: one text for all, or N texts.
        seeds: each picture's own; picture i depends on ``prompts[i]`` and ``seeds[i]`` and on no other.
        width, height: in pixels; 0 is the models' native side.
        steps_c, cfg_c, rescale, steps_b, cfg_b, sampler, shift, rescale_of: see `SamplerSettings`; shift is
            Stage C's, 0 the models' own.
        start: pictures (1 or N, H, W, 3) to begin from, of the size that is drawn (image to image), taken
            back towards noise by ``strength`` (above 0, at most 1).
        variation_of: pictures (1 or N, H, W, 3) whose CLIP image embedding conditions Stage C.
        progress: called after every step, with a preview now and then where there is a previewer.

    Raises:
        CascadeError: counts or sizes that do not fit together, or a part that the models do not have.
    """
    if not prompts:
        raise CascadeError("there is no prompt", fix="Write at least one line of text")
    size = picture_size(library.geometry(models), width, height)
    both = encode_prompts(models, [*prompts, negative], device)
    condition, empty = both.rows(0, len(prompts)), both.rows(len(prompts), len(prompts) + 1)
    condition = condition.repeated(len(seeds))
    for_c = condition if variation_of is None else with_image(models, condition, variation_of, device)
    latents = None if start is None else stages.encode_c(models, fitted(start, size), device)
    batches = -(-len(seeds) // stages.BATCH)
    total = (steps_c + steps_b) * batches
    c = stages.sample_c(
        models,
        for_c,
        empty,
        seeds=seeds,
        size=size.stage_c,
        settings=SamplerSettings(
            steps_c, cfg_c, rescale, sampler, shift or library.own_shift(models), rescale_of
        ),
        start=latents,
        strength=strength,
        device=device,
        progress=part_of(progress, 0, total),
        preview=preview,
    )
    return decode_latents(
        models,
        c,
        condition,
        empty,
        seeds=seeds,
        size=size,
        settings=SamplerSettings(steps_b, cfg_b, rescale, sampler, rescale_of=rescale_of),
        device=device,
        progress=part_of(progress, steps_c * batches, total),
    )


def image_to_image(
    models: ModelsSpec,
    images: Tensor,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    strength: float,
    **settings: object,
) -> Tensor:
    """`text_to_image` that begins from ``images`` (1 or N, H, W, 3): a larger ``strength`` keeps less."""
    settings = {"height": images.shape[1], "width": images.shape[2], **settings}
    return text_to_image(models, prompts, seeds=seeds, start=images, strength=strength, **settings)  # type: ignore[arg-type]


def decode_latents(
    models: ModelsSpec,
    latents: Tensor,
    condition: Conditioning,
    negative: Conditioning,
    *,
    seeds: Sequence[int],
    size: PictureSize,
    settings: SamplerSettings = stages.STAGE_B,
    device: str = "cpu",
    progress: Progress = silent,
) -> Tensor:
    """Pictures (B, H, W, 3) in [0, 1] of Stage C latents, through Stage B and Stage A."""
    b = stages.sample_b(
        models,
        latents,
        condition,
        negative,
        seeds=seeds,
        size=size.stage_b,
        settings=settings,
        device=device,
        progress=progress,
    )
    return stages.decode_a(models, b, device)


def reconstruct(
    models: ModelsSpec,
    images: Tensor,
    *,
    seeds: Sequence[int] | None = None,
    steps_b: int = 10,
    cfg_b: float = 1.0,
    device: str = "cpu",
    progress: Progress = silent,
) -> Tensor:
    """``images`` (B, H, W, 3) in [0, 1] through the semantic compressor, Stage B and Stage A: what is lost
    before Stage C has done anything."""
    size = picture_size(library.geometry(models), images.shape[2], images.shape[1])
    latents = stages.encode_c(models, fitted(images, size), device)
    empty = encode_prompts(models, [""], device)
    return decode_latents(
        models,
        latents,
        empty,
        empty,
        seeds=seeds or range(len(images)),
        size=size,
        settings=SamplerSettings(steps_b, cfg_b),
        device=device,
        progress=progress,
    )


def fitted(images: Tensor, size: PictureSize) -> Tensor:
    """``images`` (B, H, W, 3) resized so that the compressor's grid is the one that is sampled at.

    Full-size models sample 1024 pixels on a grid of 24, which is what 768 pixels encode to.
    """
    if images.ndim != 4 or images.shape[-1] < 3:
        raise CascadeError(f"a picture of shape {tuple(images.shape)}", fix="Give (B, H, W, 3)")
    from torch.nn.functional import interpolate

    if tuple(images.shape[1:3]) == size.encoded:
        return images[..., :3]
    resized = interpolate(
        images[..., :3].permute(0, 3, 1, 2), size=size.encoded, mode="bicubic", antialias=True
    )
    return resized.clamp(0, 1).permute(0, 2, 3, 1)
