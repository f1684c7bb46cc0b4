"""How ComfyUI and the command line ask a node's checks before anything runs.

ComfyUI calls ``VALIDATE_INPUTS`` when a graph is queued and shows the answer at the node; `cascade-train
validate` and `run` call it too. The nodes themselves refuse the same values when they run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.host.blocker import ExecutionBlocker

from .base import CascadeNode


class Answer(str):
    """What is wrong with some of the inputs that a hook takes; ComfyUI shows it at those inputs alone.

    It goes through all inputs that the hook takes, in a loop over ``x``, and shows the answer at each unless
    the answer is an ExecutionBlocker. So, asked from that loop about an input with nothing wrong, this one
    says to be a blocker. A ComfyUI whose loop is another one sees a text and shows it at all of them.
    """

    faults: Mapping[str, str]
    blocker: type

    @classmethod
    def about(cls, faults: Mapping[str, str], blocker: type) -> Answer:
        made = cls(next(iter(faults.values())))
        made.faults, made.blocker = faults, blocker
        return made

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        asked = _asked()
        return self.blocker if asked and asked not in self.faults else Answer

    def __str__(self) -> str:
        return self.faults.get(_asked(), self[:])


def _asked() -> str:
    """The input that ComfyUI's loop is at, two calls above; "" elsewhere."""
    frame = sys._getframe(2)
    at = frame.f_locals.get("x") if frame.f_code.co_name == "validate_inputs" else None
    return at if type(at) is str else ""


def hooks(node: type[CascadeNode]) -> dict[str, Any]:
    """What ``node`` is given beside its host: ``VALIDATE_INPUTS``, where it has checks.

    The answer is True or a line ``input: what is wrong. What would be right.``.
    """
    checks = node.CHECKS
    together = node.CHECKED_TOGETHER
    if not checks and not together:
        return {}

    def VALIDATE_INPUTS(cls: Any, **given: Any) -> bool | str:
        faults: dict[str, str] = {}
        for name, value in given.items():
            if value is None or name not in checks:
                continue  # wired: known when it runs
            try:
                checks[name](value, cls.host)
            except CascadeError as error:
                faults[name] = f"{name}: {error}"
        values = {name: given.get(name) for name in together}
        if together and not faults and values[together[0]] is not None:
            try:
                cls.check_together(
                    cls.host, **{name: each for name, each in values.items() if each is not None}
                )
            except CascadeError as error:
                named = error.typed[0] if error.typed else together[0]
                faults[named] = f"{named}: {error}"
        if not faults:
            return True
        blocker = type(cls.host.blocked(""))
        if blocker is ExecutionBlocker:  # our own executor reads the input's name in the text
            return next(iter(faults.values()))
        return Answer.about(faults, blocker)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    takes = [inspect.Parameter(name, kind, default=None) for name in (*checks, *together)]
    signature = inspect.Signature([inspect.Parameter("cls", kind), *takes])
    VALIDATE_INPUTS.__signature__ = signature  # type: ignore[attr-defined]
    return {"VALIDATE_INPUTS": classmethod(VALIDATE_INPUTS)}
