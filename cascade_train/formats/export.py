"""Writing what a run has learned as files for other programs.

Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.files import check_own, sweep_parts
from cascade_train.formats.names import check_name, check_place, token_names, word
from cascade_train.host.base import Folders
from cascade_train.host.progress import nothing
from cascade_train.models.spec import ModelsSpec

if TYPE_CHECKING:
    from torch import Tensor

    from cascade_train.formats.lora import LoRA

CHECKPOINT = "ComfyUI checkpoint"
FORMATS = ("ComfyUI", "diffusers", CHECKPOINT)
"""A file for one loader; what diffusers and peft open; everything that a stage needs in one file."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
PRECISIONS = tuple(DTYPES)


def export_path(folders: Folders, filename: str, run_folder: Path, default: str) -> Path:
    """Where an export goes: ``filename`` inside the output folder, or ``default`` in the run's ``exports``.

    The ending ``.safetensors`` may be left out.

    Raises:
        CascadeError: the name leaves the output folder, cannot be a file's name on some system, or cannot be
            written there.
    """
    name = filename.strip().removesuffix(".safetensors")
    if name:
        path = folders.resolve_write(name, "filename")
        check_name(name)
    else:
        path = run_folder / "exports" / default
        if default:
            check_own(run_folder)
    path = path.with_name(path.name + ".safetensors")
    check_place(path)
    return path


def export_stamp(folders: Folders, filename: str) -> Any:
    """A value that changes when the exported file is taken away or replaced."""
    try:
        path = export_path(folders, filename, Path(), "")
        status = path.stat() if filename.strip() else None
    except (OSError, CascadeError):
        return "not there"
    return "in the run's folder" if status is None else (status.st_size, status.st_mtime_ns)


def export_trained(
    kind: str,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    path: Path,
    *,
    format: str = "ComfyUI",
    precision: str = "fp32",
    models: ModelsSpec,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
    laid: ModelsSpec | None = None,
) -> tuple[Path, ...]:
    """Write a trained state (see `models.trained`) to ``path`` and beside it.

    A LoRA becomes one file (ComfyUI) or one folder (diffusers: peft's own layout, named like the file without
    its ending); each trained token a file ``<name>-<token>.safetensors``; full weights one file with native
    keys for each part (ComfyUI), or a folder (diffusers). ``ComfyUI checkpoint`` is one file with all that
    the trained stage needs (`full.write_checkpoint`); a LoRA is worked into Stage C there.

    ``laid`` are the models with the run laid over them, which a checkpoint of a LoRA or of tokens needs.

    ``check`` is called now and then; what it raises ends the writing, and no half of a file is left. What an
    export that was killed has left goes.

    Returns:
        everything written, the main thing first.

    Raises:
        CascadeError: an unknown format, a state that the format cannot hold, or a full disk.
    """
    import torch

    from cascade_train.formats import lora

    if format not in FORMATS:
        raise CascadeError(f"no export format is called '{format}'", fix=f"Use one of {', '.join(FORMATS)}")
    dtype = getattr(torch, DTYPES[precision])
    sweep_parts(path.parent, path.with_suffix(""))
    written: list[Path] = []
    if kind == "full":
        return _full(tensors, path, dtype, format, models, metadata, check)
    made = _adapters(tensors, settings)
    if format == CHECKPOINT and laid is not None:
        from cascade_train.formats import full

        full.write_checkpoint(path, "stage_c", laid, {}, dtype, metadata=metadata, check=check)
        written.append(path)
        made = None
    if made is not None:
        if format == "ComfyUI":
            base = _base_weights(models)
            lora.write_comfy(path, made, precision=dtype, base=base, metadata=metadata, check=check)
            written.append(path)
        else:
            folder = path.with_suffix("")
            lora.write_peft(folder, made, precision=dtype, metadata=metadata, check=check)
            written.append(folder)
    entries = [token["name"] for token in settings.get("tokens", ())]
    for entry, name, row in zip(entries, token_names(entries), tensors.get("tokens.rows", ())):
        beside = path.with_name(f"{path.stem}-{name}.safetensors")
        check()
        lora.write_token(beside, word(entry), row.unsqueeze(0), metadata)
        written.append(beside)
    if not written:
        raise CascadeError("the run has trained nothing that could be exported", where=str(path))
    return tuple(written)


def core_lora(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], *, precision: str = "fp32", models: ModelsSpec
) -> dict[str, Tensor] | None:
    """What the ComfyUI file of a trained state of kind ``lora`` holds, as ComfyUI's nodes hand it on."""
    import torch

    from cascade_train.formats import lora

    made = _adapters(tensors, settings)
    if made is None:
        return None
    return lora.comfy_tensors(made, getattr(torch, DTYPES[precision]), _base_weights(models))


def _adapters(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> LoRA | None:
    from cascade_train.formats import lora

    stage_c = {name: value for name, value in tensors.items() if name.startswith("stage_c.")}
    own = {name.removeprefix("stage_c."): value for name, value in stage_c.items()}
    return lora.LoRA(own, float(settings["alpha"])) if own else None


def _full(
    tensors: Mapping[str, Tensor],
    path: Path,
    dtype: Any,
    format: str,
    models: ModelsSpec,
    metadata: Mapping[str, str] | None,
    check: Callable[[], object],
) -> tuple[Path, ...]:
    from cascade_train.formats import full

    found = sorted({key.partition(".")[0] for key in tensors}, key=lambda part: (part != "stage_c", part))
    parts: dict[Any, Any] = {part: full.now(tensors, part) for part in found}
    main = next((part for part in parts if part in full.TOGETHER), None)
    if format == CHECKPOINT:
        full.write_checkpoint(
            path, main or next(iter(parts)), models, parts, dtype, metadata=metadata, check=check
        )
        return (path,)
    written = []
    for number, (part, own) in enumerate(parts.items()):
        check()
        file = path if number == 0 else path.with_name(f"{path.stem}-{part}.safetensors")
        config = full.config_of(models, part, own)
        if format == "diffusers" and part in full.TOGETHER:
            file = file.with_suffix("")
            full.write_diffusers(file, part, own, config or {}, dtype, metadata=metadata, check=check)
        else:
            full.write_native(file, part, own, config, dtype, metadata=metadata, check=check)
        written.append(file)
    return tuple(written)


def _base_weights(models: ModelsSpec) -> Callable[[str], Tensor]:
    def weight(name: str) -> Tensor:
        from cascade_train.models import library

        layer: Any = library.part(models, "stage_c").get_submodule(name)
        return layer.weight.detach().cpu()

    return weight
