"""One thing that is wrong with a prompt, as one line for people and one object for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_SHOWN = 80
MOST_TOLD = 20
"""Problems that a person is told in full; more are counted."""


def cut(problems: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The problems that are told in full, and a line about the rest ("" for none)."""
    more = len(problems) - MOST_TOLD
    if more < 1:
        return problems, ""
    return problems[:MOST_TOLD], f"… and {more} more problem{'s' if more > 1 else ''} (--json tells all)"


@dataclass(frozen=True)
class Problem:
    """What is wrong, where, and what would be right.

    ``str(problem)`` is one line: ``title (id): input = value what. fix.``; ``what`` reads on from the input.
    """

    what: str
    fix: str = ""
    node: str = ""
    """The node's id in the prompt; empty when the problem is the whole workflow's."""
    title: str = ""
    class_type: str = ""
    input: str = ""
    value: Any = None
    kind: str = ""
    """A stable word for machines: ``unknown class``, ``missing input``, ``type``, ``range``, ``choice``,
    ``file``, ``link``, ``link type``, ``circle``, ``no output``, ``shape``, ``refused`` (by the class)."""

    def __str__(self) -> str:
        text = f"{one_line(self.title or 'node')} (id {one_line(self.node)}): " if self.node else ""
        if self.input:
            shown = "" if self.value is None or isinstance(self.value, list) else f" = {short(self.value)}"
            text += f"{one_line(self.input)}{shown} "
        text += one_line(self.what, 400)
        text += f". {one_line(self.fix, 400)}" if self.fix else ""
        return text if text.endswith("?") else text + "."

    def as_json(self) -> dict[str, Any]:
        """The problem as a JSON object."""
        return {
            "kind": self.kind,
            "node": self.node,
            "title": self.title,
            "class_type": self.class_type,
            "input": self.input,
            "value": self.value,
            "what": self.what,
            "fix": self.fix,
            "text": str(self),
        }


def short(value: Any) -> str:
    """A value in a message: quoted text, cut when long."""
    if isinstance(value, dict):
        return "a list" if "__value__" in value else "an object"
    text = one_line(value) if isinstance(value, str) else repr(value)[:MAX_SHOWN]
    return f"'{text}'" if isinstance(value, str) else text


def one_line(text: str, limit: int = MAX_SHOWN) -> str:
    """``text`` on one line with nothing that moves a terminal's cursor, cut to ``limit`` characters."""
    text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else " " for sign in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
