"""The inference chain over what travels on ComfyUI's own links: CONDITIONING, LATENT, IMAGE.

A CONDITIONING is ``[[hidden (1, L, D), {"pooled_output": (1, D), …}]]`` and a LATENT
``{"samples": tensor}``, as in core. Tensors that arrive are cloned: they may be shared and may have been
made in inference mode.
"""

from __future__ import annotations

from math import prod
from typing import Any

from torch import Tensor

from cascade_train.diffusion.samplers import RescaleOf, SamplerName, SamplerSettings
from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.host.progress import progress_of
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import stages
from cascade_train.sampling.conditioning import Conditioning, encode_prompts, say_too_long, with_image
from cascade_train.sampling.kept import kept_latents
from cascade_train.sampling.pipeline import fitted
from cascade_train.sampling.sizes import picture_size, sampling_factor

ConditioningLink = list[list[Any]]
Latent = dict[str, Any]
PICTURE = "cascade_picture"
"""Key of a Stage C LATENT that remembers (height, width) of the picture in pixels."""


def to_link(condition: Conditioning) -> ConditioningLink:
    """One picture's conditions as CONDITIONING."""
    extra: dict[str, Any] = {"pooled_output": condition.pooled[:, 0].cpu()}
    if condition.image is not None:
        extra["clip_image"] = condition.image[:, 0].cpu()
    return [[condition.hidden.cpu(), extra]]


def from_link(link: ConditioningLink) -> Conditioning:
    """The conditions in a CONDITIONING.

    Raises:
        CascadeError: it has no pooled text, or several entries.
    """
    if len(link) != 1 or link[0][1].get("pooled_output") is None:
        raise CascadeError(
            "this conditioning is not one of Stable Cascade", fix="Make it with Encode Text (Cascade)"
        )
    hidden, extra = link[0]
    image = extra.get("clip_image")
    return Conditioning(
        hidden.clone(),
        extra["pooled_output"].clone().unsqueeze(1),
        None if image is None else image.clone().unsqueeze(1),
    )


def encode_prompt(models: ModelsSpec, text: str, image: Tensor | None, host: Host) -> ConditioningLink:
    """``text`` as CONDITIONING, with the CLIP embedding of ``image``'s first (B, H, W, 3) where it is given.

    Raises:
        CascadeError: an image, and the models have no image encoder.
    """
    say_too_long(models, [text], host)
    condition = encode_prompts(models, [text], host.device)
    if image is not None:
        library.ask_for_room(models, ("image",), host)
        condition = with_image(models, condition, image[:1].clone(), host.device)
    return to_link(condition)


def sample_stage_c(
    models: ModelsSpec,
    positive: ConditioningLink,
    host: Host,
    *,
    seed: int,
    pictures: int,
    width: int,
    height: int,
    steps: int,
    cfg: float,
    rescale: float,
    sampler: SamplerName,
    shift: float,
    strength: float,
    negative: ConditioningLink | None = None,
    latent: Latent | None = None,
    rescale_of: RescaleOf = "answer",
) -> Latent:
    """Stage C latents of ``pictures`` pictures, or of as many as ``latent`` holds when that is more."""
    start = None if latent is None else samples_of(latent, 16, "Sample Stage C").clone()
    if latent is not None and not (width or height):
        height, width = latent.get(PICTURE, (0, 0))
    if start is not None and start.shape[0] > 1:
        pictures = start.shape[0]
    size = picture_size(library.geometry(models), width, height)
    condition, empty = from_link(positive), _or_empty(models, negative, host)
    seeds = range(seed, seed + pictures)
    shift = shift or library.own_shift(models)
    settings = SamplerSettings(steps, cfg, rescale, sampler, shift, rescale_of)

    def draw() -> Tensor:
        library.ask_for_room(models, ("stage_c",), host, stages.C_BYTES * prod(size.stage_c))
        return stages.sample_c(
            models,
            condition,
            empty,
            seeds=seeds,
            size=size.stage_c,
            settings=settings,
            start=start,
            strength=strength,
            device=host.device,
            progress=progress_of(host),
        )

    follows = {"stage": "c", "size": size.stage_c, "start": start, "strength": strength}
    follows |= _follows(models, condition, empty, seeds, settings)
    return {"samples": kept_latents(host, follows, draw), PICTURE: size.picture}


