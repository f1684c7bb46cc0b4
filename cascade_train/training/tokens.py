"""Which text tokens a target trains: reading the settings, finding the rows. Imports no torch."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.training.spec import LoRATarget, Target, TokenSpec

if TYPE_CHECKING:
    from torch import Tensor


SEARCH_SECONDS = 10.0
"""For one expression over a whole vocabulary; a sensible one takes some 0.05 s over CLIP's 49 408 entries."""

LONGEST, REPEATS = 2000, 10_000
"""An expression's characters, and the product of its counts {n}: compiled, it grows with them."""


@dataclass(frozen=True)
class Row:
    """A trained row of the embedding: the token as the vocabulary has it, its id, and whether it is new."""

    name: str
    id: int
    new: bool

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "new": self.new, "id": self.id}


def with_tokens(target: Target | None, new: str, existing: str, learning_rate: float | None) -> Target:
    """``target`` (None: tokens alone) that also trains tokens.

    Args:
        new: lines ``[name] = regular expression``; the brackets may be left out.
        existing: lines that are each a regular expression.
        learning_rate: the tokens' own; None takes the optimizer's.

    Raises:
        CascadeError: a line that is not of this form, a broken expression, nothing to train, or a target that
            tokens cannot join.
    """
    if target is not None and not isinstance(target, LoRATarget):
        raise CascadeError(
            "tokens are trained alone or beside a LoRA, not beside full weights",
            fix="Wire a LoRA, or nothing, into target",
        )
    pairs, patterns = new_tokens(new), existing_tokens(existing)
    if not pairs and not patterns:
        raise CascadeError("no tokens are named", fix="Write a line such as [concept] = ^shape</w>$")
    base = target if target is not None else LoRATarget(modules="")
    return replace(base, tokens=TokenSpec(pairs, patterns, learning_rate))


def new_tokens(text: str) -> tuple[tuple[str, str], ...]:
    """(name, expression) of each line ``[name] = regular expression``.

    Raises:
        CascadeError: a line that is not of this form, a broken expression, a name that is there twice.
    """
    pairs: dict[str, str] = {}
    for line in _lines(text):
        name, equals, pattern = (piece.strip() for piece in line.partition("="))
        if not equals or not re.fullmatch(r"\[[^\s\[\]]+\]|[^\s\[\]]+", name) or not pattern:
            raise CascadeError(
                f"'{line}' does not describe a new token",
                fix="Write [name] = regular expression, such as [concept] = ^shape</w>$",
            )
        name = name.strip("[]")
        if not name.isprintable():
            raise CascadeError(
                f"the token {name!r} holds characters that cannot be seen", fix="Write its name anew"
            )
        if name in pairs:
            raise CascadeError(
                f"the token [{name}] is there twice",
                fix="Keep one line; ^(cat|dog)</w>$ starts it as the mean of two words",
            )
        compiled(pattern)
        pairs[name] = pattern
    return tuple(pairs.items())


def existing_tokens(text: str) -> tuple[str, ...]:
    """The expression of each line; CascadeError for one that is broken."""
    patterns = tuple(_lines(text))
    for pattern in patterns:
        compiled(pattern)
    return patterns


def rows_of(spec: TokenSpec, tokenizer: Any, embedding: Tensor) -> tuple[list[Row], Tensor]:
    """The rows that ``spec`` trains and their values (n, D) fp32 before training.

    A new token starts as the mean of the embeddings whose vocabulary entry its expression finds. Its id is
    still −1: the tokenizer gives it one when it is added.

    Raises:
        CascadeError: an expression that finds nothing; a token that exists already.
    """
    import torch

    vocabulary: dict[str, int] = tokenizer.get_vocab()
    new, existing = found_entries(spec, vocabulary, set(tokenizer.all_special_ids))
    rows: list[Row] = []
    values = []
    table = embedding.detach().float()
    for (name, _), entries in zip(spec.new, new):
        rows.append(Row(f"[{name}]", -1, True))
        values.append(table[[vocabulary[entry] for entry in entries]].mean(dim=0))
    for entry in existing:
        rows.append(Row(entry, vocabulary[entry], False))
        values.append(table[vocabulary[entry]])
    return rows, torch.stack(values)


