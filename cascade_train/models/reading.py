"""Parts in files as people have them: one file, a checkpoint that holds several, a folder, shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.models import header, weights
from cascade_train.models.open_clip import own_shapes
from cascade_train.models.recognise import own_name, parts_in, what
from cascade_train.models.spec import Part, PartFile
from cascade_train.models.tensor_file import NAMES, Later

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEMS = ("model", "diffusion_pytorch_model")
VARIANTS = ("", ".bf16", ".fp16")
"""In a folder of Hugging Face layout, its tensors are in ``<stem><variant>.safetensors``, or in shards that
``<stem>.safetensors.index<variant>.json`` names; the first that is there counts."""


LET_GO = 128 << 20
"""Bytes of a file that are converted before its pages are let go."""


def files_of(path: Path) -> list[Path]:
    """The safetensors files that make up ``path``: itself, or what a folder in Hugging Face layout holds.

    Raises:
        CascadeError: a folder without any, or a shard that is missing.
    """
    if not path.is_dir():
        return [path]
    for variant in VARIANTS:
        for stem in STEMS:
            file = path / f"{stem}{variant}.safetensors"
            if file.is_file():
                return [file]
            for index in (
                f"{stem}.safetensors.index{variant}.json",
                f"{stem}{variant}.safetensors.index.json",
            ):
                if (path / index).is_file():
                    return _shards(path / index)
    raise CascadeError(
        "no safetensors files in this folder",
        where=str(path),
        fix=f"It should hold {STEMS[0]}.safetensors or {STEMS[1]}.safetensors; other formats are not read",
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        shards = [index.parent / name for name in names if Path(name).name == name]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CascadeError(f"the index of shards cannot be read ({error})", where=str(index)) from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing or not shards:
        raise CascadeError(
            f"{len(missing)} of {len(shards)} shards are missing: {', '.join(missing[:3])}",
            where=str(index),
            fix="Download the folder again",
        )
    return shards


def read_headers(path: Path) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The shapes by name and the metadata of all files of ``path``, as they are stored.

    Raises:
        CascadeError: see `files_of` and `header.read`.
    """
    shapes: dict[str, list[int]] = {}
    metadata: dict[str, str] = {}
    for file in files_of(path):
        found = _header(str(file), _stamp(file))
        shapes |= found.shapes
        metadata |= found.metadata
    return shapes, metadata


@lru_cache(maxsize=512)
def _header(path: str, _stamp: object) -> header.Header:
    return header.read(Path(path))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError:
        return 0, 0
    return about.st_size, about.st_mtime_ns


def part_headers(file: PartFile) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The shapes of a part by its own names, without what stands before them, and the file's metadata."""
    shapes, metadata = read_headers(Path(file.path))
    own: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        known = own_name(file.part, file.prefix, name)
        if known is None:
            continue
        own |= own_shapes(file.part, known, shape) if file.part in ("text", "image") else {known: shape}
    if not file.prefix:
        return own, metadata
    # a checkpoint's metadata is about the whole of it
    return own, {key: value for key, value in metadata.items() if key not in ("part", "config")}


def content_id(file: PartFile) -> str:
    """32 hex digits that identify a part: its file (`weights.content_id`) or, in a file that holds several,
    the part alone, whatever lies beside it and in which order.

    In a file of its own, or with q, k and v apart, the same weights have another id. A part over 64 MiB is
    identified by its names, kinds and shapes and by 64 samples of 64 KiB.
    """
    path = Path(file.path)
    if not file.prefix or path.is_dir():
        return weights.content_id(path)
    found = header.read(path)
    own = {
        known: name for name in found.shapes if (known := own_name(file.part, file.prefix, name)) is not None
    }
    spans = [found.spans[own[known]] for known in sorted(own)]
    sizes = [last - first for first, last in spans]
    about = [(known, found.kinds[own[known]], list(found.shapes[own[known]])) for known in sorted(own)]
    hasher = hashlib.sha256(json.dumps(about).encode())
    total = sum(sizes)
    with path.open("rb") as handle:
        for at in weights.sampled(total):
            for piece in _within(spans, at, min(at + weights.SAMPLE_BYTES, total)):
                handle.seek(found.begin + piece[0])
                hasher.update(handle.read(piece[1] - piece[0]))
    return hasher.hexdigest()[:32]


def _within(spans: Sequence[tuple[int, int]], first: int, last: int) -> Iterator[tuple[int, int]]:
    """Where the bytes from ``first`` to ``last`` of tensors lie that ``spans`` would hold end to end."""
    at = 0
    for begin, end in spans:
        low, high = max(first, at), min(last, at + end - begin)
        if low < high:
            yield begin + low - at, begin + high - at
        at += end - begin


