"""What a sample says: where its captions come from, and how one is drawn and varied each step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from cascade_train.data.entry import WRITTEN, split_ending
from cascade_train.data.expressions import Expression, Missing, field_of
from cascade_train.data.names import composed
from cascade_train.data.order import permutation, raw, unit
from cascade_train.data.spec import CaptionSpec

HUB_FIELD = "text"
"""What the caption's column is usually called in datasets of the Hugging Face Hub."""


@lru_cache(maxsize=64)
def _getter(text: str) -> Expression:
    return Expression(text)


def _strings(value: Any) -> tuple[str, ...]:
    """The texts in ``value``, numbers as they are written."""
    if not isinstance(value, (list, tuple)):
        value = [value]
    texts = (
        str(item) for item in value if isinstance(item, (str, int, float)) and not isinstance(item, bool)
    )
    return tuple(text for each in texts if (text := each.strip()))


def _field(meta: Mapping[str, Any], name: str) -> Any:
    """The caption field ``name``; of the field that is asked for by default the Hub's name too."""
    written = meta.get(WRITTEN)
    for each in (name, HUB_FIELD) if name == CaptionSpec.field else (name,):
        if isinstance(written, Mapping) and each in written:
            return written[each]
        value = field_of(meta, each)
        if value is not None:
            return value
    return None


def captions_of(
    spec: CaptionSpec, name: str, texts: Mapping[str, str], meta: Mapping[str, Any], folder: str = ""
) -> tuple[str, ...] | None:
    """All captions of a sample before they are varied; None when there is none and none may be made up.

    ``name`` is the picture's path in its source, ``folder`` the name of the source's own folder. A caption
    file that is there but empty is the caption "".
    """
    found = _found(spec, name, texts, meta, folder)
    if found:
        return found
    if found == () and spec.source == "beside" and any(kind in texts for kind in _kinds(spec)):
        return ("",)
    return {
        "error": None,
        "empty": ("",),
        "file name": (stem_words(name),),
        "fixed": (spec.fixed,),
    }[spec.fallback]


def _kinds(spec: CaptionSpec) -> tuple[str, ...]:
    own = spec.extension.lower()
    return tuple(dict.fromkeys((own if own.startswith(".") else "." + own, ".txt", ".caption")))


def _found(
    spec: CaptionSpec, name: str, texts: Mapping[str, str], meta: Mapping[str, Any], folder: str
) -> tuple[str, ...]:
    if spec.source == "fixed":
        return (spec.fixed,)
    if spec.source == "file name":
        return (stem_words(name),)
    if spec.source == "folder name":
        return (words(name.rpartition("/")[0].rpartition("/")[2] or folder),)
    if spec.getter:
        fields = {**meta, **{kind[1:]: text.strip() for kind, text in texts.items()}}
        try:
            return _strings(_getter(spec.getter).value(fields))
        except Missing:
            return ()
    if spec.source == "beside":
        for kind in _kinds(spec):
            if kind in texts:
                return _strings(texts[kind].splitlines() if spec.lines else texts[kind])
    return _strings(_field(meta, spec.field))


def stem_words(name: str) -> str:
    """``dir/red_fox-2.png`` → ``red fox 2``."""
    return words(split_ending(name.rpartition("/")[2])[0])


def words(text: str) -> str:
    return " ".join(composed(text).replace("_", " ").replace("-", " ").split())


def pick(spec: CaptionSpec, captions: tuple[str, ...], chance: float) -> str:
    """One of ``captions``, varied as ``spec`` says; a function of ``chance`` in [0, 1) alone."""
    place = chance * len(captions)
    choice = min(int(place), len(captions) - 1)
    text = captions[choice]
    if spec.shuffle_tags or spec.tag_dropout > 0:
        text = _vary(spec, text, int((place - choice) * (1 << 52)))
    return f"{spec.prefix}{text}{spec.suffix}"


def _vary(spec: CaptionSpec, text: str, key: int) -> str:
    tags = [tag for part in text.split(spec.separator or ",") if (tag := part.strip())]
    fixed, rest = tags[: spec.keep_first], tags[spec.keep_first :]
    if spec.tag_dropout > 0:
        kept = unit(raw(len(rest), key, 5)) >= spec.tag_dropout
        rest = [tag for tag, keep in zip(rest, kept) if keep]
    if spec.shuffle_tags:
        rest = [rest[i] for i in permutation(len(rest), key, 6)]
    joint = (spec.separator or ",").strip()
    return (joint + " " if joint else " ").join([*fixed, *rest])
