"""What expressions over samples may do: each operation is bounded by what it would make, before it makes it.

An expression comes from a stranger's workflow and its values from a stranger's files: none may take memory or
time that grows with a number written in it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

MOST = 1 << 20
"""Characters, or items, that one operation may make."""
BUDGET = 1 << 22
"""What one evaluation may cost: a step for each part of the expression, and the sizes of what it handles."""
_DIGITS = 400
"""Digits that a number may be rounded to, or read from."""
_WRITTEN = 10
"""Characters that one of a text may become where a list is written out."""


class TooMuch(ValueError):
    """An operation that would make, or an evaluation that would cost, more than any filter needs."""


def size(value: Any) -> int:
    """About how much ``value`` holds: characters of texts, items of lists and all that is in them, digits."""
    total, pending = 0, [value]
    while pending:
        one = pending.pop()
        total += 1
        if isinstance(one, (str, bytes)):
            total += len(one)
        elif isinstance(one, int):
            total += one.bit_length() // 3
        elif isinstance(one, (list, tuple)):
            pending.extend(one)
        elif isinstance(one, Mapping):
            pending.extend(one.keys())
            pending.extend(one.values())
        if total > BUDGET:
            break
    return total


class Meter:
    """Counts what one evaluation costs."""

    def __init__(self) -> None:
        self._left = 0

    def start(self) -> None:
        self._left = BUDGET

    def spend(self, cost: int) -> None:
        """Raises TooMuch when nothing is left."""
        self._left -= cost
        if self._left < 0:
            raise TooMuch("the expression takes too long")

    def measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, its arguments paid for first."""

        def paid(*values: Any) -> Any:
            self.spend(sum(map(size, values)))
            return function(*values)

        return paid


def _within(length: int) -> None:
    if length > MOST:
        raise TooMuch("the result would be too long")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        raise TypeError(f"{str(value)[:40]!r} is no number here")
    return value


def _power(base: Any, exponent: Any) -> Any:
    if abs(_number(exponent)) > 64 or abs(_number(base)) > 1e6:
        raise TooMuch("the power is too large")
    return base**exponent


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, (str, list, tuple)) and isinstance(other, (str, list, tuple)):
        _within(len(one) + len(other))
    return one + other


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    _within(_WRITTEN * size(value))
    return str(value)


def _round(value: Any, digits: Any = None) -> Any:
    if digits is None:
        return round(value)
    if not isinstance(digits, int) or abs(digits) > _DIGITS:
        raise TooMuch(f"a number is rounded to at most {_DIGITS} digits")
    return round(_number(value), digits)


def _int(value: Any) -> int:
    if isinstance(value, (str, bytes)) and len(value) > _DIGITS:
        raise TooMuch(f"a number has at most {_DIGITS} digits")
    return int(value)


def _replace(text: Any, old: Any, new: Any) -> str:
    whole, before, after = _text(text), _text(old), _text(new)
    if not before:
        return whole
    _within(len(whole) + whole.count(before) * (len(after) - len(before)))
    return whole.replace(before, after)


def _split(text: Any, by: Any = ",") -> list[str]:
    whole, between = _text(text), _text(by)
    if not between:
        raise ValueError("nothing to split by")
    _within(whole.count(between))
    return [part.strip() for part in whole.split(between)]


def _join(parts: Any, by: Any = ", ") -> str:
    between = _text(by)
    texts = [_text(part) for part in parts]
    _within(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "len": len,
    "round": _round,
    "int": _int,
    "float": float,
    "str": _text,
    "bool": bool,
    "sum": sum,
    "lower": lambda s: _text(s).lower(),
    "upper": lambda s: _text(s).upper(),
    "strip": lambda s: _text(s).strip(),
    "startswith": lambda s, start: _text(s).startswith(_text(start)),
    "endswith": lambda s, end: _text(s).endswith(_text(end)),
    "split": _split,
    "join": _join,
    "replace": _replace,
}
"""What an expression may call, besides ``field("name")``."""

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: _plus,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.Mult: lambda a, b: _number(a) * _number(b),
    ast.FloorDiv: lambda a, b: _number(a) // _number(b),
    ast.Mod: lambda a, b: _number(a) % _number(b),
    ast.Pow: _power,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def evaluator(meter: Meter) -> Any:
    """simpleeval's evaluator of these operations, which spends from ``meter``."""
    from simpleeval import EvalWithCompoundTypes

    class Metered(EvalWithCompoundTypes):
        def _eval(self, node: ast.AST) -> Any:
            meter.spend(1)
            value = super()._eval(node)
            if isinstance(node, ast.Subscript):  # a slice is a copy
                meter.spend(size(value))
            return value

    return Metered(
        operators={kind: meter.measured(each) for kind, each in OPERATORS.items()},
        functions={name: meter.measured(each) for name, each in FUNCTIONS.items()},
    )
