"""What all nodes share: the host they run in, checks of texts, and short ways to write inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from cascade_train.host.base import Host

Input = tuple[Any, dict[str, Any]]

Check = Callable[[Any, Host], object]
"""Raises CascadeError when what was typed into an input is wrong. Quick, and imports no torch."""

MODELS, DATASET, TARGET = "CASCADE_MODELS", "CASCADE_DATASET", "CASCADE_TARGET"
OPTIMIZER, RUN, PROMPTS = "CASCADE_OPTIMIZER", "CASCADE_RUN", "CASCADE_PROMPTS"


class CascadeNode:
    """A V1 node. ``host`` is bound by `build_mappings`, which finds each class that has an ``ID``."""

    ID: ClassVar[str]
    DISPLAY_NAME: ClassVar[str]
    CATEGORY: ClassVar[str]
    FUNCTION: ClassVar[str] = "run"
    HELP: ClassVar[str]
    """Markdown for the help page, after the description. Lines of a paragraph are joined."""
    CHECKS: ClassVar[Mapping[str, Check]] = {}
    """What can be said against a value before anything runs, by input (`checks.hooks`)."""
    CHECKED_TOGETHER: ClassVar[tuple[str, ...]] = ()
    """Inputs that `check_together` is given, where the first is written and not wired."""
    SEARCH_ALIASES: ClassVar[Sequence[str]] = ()
    """Other words under which a person may look for the node."""
    host: ClassVar[Host]

    @classmethod
    def check_together(cls, host: Host, **given: Any) -> None:
        """Raises a CascadeError for what can be said against the values of `CHECKED_TOGETHER` as a whole; its
        ``typed`` names the input, else it is the first."""


@cache
def options(owner: type | Callable[..., Any], field: str) -> tuple[str, ...]:
    """The texts that a dataclass or function of the library takes in ``field``, in the order shown."""
    values = get_args(get_type_hints(owner)[field])
    if not values or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{owner.__name__}.{field} is no choice among texts")
    return values


def integer(default: int, low: int, high: int, tip: str, step: int = 1) -> Input:
    return "INT", {"default": default, "min": low, "max": high, "step": step, "tooltip": tip}


def number(default: float, low: float, high: float, step: float, tip: str) -> Input:
    return "FLOAT", {
        "default": default,
        "min": low,
        "max": high,
        "step": step,
        "round": False,
        "tooltip": tip,
    }


def seed(tip: str, default: int = 0) -> Input:
    """A seed that stays as it is: a seed that is drawn anew after each queue would train anew."""
    return "INT", {
        "default": default,
        "min": 0,
        "max": 2**53 - 1,
        "control_after_generate": False,
        "tooltip": tip,
    }


def text(default: str, tip: str, lines: bool = False) -> Input:
    return "STRING", {"default": default, "multiline": lines, "dynamicPrompts": False, "tooltip": tip}


def path(default: str, tip: str, kind: str) -> Input:
    """A path that validation looks up: ``kind`` is ``folder``, ``file`` or ``any`` of both."""
    return "STRING", {
        "default": default,
        "multiline": False,
        "dynamicPrompts": False,
        "path": kind,
        "tooltip": tip,
    }


def choice(values: Sequence[str], tip: str, default: str | None = None) -> Input:
    return list(values), {"default": default or values[0], "tooltip": tip}


def switch(default: bool, tip: str) -> Input:
    return "BOOLEAN", {"default": default, "tooltip": tip}


def link(kind: str, tip: str) -> Input:
    return kind, {"tooltip": tip}
