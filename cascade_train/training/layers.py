"""Which layers of Stage C a LoRA takes: by name, from a network or from a file's header alone."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from cascade_train.errors import CascadeError
from cascade_train.models.layouts import diffusers_name, split_name, without_prefix


def pieces(wanted: str) -> list[str]:
    """The comma-separated parts of names in ``wanted``; CascadeError for one that no name can hold."""
    found = [piece.strip() for piece in wanted.split(",")]
    for piece in found:
        if not re.fullmatch(r"[\w.]*", piece, re.ASCII):
            raise CascadeError(
                f"'{piece}' is no part of a layer's name",
                fix="Write parts of names, separated by commas: attn, channelwise",
            )
    return [piece for piece in found if piece]


def chosen_layers(layers: Sequence[str], wanted: str) -> list[str]:
    """Those of ``layers`` (names in diffusers) whose name, there or natively, holds one of `pieces` of
    ``wanted``, as in the reference: ``attn`` means the attention projections.

    Raises:
        CascadeError: a piece is part of no layer's name; names near it are listed.
    """
    chosen: set[str] = set()
    for piece in pieces(wanted):
        found = [name for name in layers if piece in name or piece in split_name(name)]
        if not found:
            near = ", ".join(_near(piece, layers))
            raise CascadeError(
                f"the LoRA filter '{piece}' hits no layer",
                typed=("modules", piece),
                fix=f"Use a part of a layer's name, such as {near}",
            )
        chosen.update(found)
    return [name for name in layers if name in chosen]


def layers_in(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """The layers that can take an adapter, by diffusers' names, of a Stage C file with these tensors.

    They are its linear and ungrouped convolution layers, as `objectives.adapters.layers_of` finds them in the
    network.
    """
    names = []
    for key, shape in without_prefix(shapes).items():
        if ".attention.attn.in_proj_weight" in key:
            stem = key.removesuffix(".attn.in_proj_weight")
            names += [f"{stem}.to_{letter}" for letter in "qkv"]
        elif key.endswith(".weight") and (len(shape) == 2 or _convolves(key, shape)):
            names.append(diffusers_name(key).removesuffix(".weight"))
    return names


def _convolves(key: str, shape: Sequence[int]) -> bool:
    """Whether a weight is that of a plain convolution: not depthwise (one input channel), not transposed."""
    return len(shape) == 4 and shape[1] > 1 and not re.fullmatch(r"up_upscalers\.\d+\.1\.weight", key)


def _near(wanted: str, layers: Sequence[str]) -> list[str]:
    """Up to five names that ``wanted`` may have meant, nearest first."""
    parts = {
        piece
        for name in layers
        for piece in (*split_name(name).split("."), split_name(name))
        if not piece.isdigit()
    }
    near = difflib.get_close_matches(wanted, sorted(parts), n=5, cutoff=0.4)
    return near or ["attn", "channelwise", "mapper", "kv_mapper"]
