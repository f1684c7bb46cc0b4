"""From a part's file to a module: one builder for nano and for full-size models.

The configuration comes from the file's metadata; where there is none, it is read off the shapes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.models import clip, layouts, open_clip, reading, weights
from cascade_train.models.layouts import Shapes
from cascade_train.models.spec import Part, PartFile
from cascade_train.models.tensor_file import Later

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
# diffusers and peft import it where it is installed; on a CPU it then warns of products that nobody asked for


def config_for(part: Part, shapes: Shapes, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration of ``part`` stored with these tensors.

    Raises:
        CascadeError: the tensors are not those of this part.
    """
    said = (metadata or {}).get("part", part)
    if said != part:
        raise CascadeError(f"the file holds {said}, not {part}", fix="Choose the other file")
    stored = weights.config_of(metadata or {})
    if stored is not None:
        return stored
    try:
        if part in ("stage_c", "stage_b"):
            found = layouts.stage_of(shapes)
            if found != part:
                raise CascadeError(f"the file holds {found}, not {part}", fix="Choose the other file")
            return layouts.unet_config(shapes)
        if part == "stage_a":
            from dataclasses import asdict

            from cascade_train.models.shapes import StageAConfig

            named = {
                key.replace("vquantizer.embedding.", "vquantizer.codebook."): shapes[key] for key in shapes
            }
            return asdict(StageAConfig.from_shapes(named))
        if part == "compressor":
            from cascade_train.models.shapes import config_from_shapes

            return config_from_shapes(shapes)
        if part == "previewer":
            from cascade_train.models.shapes import widths_from_shapes

            return {"widths": list(widths_from_shapes(shapes))}
    except (KeyError, IndexError):
        raise CascadeError(f"the file does not hold {part}", fix="Choose the file of this part") from None
    raise CascadeError(f"{part} needs a folder with config.json")


def build(part: Part, config: Mapping[str, Any]) -> nn.Module:
    """The module of ``part``; its weights are the library's own initialisation (or nothing, on ``meta``).

    A network keeps ``config`` as it was given in ``module.config`` (Stages B and C: diffusers' own).
    """
    if part in ("stage_c", "stage_b"):
        from cascade_train.models.network import StageNetwork

        return StageNetwork(**{key: _tupled(value) for key, value in config.items()})
    if part == "stage_a":
        from cascade_train.models.shapes import StageAConfig
        from cascade_train.models.stage_a import StageA

        return StageA(StageAConfig(**config))
    if part == "compressor":
        from cascade_train.models.compressor import Compressor

        return Compressor(config["blocks"], config["last"])
    if part == "previewer":
        from cascade_train.models.previewer import Previewer

        return Previewer(config["widths"])
    if part == "text":
        from cascade_train.models.text import build_text_model

        return build_text_model(config)
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    return CLIPVisionModelWithProjection(CLIPVisionConfig(**settings))


def module_config(part: Part, module: nn.Module) -> dict[str, Any]:
    """The configuration that `build` makes ``module`` from, as plain JSON data."""
    if part in ("stage_c", "stage_b"):
        kept = {key: value for key, value in dict(module.config).items() if not key.startswith("_")}  # type: ignore
        return json.loads(json.dumps(kept))
    if part == "stage_a":
        from dataclasses import asdict

        return asdict(module.config)  # type: ignore
    if part == "compressor":
        return {"blocks": [list(row) for row in module.blocks], "last": module.last}  # type: ignore
    if part == "previewer":
        return {"widths": list(module.widths)}  # type: ignore
    return module.config.to_dict()  # type: ignore


def file_tensors(part: Part, module: nn.Module) -> dict[str, Tensor]:
    """The tensors of ``module`` as they are stored: native names for Stages B and C, buffers included."""
    state = module.state_dict()
    return layouts.to_native(state) if part in ("stage_c", "stage_b") else dict(state)


