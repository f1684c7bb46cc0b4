"""How ComfyUI and the command line ask a node's checks before anything runs.

ComfyUI calls ``VALIDATE_INPUTS`` when a graph is queued and shows the answer at the node; `cascade-train
validate` and `run` call it too. The nodes themselves refuse the same values when they run.
"""

from __future__ import annotations

import inspect
from typing import Any

from cascade_train.errors import CascadeError

from .base import CascadeNode


def hooks(node: type[CascadeNode]) -> dict[str, Any]:
    """What ``node`` is given beside its host: ``VALIDATE_INPUTS``, where it has checks.

    The answer is True or a line ``input: what is wrong. What would be right.``; the input is named in it
    since ComfyUI shows one answer at every input that the hook takes.
    """
    checks = node.CHECKS
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
