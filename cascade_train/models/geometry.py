"""The sizes that a Stable Cascade works in, from headers and configurations alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cascade_train.models import layouts
from cascade_train.models.spec import ModelsSpec, PartFile


@dataclass(frozen=True)
class Geometry:
    """Sizes that follow from the models.

    ``latent_factor`` pixels a Stage C latent spans when encoding, ``stage_a_factor`` likewise for Stage A;
    ``native_side`` of a square picture in pixels; picture sides are multiples of ``size_multiple``; widths
    of the text states, the pooled text and the image embedding. ``smallest_grid`` is the least side in
    latents that Stage C can halve as often as it does, ``smallest_side`` the least of a drawn picture in
    pixels, which Stage B bounds too.
    """

    latent_factor: int = 32
    latent_channels: int = 16
    stage_a_factor: int = 4
    stage_a_channels: int = 4
    native_side: int = 768
    size_multiple: int = 32
    text_width: int = 1280
    pooled_width: int = 1280
    image_width: int = 768
    smallest_grid: int = 1
    smallest_side: int = 64


def geometry(spec: ModelsSpec) -> Geometry:
    """The sizes of the models, from headers and configurations; no weights are loaded.

    Parts that are absent leave the sizes of the others, or of the official models, in place.
    """
    return _geometry(spec.parts)


@lru_cache(maxsize=64)
def _geometry(files: tuple[PartFile, ...]) -> Geometry:
    from cascade_train.models import build

    values: dict[str, int] = {}
    for file in files:
        if file.part in ("image", "previewer"):
            continue
        config, _ = build.described(file)
        if file.part == "text":
            values |= {"text_width": config["hidden_size"], "pooled_width": config["projection_dim"]}
            values |= {key: int(n) for key, n in config.get("cascade_geometry", {}).items()}
        elif file.part == "compressor":
            values["latent_factor"] = layouts.factor_of(config["blocks"])
        elif file.part == "stage_c":
            values["latent_channels"] = config["in_channels"]
            if config.get("clip_image_in_channels"):
                values["image_width"] = config["clip_image_in_channels"]
            values["smallest_grid"] = _smallest(config)
        elif file.part == "stage_b":
            values["smallest_side"] = _smallest(config)
        elif file.part == "stage_a":
            values["stage_a_channels"] = int(config["latent"])
    base = Geometry(**values)
    if "smallest_side" in values:
        values["smallest_side"] *= base.stage_a_factor
    least = max(base.smallest_side, base.smallest_grid * base.latent_factor)
    # Stage B cuts Stage A's latents into patches of 2, so sides are multiples of 8 at least
    multiple = max(base.latent_factor, 2 * base.stage_a_factor)
    return Geometry(
        **{
            **values,
            "size_multiple": multiple,
            "smallest_side": -(-least // multiple) * multiple,
            "native_side": values.get("native_side", 24 * base.latent_factor),
        }
    )


def _smallest(config: Mapping[str, Any]) -> int:
    """The least side of a U-Net's input: one that is whole patches and can be halved between its levels."""
    switches = config.get("switch_level")
    levels = len(config["block_out_channels"]) - 1
    halvings = levels if switches is None else sum(map(bool, switches))
    return int(config["patch_size"]) * 2**halvings
