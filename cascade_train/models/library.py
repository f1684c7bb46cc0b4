"""Which files make up a Stable Cascade, what sizes they work in, and the modules, loaded once and shared."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cascade_train.errors import CascadeError
from cascade_train.host.base import lies_in, slashed, stays_in
from cascade_train.models import layouts, weights
from cascade_train.models.spec import AUTO, AppliedRun, ModelsSpec, Part, PartFile, Precision, Variant

if TYPE_CHECKING:
    from torch import nn

    from cascade_train.host.base import Host

NANO = "nano"
FILES = "files"
SOURCES = (NANO, FILES)
"""What `load_models` takes: the bundled nano models, or files in the host's model folders."""

OFFICIAL: dict[Part, dict[str, tuple[str, ...]]] = {
    "stage_c": {
        "full": ("stage_c_bf16.safetensors", "stage_c.safetensors"),
        "lite": ("stage_c_lite_bf16.safetensors", "stage_c_lite.safetensors"),
    },
    "stage_b": {
        "full": ("stage_b_bf16.safetensors", "stage_b.safetensors"),
        "lite": ("stage_b_lite_bf16.safetensors", "stage_b_lite.safetensors"),
    },
    "stage_a": {"": ("stage_a.safetensors",)},
    "compressor": {"": ("effnet_encoder.safetensors",)},
    "previewer": {"": ("previewer.safetensors",)},
    "text": {"": ("stable_cascade_text_encoder", "stable-cascade/text_encoder", "text_encoder")},
    "image": {"": ("stable_cascade_image_encoder", "stable-cascade/image_encoder", "image_encoder")},
}
"""Names looked for in the host's model folders when none is given. Text and image are folders in Hugging
Face layout."""

MODEL_FOLDERS: dict[Part, tuple[str, ...]] = {
    "stage_c": ("diffusion_models", "unet", "checkpoints"),
    "stage_b": ("diffusion_models", "unet", "checkpoints"),
    "stage_a": ("vae",),
    "compressor": ("vae", "controlnet"),
    "previewer": ("vae", "vae_approx"),
    "text": ("text_encoders", "clip"),
    "image": ("clip_vision",),
}
"""ComfyUI's folder names that each part is looked for in, in order."""

REQUIRED: tuple[Part, ...] = ("compressor", "stage_c", "stage_b", "stage_a", "text")

CACHE_SIZE = 16
"""Modules kept loaded; the one used longest ago goes first."""


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


def nano_folder() -> Path:
    """The folder of the bundled nano models."""
    return Path(__file__).resolve().parent / NANO


def load_models(
    source: str = NANO,
    *,
    host: Host,
    variant: Variant = "full",
    precision: Precision | Literal["auto"] = "fp32",
    files: Mapping[Part, str] | None = None,
) -> ModelsSpec:
    """Describe a Stable Cascade; files are found and identified, nothing is loaded.

    Args:
        source: ``nano`` (or empty) for the bundled models, ``files`` for files of the host.
        variant: which official Stages B and C to look for, when their names are not given.
        precision: what the modules are held in; training keeps its own fp32 copies. ``auto`` is fp32 for
            nano, and for files what `suited` says.
        files: file (or, for text and image, folder) names by part, as they lie in the host's model folders
            or as paths that may be read. Parts left out are looked for by their official names.

    Raises:
        CascadeError: a part is not found, or a file is not of its part. All missing parts are named at once.
    """
    if source in ("", NANO):
        return models_in(nano_folder(), name=NANO, precision="fp32" if precision == AUTO else precision)  # type: ignore[arg-type]
    if source != FILES:
        raise CascadeError(f"there are no models called '{source}'", fix=f"One of {', '.join(SOURCES)}")
    found: list[PartFile] = []
    missing: list[str] = []
    for part in OFFICIAL:
        given = (files or {}).get(part, "")
        path = _named(part, given, host) if given else _official(part, variant, host)
        if path is not None:
            found.append(_part_file(part, path))
        elif part in REQUIRED:
            names = OFFICIAL[part].get(variant) or OFFICIAL[part].get("", ())
            missing.append(f"{part} ({names[0]} in {MODEL_FOLDERS[part][0]})")
    if missing:
        raise CascadeError(
            f"files of Stable Cascade are missing: {', '.join(missing)}",
            fix="Put them into ComfyUI's model folders, name them, or use the bundled nano",
        )
    if precision == AUTO:
        precision = suited(host.device)
    return ModelsSpec(name=f"Stable Cascade {variant}", parts=tuple(found), precision=precision)  # type: ignore[arg-type]


def suited(device: str) -> Precision:
    """What full-size models are best held in on ``device``: bf16 where a GPU computes in it, else fp32.

    A GPU without it, such as one of before 2020, would take bf16 apart in fp32; a CPU is often slower in it.
    """
    if not device.startswith("cuda"):
        return "fp32"
    import torch

    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


