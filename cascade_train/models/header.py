"""The header of a safetensors file, checked before anything is read by it. Imports nothing heavy.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length; the
header as JSON, ``name → {"dtype", "shape", "data_offsets"}`` and ``"__metadata__"``; the tensors, end to end.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError

MOST_BYTES = 32 << 20
"""Longest header that is read; the format allows 100 MB, and one of 10 000 tensors has 1 MB."""
MOST_TENSORS = 200_000
_MOST_SIDES = 16
_BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16},
    **{"F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64},
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
"""Bits a value by kind; a kind that is not here takes as many bytes as its offsets say."""


@dataclass(frozen=True)
class Header:
    """``shapes`` by tensor name, in the file's order, and the ``metadata``; the ``kinds`` of numbers, such as
    ``BF16``, and the bytes that each tensor takes: its ``spans``, counted from ``begin`` in the file."""

    shapes: Mapping[str, list[int]]
    metadata: Mapping[str, str]
    kinds: Mapping[str, str]
    spans: Mapping[str, tuple[int, int]]
    begin: int


class _Fault(ValueError):
    """What is wrong with a header, in words."""


def read(path: Path) -> Header:
    """The checked header of the file at ``path``; the tensors are not read.

    Raises:
        CascadeError: it is no safetensors file, too large a header, cut off, or its header and its size do
            not fit: tensors that overlap, leave gaps, or have another size than their shape.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            start = handle.read(8)
            (length,) = struct.unpack("<Q", start) if len(start) == 8 else (0,)
            if not 2 <= length <= size - 8:
                raise _Fault("it does not begin with the length of a header")
            if length > MOST_BYTES:
                raise _Fault(f"its header has {length >> 20} MiB, of at most {MOST_BYTES >> 20}")
            text = handle.read(length)
        header = _parsed(text)
        metadata = _metadata(header.pop("__metadata__", {}))
        end = _end(header)
    except FileNotFoundError:
        raise CascadeError("the file does not exist", where=str(path)) from None
    except _Fault as fault:
        raise CascadeError(
            f"this is no readable safetensors file: {fault}",
            where=str(path),
            fix="Only .safetensors files are read; convert or download it again",
        ) from None
    except OSError as error:
        raise CascadeError(f"the file cannot be read: {error.strerror or error}", where=str(path)) from None
    if 8 + length + end != size:
        short = 8 + length + end > size
        raise CascadeError(
            f"the file is {'cut off' if short else 'longer than its header says'}: {size} bytes of "
            f"{8 + length + end}",
            where=str(path),
            fix="Download it again",
        )
    return Header(
        {name: entry["shape"] for name, entry in header.items()},
        metadata,
        {name: str(entry.get("dtype")) for name, entry in header.items()},
        {name: (entry["data_offsets"][0], entry["data_offsets"][1]) for name, entry in header.items()},
        8 + length,
    )


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Within the block what the safetensors library finds wrong with ``path`` is a CascadeError that has it.

    The header is checked first, so that no length in it is believed.
    """
    from safetensors import SafetensorError

    read(path)
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, MemoryError) as error:
        why = getattr(error, "strerror", None) or error
        raise CascadeError(
            f"the safetensors file cannot be read: {why}", where=str(path), fix="Download or make it again"
        ) from error


def _parsed(text: bytes) -> dict[str, Any]:
    if text[:1] != b"{" or text.count(b"[") > 2 * MOST_TENSORS + 2 or text.count(b"{") > MOST_TENSORS + 2:
        raise _Fault("its header is no list of tensors")
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _Fault("its header is damaged") from None
    if not isinstance(header, dict):
        raise _Fault("its header is no list of tensors")
    return header


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise _Fault("its metadata are no texts")
    return value


def _end(header: Mapping[str, Any]) -> int:
    """Where the last tensor ends, from where the first begins; _Fault where they do not lie end to end."""
    spans = []
    for name, entry in header.items():
        shown = name if len(name) <= 60 else name[:59] + "…"
        entry = entry if isinstance(entry, dict) else {}
        shape, span = _numbers(entry.get("shape")), _numbers(entry.get("data_offsets"))
        if shape is None or span is None or len(span) != 2 or len(shape) > _MOST_SIDES:
            raise _Fault(f"the tensor '{shown}' has no shape or place")
        bits = _BITS.get(str(entry.get("dtype")))
        if span[1] < span[0] or (bits is not None and math.prod(shape) * bits != 8 * (span[1] - span[0])):
            raise _Fault(f"the tensor '{shown}' does not have the size of its shape")
        spans.append((span[0], span[1], shown))
    at = 0
    for first, last, shown in sorted(spans):
        if first != at:
            raise _Fault(f"the tensor '{shown}' does not begin where the one before ends")
        at = last
    return at


def _numbers(value: Any) -> list[int] | None:
    """``value`` where it is a list of whole numbers of 0 or more."""
    if not isinstance(value, list):
        return None
    return value if all(type(each) is int and 0 <= each < 1 << 62 for each in value) else None
