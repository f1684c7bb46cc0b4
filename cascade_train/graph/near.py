"""Names that a person may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

MOST_COMPARED = 1000


def nearest(wanted: Any, names: Iterable[Any], count: int = 3) -> list[Any]:
    """Up to ``count`` of ``names`` most like ``wanted``, nearest first; case and folders weigh little."""
    by_text: dict[str, Any] = {}
    for name in names:
        by_text.setdefault(str(name).lower()[:200], name)
    text = str(wanted).lower()[:200]
    if text in by_text:
        return [by_text[text]]
    alike = [key for key in by_text if text and (text in key or _last(key) == _last(text))]
    keys = sorted(alike, key=len)[:count]
    if len(keys) < count:
        pool = sorted(by_text, key=lambda key: abs(len(key) - len(text)))[:MOST_COMPARED]
        keys += [key for key in get_close_matches(text, pool, count, cutoff=0.5) if key not in keys]
    return [by_text[key] for key in keys[:count]]


def _last(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def shown(names: Iterable[Any], most: int = 3) -> str:
    """``'a', 'b' or 'c'``, each cut when long."""
    texts = [f"'{str(name)[:80]}'" if isinstance(name, str) else str(name)[:80] for name in names][:most]
    return texts[0] if len(texts) == 1 else ", ".join(texts[:-1]) + f" or {texts[-1]}" if texts else "nothing"
