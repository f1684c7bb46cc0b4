"""Expressions of a stranger over a stranger's values: each ends at once, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

from cascade_train.data.expressions import Expression, filter_lines
from cascade_train.data.filters.base import Dropped
from cascade_train.data.filters.expression import ExpressionFilter
from cascade_train.data.operations import FUNCTIONS, OPERATORS, TooMuch
from cascade_train.errors import CascadeError

TEXT = "a" * 100_000
FIELDS: dict[str, Any] = {
    **{"text": TEXT, "score": 5.0, "number": 10**300, "names": ["x" * 1000] * 100},
    "nested": [[["y" * 1000] * 10] * 10] * 10,
}
BOMBS = [
    "round(1, -999999999) == 0",
    "round(1, 10 ** 9) == 0",
    "round(score, -(10 ** 12))",
    "replace(text, 'a', text)",
    "replace(replace(replace(text, 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa'), 'a', 'aaaaaaaaaa')",
    "join(text, text)",
    "join([text, text, text, text, text, text, text, text, text, text, text], text)",
    "join([names, names, names, names, names, names, names, names, names, names, names], text)",
    "str([nested, nested, nested, nested, nested, nested, nested, nested, nested, nested, nested])",
    "9 ** 9 ** 9",
    "10 ** 64 * 10 ** 64 * 10 ** 64 * 10 ** 64 * 10 ** 64 * 10 ** 64",
    "number * number * number",
    "text * 100000",
    "[0] * 10 ** 9",
    f"int('{'9' * 1900}')",
    "text + text + text + text + text + text + text + text + text + text + text + text",
    f"[{', '.join(['lower(text) == upper(text)'] * 60)}]",
    f"[{', '.join(['text[1:]'] * 120)}]",
    f"[{', '.join(['len(split(text, chr)) '] * 60)}]".replace("chr", "'a'"),
    f"[{', '.join(['str(names)'] * 100)}]",
]


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:40])
def test_no_expression_takes_much(text: str) -> None:
    expression = Expression(text)
    tracemalloc.start()
    try:
        with pytest.raises((TooMuch, TypeError)):
            expression.value(FIELDS)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_bomb_drops_samples_and_says_why() -> None:
    from cascade_train.data.entry import Entry
    from cascade_train.data.sample import Sample

    judge = ExpressionFilter("round(1, -999999999) == 0")
    with pytest.raises(Dropped, match=r"fails \(TooMuch\)"):
        judge.keep(Sample(Entry("a.png", width=8, height=8), None, lambda entry: ()))  # type: ignore[arg-type]


def test_what_people_write_still_works() -> None:
    fields = {"caption": "A cat, a dog" * 1000, "tags": ["x", "y"], "score": 4.567, "n": 12345}
    for text, wanted in {
        "round(score, 1) == 4.6": True,
        "round(n, -2) == 12300": True,
        "len(split(caption)) == 2000 or len(split(caption)) == 1001": True,
        "'dog' in lower(caption)": True,
        "join(tags, ' ') + '!' == 'x y!'": True,
        "replace(join(tags), 'x', 'z') == 'z, y'": True,
        "2 ** 10 == 1024": True,
        "int('12') + n": 12357,
        "str(tags) == \"['x', 'y']\"": True,
        "caption[0] == 'A' and tags[-1] == 'y'": True,
    }.items():
        assert Expression(text).value(fields) == wanted, text
    large = {"caption": "word " * 200_000}
    assert Expression("len(lower(caption)) > 3 and caption contains 'word'").value(large)


def test_every_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """simpleeval's own walk is what counts them; should it change, this says so."""
    monkeypatch.setattr("cascade_train.data.operations.BUDGET", 50)
    with pytest.raises(TooMuch):
        Expression(" or ".join(["0"] * 60)).value({})


def test_each_evaluation_begins_anew() -> None:
    expression = Expression("len(text) + len(text) + len(text)")
    for _ in range(200):
        assert expression.value(FIELDS) == 300_000


def test_so_many_lines_are_no_filter() -> None:
    with pytest.raises(CascadeError, match="lines of filters"):
        filter_lines("1 == 1\n" * 5000)


def test_any_value_meets_any_operation() -> None:
    """In a process with little memory and little time, every function and operator over odd values."""
    code = f"""
import ast, json, resource
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from cascade_train.data.expressions import Expression
values = {{"t": "a" * 50000, "n": 10 ** 250, "f": 1e308, "e": "", "l": ["a" * 500] * 200, "neg": -9 ** 40}}
names = list(values)
seen = 0
for name in {json.dumps(sorted(FUNCTIONS))}:
    for one in names:
        for text in (f"{{name}}({{one}})", *(f"{{name}}({{one}}, {{two}})" for two in names)):
            try:
                Expression(text).value(values)
            except Exception as error:
                assert not isinstance(error, (MemoryError, RecursionError)), text
            seen += 1
for sign in ("+", "-", "*", "/", "//", "%", "**", "==", "<", "in", "is"):
    for one in names:
        for two in names:
            try:
                Expression(f"{{one}} {{sign}} {{two}}").value(values)
            except Exception as error:
                assert not isinstance(error, (MemoryError, RecursionError))
            seen += 1
print(seen)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and int(done.stdout) > 1000, done.stderr
    assert len(OPERATORS) == 20, "an operator that is new is to be added here"
