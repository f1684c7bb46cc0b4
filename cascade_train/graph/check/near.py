"""Names that a person may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

MOST_COMPARED = 30


def nearest(wanted: Any, names: Iterable[Any], count: int = 3, cutoff: float = 0.5) -> list[Any]:
    """Up to ``count`` of ``names`` most like ``wanted``, nearest first; case and folders weigh little.

    Quick also among thousands of names: only those that share the most pairs of letters are compared in full.
    """
    by_text: dict[str, Any] = {}
    for name in names:
        by_text.setdefault(str(name).lower()[:200], name)
    text = str(wanted).lower()[:200]
    if text in by_text:
        return [by_text[text]]
    pairs = _pairs(text)
    alike = [key for key in by_text if text and (text in key or _last(key) == _last(text))]
    keys = sorted(alike, key=len)[:count]
    if len(keys) < count:
        pool = sorted(by_text, key=lambda key: (-len(pairs & _pairs(key)), abs(len(key) - len(text))))
        keys += [
            key for key in get_close_matches(text, pool[:MOST_COMPARED], count, cutoff) if key not in keys
        ]
    return [by_text[key] for key in keys[:count]]


@lru_cache(maxsize=20_000)
def _pairs(text: str) -> frozenset[str]:
    return frozenset(text[i : i + 2] for i in range(len(text) - 1))


def _last(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def alternatives(names: Iterable[Any], most: int = 3) -> str:
    """``'a', 'b' or 'c'``, each cut when long."""
    texts = [f"'{str(name)[:80]}'" if isinstance(name, str) else str(name)[:80] for name in names][:most]
    if len(texts) < 2:
        return texts[0] if texts else "nothing"
    return ", ".join(texts[:-1]) + f" or {texts[-1]}"


def with_article(noun: str) -> str:
    """``noun`` with its article: ``an IMAGE``, ``a MASK``."""
    return f"{'an' if noun[:1].upper() in tuple('AEIOU') else 'a'} {noun}"