def prefix_in(part: Part, path: Path) -> str:
    """What stands before the names of ``part`` in ``path``.

    Raises:
        CascadeError: it holds something else; what, is said.
    """
    shapes, metadata = read_headers(path)
    if metadata.get("part") == part:
        return ""
    for found in parts_in(shapes):
        if found.part == part:
            return found.prefix
    said = metadata.get("part")
    raise CascadeError(
        f"the file holds {said or what(shapes)}, not {part}",
        where=str(path),
        fix="Choose the other file",
    )


def tensors(
    file: PartFile,
    rename: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]],
    dtype: torch.dtype | None,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """The tensors of a part, each read once and brought to ``dtype`` and ``device`` before the next.

    ``rename`` gives the names in the module of one in the file (an attention's three matrices may be one).

    Raises:
        CascadeError: a tensor holds values that are not finite, or the file cannot be read.
    """
    out: dict[str, Tensor] = {}
    bad: list[str] = []
    for path in files_of(Path(file.path)):
        known = {name: own_name(file.part, file.prefix, name) for name in header.read(path).shapes}
        own_names = {name: own for name, own in known.items() if own is not None}
        for name, value in _passing(path, tuple(own_names), device, dtype):
            if value.is_floating_point():
                if not _finite(value):
                    bad.append(name)
                value = value if dtype is None else value.to(dtype)
            out.update(rename(own_names[name], value))
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise CascadeError(
            f"{len(bad)} tensors hold values that are not numbers: {', '.join(bad[:3])}{more}",
            where=file.path,
            fix="Download the file again, or use another precision of it: fp16 files of the 3.6B Stage C "
            "overflow",
        )
    return out


def stored(file: PartFile, rename: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]) -> dict[str, Later]:
    """What `tensors` gives, as stored; each is read when it is written, and no other is in memory then.

    Raises:
        CascadeError: a file cannot be read, now or then.
    """
    import torch

    out: dict[str, Later] = {}
    kinds = {short: getattr(torch, kind) for kind, short in NAMES.items() if hasattr(torch, kind)}
    for path in files_of(Path(file.path)):
        found = header.read(path)
        for name, shape in found.shapes.items():
            own = own_name(file.part, file.prefix, name)
            if own is None:
                continue
            hollow = torch.empty(tuple(shape), dtype=kinds[found.kinds[name]], device="meta")
            for made, value in rename(own, hollow):
                read = partial(_one, path, name, own, made, rename)
                out[made] = Later(tuple(value.shape), value.dtype, read)
    return out


def _one(
    path: Path, name: str, own: str, made: str, rename: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
) -> Tensor:
    """The tensor ``name`` of a file, or of what it is cut into the piece that is called ``made``."""
    from safetensors import safe_open

    with header.faults_of(path), safe_open(path, "pt") as opened:
        return dict(rename(own, opened.get_tensor(name)))[made]


def _passing(
    path: Path, names: Sequence[str], device: str, dtype: torch.dtype | None
) -> Iterator[tuple[str, Tensor]]:
    """The tensors ``names`` of one file.

    It is memory-mapped: a tensor that stays as it is stored takes its pages of the file and no others. Of one
    that is converted the pages are let go, which closing the file does, so it is opened anew now and then.
    """
    from safetensors import safe_open

    at = 0
    while at < len(names):
        with header.faults_of(path), safe_open(path, "pt", device=device) as stored:
            passed = 0
            while at < len(names) and passed < LET_GO:
                value = stored.get_tensor(names[at])
                if value.is_floating_point() and dtype not in (None, value.dtype):
                    passed += value.nbytes
                yield names[at], value
                at += 1
        del value


def _finite(value: Tensor) -> bool:
    """Whether all numbers are finite: in pieces, so that it takes no copy of a large tensor."""
    import torch

    if value.element_size() == 1:  # fp8 knows little arithmetic
        return all(_finite(piece.float()) for piece in value.reshape(-1).split(1 << 20))
    return all(bool(torch.isfinite(piece).all()) for piece in value.reshape(-1).split(1 << 20))


def is_folder_config(path: Path) -> Mapping[str, Any] | None:
    """The ``config.json`` of a folder in Hugging Face layout, None where ``path`` is a file.

    Raises:
        CascadeError: the folder has none, or it cannot be read.
    """
    if not path.is_dir():
        return None
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CascadeError(
            "no config.json that can be read in this folder",
            where=str(path),
            fix="Give a folder in Hugging Face layout: config.json, model.safetensors, the tokenizer's files",
        ) from error
    if not isinstance(config, dict):
        raise CascadeError("config.json is damaged", where=str(path), fix="Download it again")
    return config
