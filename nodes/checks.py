"""What can be said against an input before anything runs.

`build_mappings` gives each class that has checks here a ``VALIDATE_INPUTS``: ComfyUI calls it when a graph
is queued and shows the answer at the node, `cascade-train validate` and `run` call it too. So a check is
quick and imports no torch. The nodes themselves refuse the same values when they run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host

Check = Callable[[str, Host], object]
"""Raises CascadeError when the text of an input is wrong."""


def _colour(text: str, host: Host) -> None:
    from cascade_train.data.sources import colour

    colour(text)


def _place(text: str, host: Host) -> None:
    host.folders.resolve_read(text)


def _folder(text: str, host: Host) -> None:
    if not host.folders.resolve_read(text, "picture folder").is_dir():
        raise CascadeError(f"'{text}' is a file, not a folder", fix="Give a folder")


def _shards(text: str, host: Host) -> None:
    from cascade_train.data.urls import expand

    expand(text, host.folders)


def _filters(text: str, host: Host) -> None:
    from cascade_train.data.expressions import filter_lines

    filter_lines(text)


def _getter(text: str, host: Host) -> None:
    from cascade_train.data.expressions import normalise

    if text.strip():
        normalise(text)


def _ratios(text: str, host: Host) -> None:
    from cascade_train.data.buckets import parse_ratio

    for ratio in text.replace(";", ",").split(","):
        if ratio.strip():
            parse_ratio(ratio.strip())


def _resolutions(text: str, host: Host) -> None:
    from cascade_train.data.buckets import parse_resolutions

    parse_resolutions(text)


def _layers(text: str, host: Host) -> None:
    from cascade_train.training.layers import pieces

    pieces(text)


def _new_tokens(text: str, host: Host) -> None:
    from cascade_train.training.tokens import new_tokens

    new_tokens(text)


def _existing_tokens(text: str, host: Host) -> None:
    from cascade_train.training.tokens import existing_tokens

    existing_tokens(text)


def _prompts(text: str, host: Host) -> None:
    from cascade_train.sampling.spec import Prompts, prompts_from_lines

    Prompts(prompts_from_lines(text))


def _filename(text: str, host: Host) -> None:
    if text.strip():
        host.folders.resolve_write(text, "filename")


CHECKS: Mapping[str, Mapping[str, Check]] = {
    "CascadeImageFolder": {"path": _folder, "background": _colour},
    "CascadeWebDataset": {"shards": _shards, "background": _colour},
    "CascadeFilterSamples": {"filters": _filters},
    "CascadeCaptionOptions": {"getter": _getter},
    "CascadeAspectBuckets": {"ratios": _ratios, "resolutions": _resolutions},
    "CascadeLoRATarget": {"modules": _layers},
    "CascadeTrainTokens": {"new_tokens": _new_tokens, "existing_tokens": _existing_tokens},
    "CascadePrompts": {"texts": _prompts},
    "CascadeExportRun": {"filename": _filename},
    "CascadeLoadPictures": {"path": _place},
}
"""By class id and input."""


def hooks(node_id: str) -> dict[str, Any]:
    """What the class ``node_id`` is given beside its host: ``VALIDATE_INPUTS``, where it has checks.

    The answer is True or a line ``input: what is wrong. What would be right.``; the input is named in it
    since ComfyUI shows one answer at every input that the hook takes.
    """
    checks = CHECKS.get(node_id)
    if not checks:
        return {}

    def VALIDATE_INPUTS(cls: Any, **given: Any) -> bool | str:
        for name, value in given.items():
            if not isinstance(value, str):
                continue  # wired: known when it runs
            try:
                checks[name](value, cls.host)
            except CascadeError as error:
                return f"{name}: {error}"
        return True

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    takes = [inspect.Parameter(name, kind, default=None) for name in checks]
    signature = inspect.Signature([inspect.Parameter("cls", kind), *takes])
    VALIDATE_INPUTS.__signature__ = signature  # type: ignore[attr-defined]
    return {"VALIDATE_INPUTS": classmethod(VALIDATE_INPUTS)}