def load(
    part: Part,
    path: Path,
    dtype: torch.dtype | None = None,
    *,
    prefix: str | None = None,
    device: str = "cpu",
) -> nn.Module:
    """``part`` from a safetensors file or a folder in Hugging Face layout; in ``dtype`` (None: as stored), on
    ``device``, eval, without gradients.

    ``prefix`` stands before its names in the file; None looks for it.

    Raises:
        CascadeError: the file holds something else; tensors are missing, left over or of the wrong shape (the
            first few are named), or are not finite.
    """
    import torch

    where = prefix if prefix is not None else reading.prefix_in(part, path)
    file = PartFile(part, "", str(path), where)
    config, metadata = described(file)
    try:
        with torch.device("meta"):
            module = build(part, config)
    except (TypeError, KeyError, ValueError) as problem:
        raise CascadeError(
            f"the file's configuration is not one of {part}: {problem}",
            where=str(path),
            fix="Choose the file made for this part",
        ) from None
    put_into(module, reading.tensors(file, _RENAMES.get(part, _as_it_is), dtype, device), where=str(path))
    if part in ("text", "image"):
        clip.fill_positions(module, device)
    if part == "text":
        module.tokenizer = clip.load_tokenizer(path)
    else:
        setattr(module, weights.PREDICTS, weights.prediction(metadata))
    if device != "cpu":
        module.to(device)  # counters that the file lacks
    return module.eval().requires_grad_(False)


def stored(file: PartFile) -> dict[str, Later]:
    """The tensors of a part's file by their names in its module, as stored, each read when it is written.

    Counters of batch norms that the file lacks are zeros, as `load` fills them in.
    """
    import torch

    found = reading.stored(file, _RENAMES.get(file.part, _as_it_is))
    if file.part in ("stage_a", "compressor", "previewer"):
        with torch.device("meta"):
            module = build(file.part, described(file)[0])
        for name in module.state_dict():
            if name.endswith("num_batches_tracked"):
                found.setdefault(name, Later.of(torch.zeros((), dtype=torch.long)))
    return found


def described(file: PartFile) -> tuple[dict[str, Any], dict[str, str]]:
    """The configuration of a part's file, and the file's metadata; no tensors are read.

    Raises:
        CascadeError: the file does not hold the part.
    """
    shapes, metadata = reading.part_headers(file)
    if file.part in ("text", "image"):
        return clip.config_of(file.part, Path(file.path), shapes), metadata
    return config_for(file.part, shapes, metadata), metadata


def _as_it_is(key: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield key, value


def _stage_a_names(key: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield key.replace("vquantizer.embedding.", "vquantizer.codebook."), value  # diffusers' name


def _compressor_names(key: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if key not in ("mean", "std"):  # ComfyUI saves ImageNet's statistics with it
        yield key, value


def _clip_names(part: Part, key: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if "position_ids" in key or key in ("logit_scale", "attn_mask"):
        return
    names = open_clip.own_names(part, key)
    if not names:
        yield key, value
        return
    if key in open_clip.TURNED:
        value = value.t().contiguous()
    yield from zip(names, value.chunk(len(names), dim=0))


_RENAMES: dict[Part, Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]] = {
    "stage_c": layouts.in_diffusers,
    "stage_b": layouts.in_diffusers,
    "stage_a": _stage_a_names,
    "compressor": _compressor_names,
    "text": partial(_clip_names, "text"),
    "image": partial(_clip_names, "image"),
}
"""What a file's names are in the module."""


def save(
    part: Part,
    module: nn.Module,
    path: Path,
    *,
    half: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Store ``module`` in the native layout, in one visible step, with what it is, its configuration and
    ``metadata``."""
    about = {"part": part, **(metadata or {})}
    weights.write_tensors(
        path, file_tensors(part, module), module_config(part, module), half=half, metadata=about
    )


def put_into(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Put ``tensors`` into ``module`` (which may lie on ``meta``): all of them, and of the right shapes."""
    import torch

    wanted = module.state_dict()
    missing = [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]
    extra = [key for key in tensors if key not in wanted and not key.endswith("position_ids")]
    wrong = [
        f"{key} {tuple(tensors[key].shape)} for {tuple(wanted[key].shape)}"
        for key in wanted
        if key in tensors and tensors[key].shape != wanted[key].shape
    ]
    for kind, names in (("lacks", missing), ("has unknown", extra), ("has misshapen", wrong)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CascadeError(
                f"the file {kind} tensors: {', '.join(names[:3])}{more}",
                where=where,
                fix="Choose the file made for this part, or download it again",
            )
    given = {key: tensors[key] if key in tensors else torch.zeros((), dtype=torch.long) for key in wanted}
    module.load_state_dict(given, assign=True, strict=True)


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value
