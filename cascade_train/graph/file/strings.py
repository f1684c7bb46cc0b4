"""What the frontend does to a widget's text when a prompt is queued."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from cascade_train.errors import CascadeError

LINE_END = re.compile(r"[\n\r\u2028\u2029]")
ESCAPED = re.compile(r"\\([{}|])")
MOST_LOOKED_AT = 20_000_000
"""Letters looked at while the choices ``{a|b}`` of one text are drawn; each takes a pass over it."""
LONGEST_NAME = 1000
"""A longer text is no file name, and nothing is filled into it."""
PLACEHOLDER = re.compile(r"%([^%]+)%")
NOT_IN_FILE_NAMES = re.compile(r'[/?<>\\:*|"\x00-\x1f\x7f]')
DATE_PART = re.compile(r"yyyy|yy|MM|M|dd|d|hh|h|mm|m|ss|s")


def dynamic_prompt(text: str, draw: int | None = None) -> str:
    """``text`` without its ``/* */`` and ``//`` comments and, with a seed, one of each ``{a|b}`` drawn.

    Without a seed text that has a choice in it stays as it is but for the comments: what is trained on
    must not change from one queueing to the next.
    """
    text = _without_comments(text)
    if draw is None:
        return text if _has_choice(text) else ESCAPED.sub(r"\1", text)
    return ESCAPED.sub(r"\1", _drawn(text, random.Random(draw)))


def _without_comments(text: str) -> str:
    """``text`` without ``/* … */`` and ``// …``; looks at each letter once, however many never end."""
    kept: list[str] = []
    at = 0
    closed = True  # whether a "*/" may still come
    while True:
        start = text.find("/", at)
        sign = text[start : start + 2] if start >= 0 else ""
        if start < 0:
            return "".join((*kept, text[at:]))
        end = start + 1
        if sign == "/*" and closed:
            close = text.find("*/", start + 2)
            closed = close >= 0
            if closed:
                kept.append(text[at:start])
                at = close + 2
                continue
        elif sign == "//":
            kept.append(text[at:start])
            line_end = LINE_END.search(text, start)
            at = line_end.start() if line_end else len(text)
            continue
        kept.append(text[at:end])
        at = end


def _has_choice(text: str) -> bool:
    return "{" in re.sub(r"\\.", "", text, flags=re.DOTALL)


def _drawn(text: str, generator: random.Random) -> str:
    """Replace each outermost ``{a|b}`` by one of its parts, then those inside it; a stray ``}`` stays.

    Raises:
        CascadeError: more choices than a prompt has.
    """
    at = looked = 0
    while looked < MOST_LOOKED_AT:
        looked += len(text)
        start = _next(text, "{", at)
        if start < 0:
            return text
        parts, end = _parts(text, start + 1)
        text = text[:start] + generator.choice(parts) + text[end:]
        at = start  # the chosen part may hold choices itself
    raise CascadeError(
        f"'{text[:40]}…' is too long for so many choices {{a|b}}", fix="Write fewer into one text"
    )


def _next(text: str, wanted: str, at: int) -> int:
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == wanted:
            return at
        at += 1
    return -1


def _parts(text: str, at: int) -> tuple[list[str], int]:
    """The parts of the choice whose inside starts at ``at``, and where it ends."""
    parts: list[str] = []
    start, depth = at, 0
    while at < len(text):
        sign = text[at]
        if sign == "\\":
            at += 2
            continue
        if sign == "{":
            depth += 1
        elif sign == "}" and depth:
            depth -= 1
        elif sign == "}":
            return [*parts, text[start:at]], at + 1
        elif sign == "|" and not depth:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]], len(text)


def fill_in(text: str, look_up: Callable[[str, str], Any], now: datetime | None = None) -> str:
    """Replace ``%date:FORMAT%`` and ``%node.widget%`` in a file name.

    Args:
        text: the file name.
        look_up: the value of a node's widget by the node's name and the widget's, None when there is none.
        now: the time; None takes the present.
    """

    def replacement(match: re.Match[str]) -> str:
        inside = match[1]
        if inside.startswith("date:"):
            return _date(inside[5:], now or datetime.now())
        title, dot, widget = inside.partition(".")
        value = look_up(title, widget) if dot and "." not in widget else None
        if value is None:
            return match[0]
        return NOT_IN_FILE_NAMES.sub("_", _as_text(value))

    return PLACEHOLDER.sub(replacement, text) if len(text) <= LONGEST_NAME else text


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _date(form: str, now: datetime) -> str:
    parts = {
        "yyyy": f"{now.year:04d}",
        "yy": f"{now.year % 100:02d}",
        "MM": f"{now.month:02d}",
        "M": str(now.month),
        "dd": f"{now.day:02d}",
        "d": str(now.day),
        "hh": f"{now.hour:02d}",
        "h": str(now.hour),
        "mm": f"{now.minute:02d}",
        "m": str(now.minute),
        "ss": f"{now.second:02d}",
        "s": str(now.second),
    }
    return DATE_PART.sub(lambda match: parts[match[0]], form)
