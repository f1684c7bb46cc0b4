"""safetensors files of parts: content ids, reading, writing. Nothing here unpickles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cascade_train.errors import CascadeError
from cascade_train.files import write_with
from cascade_train.host.progress import nothing
from cascade_train.models import header
from cascade_train.models.tensor_file import Later, Writable, write_file

if TYPE_CHECKING:
    from torch import Tensor

PREDICTS = "predicts"
"""The attribute of a Stage B or C that says what it answers; one without it answers epsilon."""
PREDICTION = "modelspec.prediction_type"
"""The same in a file's metadata; the name is that of the Stability AI Model Metadata Standard."""
SAMPLE_BYTES = 64 * 1024
_SAMPLES = 64
_WHOLE = 64 << 20
"""Bytes up to which everything is read to identify a file."""


def read_header(path: Path) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The shapes by tensor name and the metadata of a safetensors file; the tensors are not read.

    Raises:
        CascadeError: see `header.read`.
    """
    found = header.read(path)
    return dict(found.shapes), dict(found.metadata)


def content_id(path: Path) -> str:
    """32 hex digits that identify what is in a file or, for a folder, in its files.

    Files over 64 MiB are identified by their size, their first MiB (the header names every tensor) and 64
    samples spread over the rest, so that fourteen gigabytes need no minute of reading.
    """
    if path.is_dir():
        hasher = hashlib.sha256()
        for each in sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")):
            hasher.update(f"{each.relative_to(path).as_posix()}\n{content_id(each)}\n".encode())
        return hasher.hexdigest()[:32]
    size = path.stat().st_size
    hasher = hashlib.sha256(str(size).encode())
    with path.open("rb") as handle:
        if size <= _WHOLE:
            while block := handle.read(1024 * 1024):
                hasher.update(block)
        else:
            hasher.update(handle.read(1024 * 1024))
            for at in sampled(size):
                handle.seek(at)
                hasher.update(handle.read(SAMPLE_BYTES))
    return hasher.hexdigest()[:32]


def sampled(size: int) -> Sequence[int]:
    """Where the pieces of `SAMPLE_BYTES` begin that identify ``size`` bytes: everything up to 64 MiB, beyond
    it 64 samples."""
    if size <= _WHOLE:
        return range(0, size, SAMPLE_BYTES)
    return [(size - SAMPLE_BYTES) * (number + 1) // _SAMPLES for number in range(_SAMPLES)]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU, as stored.

    Raises:
        CascadeError: see `header.read`, and what else the library finds wrong, with the path.
    """
    from safetensors.torch import load_file

    with header.faults_of(path):
        return load_file(path)


def prediction(metadata: Mapping[str, str]) -> Literal["epsilon", "v"]:
    """What a Stage B or C with this ``metadata`` answers; one that does not say answers epsilon."""
    return "v" if metadata.get(PREDICTION) == "v" else "epsilon"


def write_tensors(
    path: Path,
    tensors: Mapping[str, Writable],
    config: Mapping[str, Any] | None = None,
    *,
    half: bool = False,
    metadata: Mapping[str, str] | None = None,
    check: Callable[[], object] = nothing,
) -> None:
    """Write ``tensors`` in one visible step, with ``config`` as JSON in the metadata.

    Args:
        tensors: those that are made `Later` are made, written and let go one by one.
        half: store floating-point tensors as fp16; what is made later is not looked at for its range.
        check: called now and then while writing; what it raises ends it, and ``path`` is as it was.

    Raises:
        CascadeError: ``half`` and a value is beyond fp16's range or not finite; the disk is full.
    """
    import torch

    out: dict[str, Writable] = {}
    for key, value in tensors.items():
        if isinstance(value, Later):
            out[key] = value.to(torch.float16) if half else value
            continue
        kept = value.detach().cpu()
        if half and kept.is_floating_point():
            kept = kept.to(torch.float16)
            if not torch.isfinite(kept).all():
                raise CascadeError(f"{key} cannot be stored as fp16", where=str(path), fix="Store it as fp32")
        out[key] = kept
    about = {"format": "pt", **(metadata or {})}
    if config is not None:
        about["config"] = json.dumps(config, sort_keys=True)

    write_with(path, lambda beside: write_file(beside, out, about, check=check))


def config_of(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The configuration in a file's metadata, None when there is none; CascadeError when it is broken."""
    text = metadata.get("config")
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise CascadeError("the configuration in the file's metadata is broken", fix="Download it again")
    return value
