"""Names for values: the canonical JSON of frozen dataclasses and its SHA-256."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, BinaryIO


def local(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that says where something lies on this machine and so is left out of digests."""
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"digest": False})
    return dataclasses.field(default=default, metadata={"digest": False})


def canonical(value: Any) -> Any:
    """``value`` as plain JSON data whose serialisation is the same in every process.

    Dataclasses become objects with their class name under ``"is"``. A field that holds its default is
    left out, so that adding a setting to a class never renames what exists. Fields made by `local` are
    left out too.

    Raises:
        TypeError: for a type that has no canonical form (paths, tensors, live objects).
        ValueError: for NaN.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: dict[str, Any] = {"is": type(value).__name__}
        for field in dataclasses.fields(value):
            if field.metadata.get("digest") is False:
                continue
            item = getattr(value, field.name)
            if field.default is not dataclasses.MISSING and item == field.default:
                continue
            if field.default_factory is not dataclasses.MISSING and item == field.default_factory():
                continue
            out[field.name] = canonical(item)
        return out
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError("NaN has no canonical form")
        return value
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    kind = "a path" if isinstance(value, PurePath) else type(value).__name__
    raise TypeError(f"{kind} has no canonical form: {value!r}")


def canonical_json(value: Any) -> str:
    """The one text form of ``value`` that `digest` hashes (keys sorted, no spaces, UTF-8)."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any, length: int = 32) -> str:
    """The first ``length`` hex digits (at most 64) of the SHA-256 of ``value``'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()[:length]


def file_digest(path: Path) -> str:
    """The SHA-256 of the file ``path``, 64 hex digits; OSError when it cannot be read."""
    with path.open("rb") as handle:
        return stream_digest(handle)


def stream_digest(handle: BinaryIO) -> str:
    """The SHA-256 of an open file from where it stands to its end, 64 hex digits."""
    hasher = hashlib.sha256()
    while block := handle.read(1 << 20):
        hasher.update(block)
    return hasher.hexdigest()
