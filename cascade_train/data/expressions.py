"""Expressions over a sample's fields, such as ``aesthetic_score > 4.5 and width >= 768``, evaluated safely.

Text comes from a stranger's workflow: it is parsed, checked against a short list of what an expression may
hold, and evaluated by simpleeval. No attributes, no comprehensions, no calls but those in `FUNCTIONS`. Beside
Python's operators there is ``contains``: ``caption contains "cat"`` is ``"cat" in caption``.
"""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import threading
import tokenize
from collections.abc import Mapping
from typing import Any

from cascade_train.data.operations import FUNCTIONS, OPERATORS, Meter, evaluator
from cascade_train.errors import CascadeError

_LONGEST = 2000
_DEEPEST = 60
_MOST_LINES = 200


class Missing(Exception):
    """The sample lacks a field that the expression needs; the message is the field's name."""


def field_of(meta: Mapping[str, Any], name: str) -> Any:
    """``meta[name]``, or with dots the field inside a field; None where there is none."""
    if name in meta:
        return meta[name]
    value: Any = meta
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


_ALLOWED = (
    ast.Expression,
    ast.BoolOp,
    ast.And,
    ast.Or,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.IfExp,
    ast.Call,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.List,
    ast.Tuple,
    ast.Subscript,
    ast.Slice,
    *OPERATORS,
)
_REFUSED = {
    ast.Attribute: "attributes (the dot) are not allowed",
    ast.Lambda: "a lambda inside an expression is not allowed",
    ast.ListComp: "comprehensions are not allowed",
    ast.SetComp: "comprehensions are not allowed",
    ast.DictComp: "comprehensions are not allowed",
    ast.GeneratorExp: "comprehensions are not allowed",
    ast.NamedExpr: "assignments are not allowed",
    ast.Await: "await is not allowed",
    ast.JoinedStr: "f-strings are not allowed",
}
_HINT = (
    "Write comparisons of fields, such as aesthetic_score > 4.5 and width >= 768; "
    f"functions: field, {', '.join(sorted(FUNCTIONS))}"
)


def _check(tree: ast.AST, text: str) -> None:
    for node in ast.walk(tree):
        for kind, message in _REFUSED.items():
            if isinstance(node, kind):
                raise CascadeError(f"the expression '{text}' cannot be used: {message}", fix=_HINT)
        if not isinstance(node, _ALLOWED):
            raise CascadeError(
                f"the expression '{text}' cannot be used: {type(node).__name__} is not allowed", fix=_HINT
            )
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            raise CascadeError(
                f"the expression '{text}' cannot be used: the name {node.id} is not allowed", fix=_HINT
            )
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
            if (
                (name != "field" and name not in FUNCTIONS)
                or node.keywords
                or any(isinstance(item, ast.Starred) for item in node.args)
            ):
                raise CascadeError(
                    f"the expression '{text}' cannot be used: calling {name} is not allowed", fix=_HINT
                )


def _depth(node: ast.AST) -> int:
    deepest, level = 0, [node]
    while level:
        deepest += 1
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
    return deepest


def _parse(text: str) -> ast.Expression:
    if len(text) > _LONGEST:
        raise CascadeError("the expression is too long", fix=f"At most {_LONGEST} characters")
    plain, places = _without_contains(text.strip())
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CascadeError(
            f"the expression '{text}' is not understood: {getattr(error, 'msg', error)}", fix=_HINT
        ) from error
    if _depth(tree) > _DEEPEST:
        raise CascadeError("the expression is nested too deeply", fix=_HINT)
    if places:
        _turn_contains(tree, places, text)
    return tree


_Place = tuple[int, int]
"""A line, from 1, and a column in bytes of UTF-8, as `ast` counts."""


