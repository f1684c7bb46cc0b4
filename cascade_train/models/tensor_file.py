"""Writing safetensors files piece by piece.

The library writes a file in one call, which no Ctrl-C ends, and tells a full disk by an error of its own
without a cause. The format is a length, a JSON header and the tensors' bytes
(https://github.com/huggingface/safetensors#format), so it is written here; reading is the library's.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from cascade_train.errors import CascadeError
from cascade_train.host.progress import nothing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NAMES = {
    "int64": "I64",
    "float64": "F64",
    "float32": "F32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int16": "I16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The format's names of torch's kinds of numbers, in the order in which the library puts them into a file."""

PIECE = 16 * 1024 * 1024
"""Bytes that are written between two looks at whether to stop."""


@dataclass(frozen=True)
class Later:
    """A tensor that is made when it is written, and forgotten then: a file may be larger than memory.

    Args:
        shape: what ``make`` gives, known before.
        dtype: likewise.
        make: gives the tensor; called once.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @staticmethod
    def of(value: Tensor) -> Later:
        """``value``, which is there already."""
        return Later(tuple(value.shape), value.dtype, lambda: value)

    def to(self, dtype: torch.dtype) -> Later:
        """The same numbers in ``dtype``; counters stay integers."""
        if not self.dtype.is_floating_point or dtype == self.dtype:
            return self
        return Later(self.shape, dtype, lambda: self.make().to(dtype))


Writable = Union["Tensor", Later]


def write_file(
    path: Path,
    tensors: Mapping[str, Writable],
    metadata: Mapping[str, str] | None = None,
    *,
    check: Callable[[], object] = nothing,
) -> str:
    """Write ``tensors``, wherever they lie, to ``path``; the SHA-256 of the file, in hex.

    Equal tensors and metadata give equal files. ``check`` is called after each `PIECE`; what it raises ends
    the writing and leaves half a file.

    Raises:
        OSError: the disk is full, or may not be written.
        CascadeError: a kind of numbers that the format has no name for.
    """
    kinds = {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()}
    for name, kind in kinds.items():
        if kind not in NAMES:
            raise CascadeError(f"{name} holds {kind}, which safetensors files do not", where=str(path))
    order = list(NAMES)
    names = sorted(tensors, key=lambda name: (order.index(kinds[name]), name))
    header: dict[str, object] = {}
    if metadata:
        header["__metadata__"] = dict(sorted(metadata.items()))
    end = 0
    for name in names:
        value = tensors[name]
        start, end = end, end + math.prod(value.shape) * value.dtype.itemsize
        header[name] = {"dtype": NAMES[kinds[name]], "shape": list(value.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    hasher = hashlib.sha256()
    with path.open("wb") as handle:
        for piece in (struct.pack("<Q", len(text)), text):
            handle.write(piece)
            hasher.update(piece)
        for name in names:
            data = _bytes(tensors[name])
            for start in range(0, len(data), PIECE):
                check()
                handle.write(data[start : start + PIECE])
                hasher.update(data[start : start + PIECE])
    return hasher.hexdigest()


def _bytes(value: Writable) -> memoryview:
    """The numbers of ``value`` one after another."""
    import torch

    if isinstance(value, Later):
        made = value.make()
        if tuple(made.shape) != value.shape or made.dtype != value.dtype:
            raise ValueError(f"{tuple(made.shape)} {made.dtype} for {value.shape} {value.dtype}")
        value = made
    flat = value.detach().cpu().contiguous().reshape(-1)
    if not flat.numel():
        return memoryview(b"")
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
