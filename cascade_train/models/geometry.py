"""The sizes that a Stable Cascade works in, from headers and configurations alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cascade_train.models import layouts, weights
from cascade_train.models.spec import ModelsSpec, Part


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
    return _geometry(tuple((file.part, file.path, file.content) for file in spec.parts))


@lru_cache(maxsize=64)
def _geometry(files: tuple[tuple[Part, str, str], ...]) -> Geometry:
    from cascade_train.models import build

    values: dict[str, int] = {}
    for part_name, path, _ in files:
        if part_name in ("text", "image"):
            config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
            if part_name == "text":
                values |= {"text_width": config["hidden_size"], "pooled_width": config["projection_dim"]}
                values |= {key: int(n) for key, n in config.get("cascade_geometry", {}).items()}
            continue
        shapes, metadata = weights.read_header(Path(path))
        if part_name == "compressor":
            # the official file says no configuration, and is the one whose factor is the default
            stored = weights.config_of(metadata)
            if stored is not None:
                values["latent_factor"] = layouts.factor_of(stored["blocks"])
        elif part_name == "stage_c":
            config = build.config_for("stage_c", shapes, metadata)
            values["latent_channels"] = config["in_channels"]
            if config.get("clip_image_in_channels"):
                values["image_width"] = config["clip_image_in_channels"]
            values["smallest_grid"] = _smallest(config)
        elif part_name == "stage_b":
            values["smallest_side"] = _smallest(build.config_for("stage_b", shapes, metadata))
        elif part_name == "stage_a":
            stored = weights.config_of(metadata)
            codes = shapes.get("vquantizer.codebook.weight", (0, Geometry.stage_a_channels))
            values["stage_a_channels"] = int(stored["latent"] if stored is not None else codes[1])
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