def models_in(folder: Path, *, name: str, precision: Precision = "fp32") -> ModelsSpec:
    """The models whose parts lie in ``folder`` as ``<part>.safetensors``, and ``text`` as a folder."""
    parts = []
    for part in OFFICIAL:
        path = folder / part if part in ("text", "image") else folder / f"{part}.safetensors"
        if path.exists():
            parts.append(_part_file(part, path))
    if not parts:
        raise CascadeError(
            "there are no models in this folder",
            where=str(folder),
            fix="Install the package with its data files, or run: cascade-train nano make",
        )
    return ModelsSpec(name=name, parts=tuple(parts), precision=precision)


def has(spec: ModelsSpec, part: Part) -> bool:
    """Whether the models include ``part``."""
    return any(file.part == part for file in spec.parts)


def part_file(spec: ModelsSpec, part: Part) -> PartFile:
    """The file of ``part``; CascadeError when the models have none."""
    for file in spec.parts:
        if file.part == part:
            return file
    raise CascadeError(
        f"the models '{spec.name}' have no {part}", fix="Load them with that part, or leave out what needs it"
    )


def geometry(spec: ModelsSpec) -> Geometry:
    """The sizes of the models, from headers and configurations; no weights are loaded.

    Parts that are absent leave the sizes of the others, or of the official models, in place.
    """
    return _geometry(tuple((file.part, file.path, file.content) for file in spec.parts))


def part(spec: ModelsSpec, part: Part, device: str = "cpu") -> nn.Module:
    """The module of ``part``, in eval mode and without gradients, on ``device``.

    It is shared: never change it, train a deep copy. ``text`` has its tokenizer as ``module.tokenizer``.
    Runs applied to the models are laid over a copy.

    Raises:
        CascadeError: the models lack the part, or its file is broken.
    """
    file = part_file(spec, part)
    runs = _touching(spec, part)
    applied = tuple((run.position, run.strength) for run in runs)
    key = (part, file.content, spec.precision, applied, str(device))
    with _LOCK:
        if key in _CACHE:
            _CACHE.move_to_end(key)
            return _CACHE[key]
        if runs:  # each trained copy takes as much memory as the part itself: keep one, the newest
            for other in [each for each in _CACHE if each[0] == part and each[3]]:
                del _CACHE[other]
        module = _loaded(spec.precision, part, file, runs, device)
        _CACHE[key] = module
        while len(_CACHE) > CACHE_SIZE:
            _CACHE.popitem(last=False)
        return module


def forget() -> None:
    """Drop every loaded module that nobody else holds."""
    with _LOCK:
        _CACHE.clear()


_CACHE: OrderedDict[tuple[Any, ...], nn.Module] = OrderedDict()
_LOCK = threading.RLock()


def _touching(spec: ModelsSpec, part_name: Part) -> tuple[AppliedRun, ...]:
    """The applied runs that change ``part_name``; the other parts are shared with the models as they were."""
    if not spec.applied:
        return ()
    from cascade_train.models import applied

    return tuple(run for run in spec.applied if applied.touches(run, part_name))


def _loaded(
    precision: Precision, part_name: Part, file: PartFile, runs: tuple[AppliedRun, ...], device: str
) -> nn.Module:
    import torch

    from cascade_train.models import build

    # ordinary tensors, whatever mode the caller is in: inference tensors could never be trained on a copy
    with torch.inference_mode(False), torch.no_grad():
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        module = build.load(part_name, Path(file.path), dtype)
        if runs:
            from cascade_train.models import applied

            for run in runs:
                module = applied.lay_over(module, part_name, run)
        return module.to(device).eval().requires_grad_(False)


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


def _part_file(part_name: Part, path: Path) -> PartFile:
    return PartFile(part=part_name, content=_content(str(path), _stamp(path)), path=str(path))


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)


@lru_cache(maxsize=256)
def _content(path: str, _stamp: object) -> str:
    return weights.content_id(Path(path))


def _named(part_name: Part, name: str, host: Host) -> Path:
    for folder in MODEL_FOLDERS[part_name]:
        for root in host.folders.models.get(folder, ()):
            candidate = root / slashed(name)
            inside = lies_in(candidate, root) if host.folders.follow_links else stays_in(candidate, root)
            if candidate.exists() and inside:
                return candidate
    return host.folders.resolve_read(name, what=f"{part_name} file")


def _official(part_name: Part, variant: str, host: Host) -> Path | None:
    names = OFFICIAL[part_name].get(variant) or OFFICIAL[part_name].get("", ())
    for folder in MODEL_FOLDERS[part_name]:
        for root in host.folders.models.get(folder, ()):
            for name in names:
                for place in (root, root / "stable-cascade", root / "Stable-Cascade"):
                    if (place / name).exists():
                        return place / name
    return None
