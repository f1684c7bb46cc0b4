"""Which text tokens a target trains: reading the settings, finding the rows. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.training.spec import LoRATarget, Target, TokenSpec

if TYPE_CHECKING:
    from torch import Tensor


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
        raise CascadeError("tokens are trained alone or beside a LoRA, not beside full weights",
                           fix="Wire a LoRA, or nothing, into target")
    pairs = []
    for line in _lines(new):
        name, equals, pattern = (piece.strip() for piece in line.partition("="))
        if not equals or not re.fullmatch(r"\[[^\s\[\]]+\]|[^\s\[\]]+", name) or not pattern:
            raise CascadeError(f"'{line}' does not describe a new token",
                               fix="Write [name] = regular expression, such as [concept] = ^shape</w>$")
        pairs.append((name.strip("[]"), _checked(pattern)))
    patterns = tuple(_checked(line) for line in _lines(existing))
    if not pairs and not patterns:
        raise CascadeError("no tokens are named", fix="Write a line such as [concept] = ^shape</w>$")
    base = target if target is not None else LoRATarget(modules="")
    return replace(base, tokens=TokenSpec(tuple(pairs), patterns, learning_rate))


def rows_of(spec: TokenSpec, tokenizer: Any, embedding: Tensor) -> tuple[list[Row], Tensor]:
    """The rows that ``spec`` trains and their values (n, D) fp32 before training.

    A new token starts as the mean of the embeddings whose vocabulary entry its expression finds. Its id is
    still −1: the tokenizer gives it one when it is added.

    Raises:
        CascadeError: an expression that finds nothing; a token that exists already.
    """
    import torch

    vocabulary: dict[str, int] = tokenizer.get_vocab()
    rows: list[Row] = []
    values = []
    table = embedding.detach().float()
    for name, pattern in spec.new:
        ids = [vocabulary[entry] for entry in _found(pattern, vocabulary, tokenizer)]
        rows.append(Row(f"[{name}]", -1, True))
        values.append(table[ids].mean(dim=0))
    taken: set[int] = set()
    for pattern in spec.existing:
        for entry in _found(pattern, vocabulary, tokenizer):
            if vocabulary[entry] not in taken:
                taken.add(vocabulary[entry])
                rows.append(Row(entry, vocabulary[entry], False))
                values.append(table[vocabulary[entry]])
    return rows, torch.stack(values)


def _found(pattern: str, vocabulary: dict[str, int], tokenizer: Any) -> list[str]:
    """The entries that ``pattern`` finds anywhere in them, by id; special tokens are never found."""
    special = set(tokenizer.all_special_ids)
    wanted = re.compile(_checked(pattern))
    found = sorted((entry for entry, i in vocabulary.items() if i not in special and wanted.search(entry)),
                   key=lambda entry: vocabulary[entry])
    if not found:
        from difflib import get_close_matches

        plain = re.sub(r"[^\w]|</w>", "", pattern.replace("</w>", ""))
        near = get_close_matches(f"{plain}</w>", list(vocabulary), n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise CascadeError(f"no vocabulary entry matches the expression '{pattern}'",
                           fix=f"Entries that end a word end in </w>, such as {_example(vocabulary)}{hint}")
    return found


def _example(vocabulary: dict[str, int]) -> str:
    return max((entry for entry in vocabulary if re.fullmatch(r"[a-z]{3,8}</w>", entry)), key=len,
               default="cat</w>")


def _checked(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise CascadeError(f"'{pattern}' is not a regular expression: {error}",
                           fix="Write one such as ^shape</w>$") from error
    return pattern


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