def _without_contains(text: str) -> tuple[str, set[_Place]]:
    """``text`` with ``in`` for each ``contains`` that stands where an operator does, and where those are."""
    if "contains" not in text:
        return text, set()
    try:
        tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type != tokenize.NL
        ]
    except (tokenize.TokenError, SyntaxError):
        return text, set()  # ast says what is wrong
    found = []
    for at, token in enumerate(tokens):
        if token.type == tokenize.NAME and token.string == "contains":
            before = tokens[at - 1] if at else None
            if before is not None and before.string == "not" and at > 1:
                before = tokens[at - 2]
            if before is not None and _ends_operand(before):
                found.append(token.start)
    lines = text.split("\n")
    places = set()
    for row, column in sorted(found, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + "in" + line[column + len("contains") :]
    for row, column in found:
        shift = sum(len("contains") - len("in") for r, c in found if r == row and c < column)
        places.add((row, len(lines[row - 1][: column - shift].encode("utf-8"))))
    return "\n".join(lines), places


def _ends_operand(token: tokenize.TokenInfo) -> bool:
    if token.type == tokenize.NAME:
        return not keyword.iskeyword(token.string) or token.string in ("True", "False", "None")
    return token.type in (tokenize.NUMBER, tokenize.STRING) or token.string in (")", "]", "}")


def _turn_contains(tree: ast.AST, places: set[_Place], text: str) -> None:
    """Swap the operands of each ``in`` at ``places``: ``a contains b`` is ``b in a``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        operands = [node.left, *node.comparators]
        marked = any(
            (left.end_lineno, left.end_col_offset) <= place < (right.lineno, right.col_offset)
            for left, right in itertools.pairwise(operands)
            for place in places
        )
        if marked and len(node.ops) > 1:
            raise CascadeError(
                f"the expression '{text}' is not understood: contains stands in a chain of comparisons",
                fix="Write each comparison of its own, with 'and' between them",
            )
        if marked:
            node.left, node.comparators = node.comparators[0], [node.left]


def normalise(text: str) -> str:
    """The plain expression that ``text`` means.

    Accepts a plain expression, ``x contains y`` for ``y in x``, and the reference's
    ``[field, 'lambda s: s > 4.5']`` (the brackets and the quotes may be left out), whose parameter stands for
    the field.

    Raises:
        CascadeError: it is no expression, or holds something that is not allowed.
    """
    tree = _parse(text)
    body = tree.body
    if isinstance(body, (ast.List, ast.Tuple)) and len(body.elts) == 2:
        field, inner = body.elts
        name = field.id if isinstance(field, ast.Name) else getattr(field, "value", None)
        if isinstance(inner, ast.Constant) and str(inner.value).lstrip().startswith("lambda"):
            inner = _parse(str(inner.value)).body
        if isinstance(name, str) and isinstance(inner, ast.Lambda):
            body = _inline(inner, name, text)
    _check(body, text)
    return ast.unparse(ast.fix_missing_locations(body))


def filter_lines(text: str) -> tuple[str, ...]:
    """The filters in ``text``, one a line, as plain expressions; empty lines and ``#`` comments go."""
    lines = [line.strip() for line in text.splitlines()]
    if len(lines) > _MOST_LINES:
        raise CascadeError(f"{len(lines)} lines of filters", fix=f"Write at most {_MOST_LINES}")
    filters = tuple(normalise(line) for line in lines if line and not line.startswith("#"))
    for text in filters:
        if isinstance(_parse(text).body, (ast.List, ast.Tuple)):
            raise CascadeError(
                f"the filter '{text}' is not understood",
                fix="Write [field, 'lambda s: s > 4.5'], or a plain expression",
            )
    return filters


def _inline(function: ast.Lambda, field: str, text: str) -> ast.expr:
    arguments = function.args
    if (
        len(arguments.args) != 1
        or arguments.vararg
        or arguments.kwarg
        or arguments.kwonlyargs
        or arguments.defaults
        or arguments.posonlyargs
    ):
        raise CascadeError(
            f"the filter '{text}' is not understood", fix="The lambda takes one parameter: lambda s: …"
        )
    parameter = arguments.args[0].arg
    value: ast.expr = (
        ast.Name(field, ast.Load())
        if field.isidentifier() and not _is_keyword(field)
        else ast.Call(ast.Name("field", ast.Load()), [ast.Constant(field)], [])
    )

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return value if node.id == parameter else node

    result: ast.expr = Replace().visit(function.body)
    return result


def _is_keyword(name: str) -> bool:
    return keyword.iskeyword(name) or name in FUNCTIONS or name == "field"


class Expression:
    """A checked expression, ready to be evaluated many times."""

    def __init__(self, text: str) -> None:
        self.text = normalise(text)
        self._tree = ast.parse(self.text, mode="eval").body
        self._lock = threading.Lock()
        self._meter = Meter()
        self._evaluator = evaluator(self._meter)
        called = {id(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)}
        self.names = frozenset(
            node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name) and id(node) not in called
        )
        """The bare names in it; what ``field("name")`` asks for is not among them."""

    def value(self, fields: Mapping[str, Any], names: Mapping[str, Any] | None = None) -> Any:
        """What the expression gives for a sample. ``field("name")`` looks into ``fields``, a bare name into
        ``names``, or into ``fields`` too where there are none.

        Raises:
            Missing: a field that it needs is not there.
            TooMuch: it would take more time or memory than any filter needs.
            Exception: whatever the evaluation of such values raises (a comparison of text and number, …).
        """
        from simpleeval import NameNotDefined

        def field(name: Any) -> Any:
            found = field_of(fields, str(name))
            if found is None:
                raise Missing(str(name))
            return found

        with self._lock:
            self._meter.start()
            self._evaluator.names = fields if names is None else names
            self._evaluator.functions["field"] = field
            try:
                return self._evaluator.eval(self.text, previously_parsed=self._tree)
            except NameNotDefined as error:
                raise Missing(error.name) from error