def found_entries(
    spec: TokenSpec, vocabulary: Mapping[str, int], special: Collection[int]
) -> tuple[list[list[str]], list[str]]:
    """What ``spec`` finds: for each new token the entries that it starts from; the existing ones, each once.

    Args:
        vocabulary: ids by entry.
        special: ids of the begin, end and padding tokens, which are never found.

    Raises:
        CascadeError: an expression that finds nothing; a new token that exists already.
    """
    names = {name: f"[{name}]" for name, _ in spec.new}
    for name, written in names.items():
        if written in vocabulary:
            raise CascadeError(
                f"the token {written} exists already",
                typed=("new_tokens", name),
                fix=f"Choose another name, or train it on in existing_tokens: ^\\[{name}\\]$",
            )
    new = [_found("new_tokens", pattern, vocabulary, special) for _, pattern in spec.new]
    existing: dict[str, None] = {}
    for pattern in spec.existing:
        existing.update(dict.fromkeys(_found("existing_tokens", pattern, vocabulary, special)))
    return new, list(existing)


def found_for(pattern: str, vocabulary: Mapping[str, int], special: Collection[int]) -> list[str]:
    """The entries that one expression over existing words finds; raises as `found_entries` does."""
    return _found("existing_tokens", pattern, vocabulary, special)


def _found(name: str, pattern: str, vocabulary: Mapping[str, int], special: Collection[int]) -> list[str]:
    """The entries that ``pattern`` finds anywhere in them (the reference's rule), by id.

    ``name`` is the input that the pattern was typed into.
    """
    wanted, until = compiled(pattern), time.monotonic() + SEARCH_SECONDS
    found = []
    try:
        for entry, number in vocabulary.items():
            left = until - time.monotonic()
            if number not in special and wanted.search(entry, timeout=max(left, 0.001)):
                found.append(entry)
    except TimeoutError:
        raise CascadeError(
            f"the expression '{pattern}' takes too long to search for",
            typed=(name, pattern),
            fix="Do not repeat what repeats already, as in (a|a)*; write one such as ^(cat|dog)</w>$",
        ) from None
    if not found:
        from difflib import get_close_matches

        plain = re.sub(r"[^\w]|</w>", "", pattern.replace("</w>", ""))
        near = get_close_matches(f"{plain}</w>", list(vocabulary), n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise CascadeError(
            f"no vocabulary entry matches the expression '{pattern}'",
            typed=(name, pattern),
            fix=f"Entries that end a word end in </w>, such as {_example(vocabulary)}{hint}",
        )
    return sorted(found, key=lambda entry: vocabulary[entry])


def _example(vocabulary: Mapping[str, int]) -> str:
    return max(
        (entry for entry in vocabulary if re.fullmatch(r"[a-z]{3,8}</w>", entry)), key=len, default="cat</w>"
    )


def compiled(pattern: str) -> Any:
    """``pattern`` as an expression whose search can be given a time limit.

    Raises:
        CascadeError: it is none, or asks for more repeats than any word has.
    """
    import regex

    short = pattern[: LONGEST + 1]
    counts = [max(1, int(count)) for count in re.findall(r"[{,]\s*(\d+)\s*(?=[,}])", short)]
    if len(pattern) > LONGEST or math.prod(counts) > REPEATS:
        raise CascadeError(
            f"'{pattern[:60]}' is too large for an expression over words", fix="Write one such as ^shape</w>$"
        )
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError, ValueError) as error:
        raise CascadeError(
            f"'{pattern}' is not a regular expression: {error}", fix="Write one such as ^shape</w>$"
        ) from None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