def decode_stage_b(
    models: ModelsSpec,
    stage_c: Latent,
    host: Host,
    *,
    seed: int,
    steps: int,
    cfg: float,
    sampler: SamplerName,
    width: int,
    height: int,
    positive: ConditioningLink | None = None,
    negative: ConditioningLink | None = None,
    rescale: float = 0.7,
    rescale_of: RescaleOf = "answer",
) -> Latent:
    """Stage A's latents; the picture's size is that of ``stage_c`` unless given."""
    latents = samples_of(stage_c, 16, "Decode Stage B").clone()
    geometry = library.geometry(models)
    if not (width or height):
        factor = sampling_factor(geometry)
        multiple = 2 * geometry.stage_a_factor
        height, width = stage_c.get(PICTURE) or (
            int(side * factor) // multiple * multiple for side in latents.shape[2:]
        )
    size = picture_size(geometry, width, height)
    empty = _or_empty(models, negative, host)
    condition = from_link(positive) if positive is not None else empty
    seeds = range(seed, seed + latents.shape[0])
    settings = SamplerSettings(steps, cfg, rescale, sampler, rescale_of=rescale_of)

    def draw() -> Tensor:
        library.ask_for_room(models, ("stage_b",), host, stages.B_BYTES * prod(size.stage_b))
        return stages.sample_b(
            models,
            latents,
            condition,
            empty,
            seeds=seeds,
            size=size.stage_b,
            settings=settings,
            device=host.device,
            progress=progress_of(host),
        )

    follows = {"stage": "b", "size": size.stage_b, "latents": latents}
    return {
        "samples": kept_latents(host, follows | _follows(models, condition, empty, seeds, settings), draw)
    }


def decode_stage_a(models: ModelsSpec, stage_b: Latent, host: Host) -> Tensor:
    """Pictures (B, H, W, 3) in [0, 1] of Stage B's latents."""
    latents = samples_of(stage_b, 4, "Decode Stage A").clone()
    library.ask_for_room(models, ("stage_a",), host, stages.A_BYTES * prod(latents.shape[2:]))
    return stages.decode_a(models, latents, host.device)


def encode_stage_c(models: ModelsSpec, image: Tensor, host: Host) -> Latent:
    """Stage C's latents of pictures (B, H, W, 3) in [0, 1], resized to a size that can be drawn."""
    size = picture_size(library.geometry(models), *_rounded(models, image))
    library.ask_for_room(models, ("compressor",), host, stages.COMPRESSOR_BYTES * prod(size.encoded))
    latents = stages.encode_c(models, fitted(image.clone(), size), host.device)
    return {"samples": latents, PICTURE: size.picture}


def encode_stage_a(models: ModelsSpec, image: Tensor, host: Host) -> Latent:
    """Stage B's latents of pictures (B, H, W, 3) in [0, 1].

    Raises:
        CascadeError: a side that Stage A and Stage B cannot draw.
    """
    size = picture_size(library.geometry(models), image.shape[2], image.shape[1])
    library.ask_for_room(models, ("stage_a",), host, stages.A_BYTES * prod(size.stage_b))
    return {"samples": stages.encode_a(models, image.clone(), host.device)}


def preview_latent(models: ModelsSpec, stage_c: Latent, host: Host) -> Tensor:
    """Small pictures (B, H, W, 3) in [0, 1] of Stage C's latents, by the previewer."""
    latents = samples_of(stage_c, 16, "Preview Latent").clone()
    library.ask_for_room(models, ("previewer",), host, stages.PREVIEWER_BYTES * prod(latents.shape[2:]))
    return stages.preview_latents(models, latents, host.device)


def samples_of(latent: Latent, channels: int, node: str) -> Tensor:
    """The tensor of a LATENT; CascadeError when it is of another stage."""
    samples = latent["samples"]
    if samples.ndim != 4 or samples.shape[1] != channels:
        stage = "Stage C" if channels == 16 else "Stage B"
        raise CascadeError(
            f"{node} was given latents of shape {tuple(samples.shape)}",
            fix=f"It takes {stage} latents, which have {channels} channels",
        )
    return samples


def _rounded(models: ModelsSpec, image: Tensor) -> tuple[int, int]:
    """(width, height) of ``image`` rounded to what can be drawn."""
    geometry = library.geometry(models)
    multiple = 2 * geometry.stage_a_factor
    height, width = (
        max(geometry.latent_factor, round(side / multiple) * multiple) for side in image.shape[1:3]
    )
    return width, height


def _follows(
    models: ModelsSpec, condition: Conditioning, empty: Conditioning, seeds: range, settings: SamplerSettings
) -> dict[str, Any]:
    """What latents of either stage follow from."""
    return {
        "models": models.digest,
        "positive": _told(condition),
        "negative": _told(empty),
        "seeds": [seeds.start, seeds.stop],
        "settings": settings.told(),
    }


def _told(condition: Conditioning) -> dict[str, Any]:
    # a link holds one text, which has all its positions
    return {"hidden": condition.hidden, "pooled": condition.pooled, "image": condition.image}


def _or_empty(models: ModelsSpec, link: ConditioningLink | None, host: Host) -> Conditioning:
    if link is not None:
        return from_link(link)
    library.ask_for_room(models, ("text",), host)
    return encode_prompts(models, [""], host.device)


__all__ = [
    "decode_stage_a",
    "decode_stage_b",
    "encode_prompt",
    "encode_stage_a",
    "encode_stage_c",
    "from_link",
    "preview_latent",
    "sample_stage_c",
    "samples_of",
    "to_link",
]
