"""Single weights of a Stage C by the network's names, read from and written to a file in whichever layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cascade_train.errors import CascadeError
from cascade_train.models import header, reading
from cascade_train.models.layouts import diffusers_name, split_name
from cascade_train.models.spec import PartFile
from cascade_train.models.weights import write_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from cascade_train.models.loras.change import Change


def module_weight(file: PartFile, module: str) -> Tensor:
    """The weight of ``module``, as stored, from a file that may have q, k and v fused.

    Raises:
        CascadeError: the file has no such module.
    """
    from safetensors import safe_open

    shapes, _ = reading.part_headers(file)
    stem, _, letter = module.rpartition(".to_")
    fused = f"{stem}.attn.in_proj_weight"
    names = [f"{split_name(module)}.weight", f"{module}.weight", fused]
    name = next((each for each in names if each in shapes), "")
    for path in reading.files_of(Path(file.path)):
        with header.faults_of(path), safe_open(path, "pt") as stored:
            if file.prefix + name not in stored.keys():  # noqa: SIM118
                continue
            whole = stored.get_slice(file.prefix + name)
            if name != fused:
                return whole[:]
            rows = shapes[name][0] // 3
            at = "qkv".index(letter) * rows
            return whole[at : at + rows]
    raise CascadeError(f"the file has no layer '{module}'", where=file.path, fix="Choose another file")


def merged_file(
    file: PartFile,
    changes: Mapping[str, Change],
    target: Path,
    strength: float,
    check: Callable[[], object],
) -> None:
    """Write all tensors of ``file``, with ``changes`` by module merged into the weights, in each one's dtype.

    What else the file holds is written as it is.

    Raises:
        CascadeError: it cannot be read or written.
    """
    from safetensors import safe_open

    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for path in reading.files_of(Path(file.path)):
        metadata |= header.read(path).metadata
        with header.faults_of(path), safe_open(path, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                check()
                value = stored.get_tensor(name)
                own = name[len(file.prefix) :]
                if name.startswith(file.prefix) and own.endswith("weight"):
                    value = _merged(own, value, changes, strength)
                tensors[name] = value
    metadata.pop("format", None)
    write_tensors(target, tensors, metadata=metadata, check=check)


def _merged(name: str, value: Tensor, changes: Mapping[str, Change], strength: float) -> Tensor:
    import torch

    if name.endswith(".attention.attn.in_proj_weight"):
        stem = name.removesuffix(".attn.in_proj_weight")
        thirds = zip("qkv", value.chunk(3))
        return torch.cat(
            [_one(part, changes.get(f"{stem}.to_{letter}"), strength) for letter, part in thirds]
        )
    return _one(value, changes.get(diffusers_name(name.removesuffix(".weight"))), strength)


def _one(value: Tensor, change: Change | None, strength: float) -> Tensor:
    from cascade_train.models.applied import merged_weight

    if change is None:
        return value
    return merged_weight(
        value,
        change.down,
        change.up,
        change.scale,
        strength,
        change.magnitude,
        change.dense,
        over_base=change.over_base,
    )
