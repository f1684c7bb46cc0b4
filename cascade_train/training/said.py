"""Whether the captions of a dataset say the words that a run trains; a word that none says learns nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError
from cascade_train.models.captions import read_tokens
from cascade_train.models.spec import Captions
from cascade_train.training.tokens import found_for

if TYPE_CHECKING:
    from cascade_train.data.dataset import OpenDataset
    from cascade_train.data.spec import CaptionSpec
    from cascade_train.host.base import Host
    from cascade_train.training.spec import TokenSpec

BATCH = 1024
"""Samples whose captions are looked at together."""

SEARCHED = 20_000
"""Samples that are searched for captions that came near."""

SHOWN = 3
_FEW = 50


@dataclass(frozen=True)
class Word:
    """What has to be said: as a person wrote it, the input it was typed into, and entries that will do."""

    written: str
    typed: tuple[str, str]
    entries: tuple[str, ...]


def check_said(
    spec: TokenSpec,
    tokenizer: Any,
    dataset: OpenDataset,
    host: Host,
    caption_dropout: float = 0.0,
    read: Captions = "cut",
) -> None:
    """Raise where no caption of ``dataset`` says a word of ``spec``, however captions are varied.

    Captions are taken as a network is shown them: with prefix and suffix, cut at the text limit. Of an
    expression over existing words one has to be said.

    Args:
        tokenizer: knows the new words already.
        read: whether captions that are too long are cut or read in chunks.

    Raises:
        CascadeError: a word is said by none; captions that came near are shown.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    words = _words(spec, vocabulary, set(tokenizer.all_special_ids))
    if caption_dropout >= 1 and words:
        raise CascadeError(
            f"{words[0].written} is never said: a caption dropout of 1 leaves out every caption",
            typed=words[0].typed,
            fix="Use a caption dropout below 1",
        )
    unsaid = _unsaid(words, vocabulary, tokenizer, dataset, host, read_tokens(tokenizer, read))
    if unsaid:
        names = ", ".join(word.written for word in unsaid)
        raise CascadeError(
            f"no caption says {names}, so training would teach nothing of it",
            typed=unsaid[0].typed,
            fix=_cure(unsaid[0], vocabulary, tokenizer, dataset, read_tokens(tokenizer, read)),
        )


def _words(spec: TokenSpec, vocabulary: Mapping[str, int], special: Collection[int]) -> list[Word]:
    new = [Word(f"[{name}]", ("new_tokens", name), (f"[{name}]",)) for name, _ in spec.new]
    return new + [
        Word(
            f"a word that '{pattern}' finds",
            ("existing_tokens", pattern),
            tuple(found_for(pattern, vocabulary, special)),
        )
        for pattern in spec.existing
    ]


def _unsaid(
    words: list[Word],
    vocabulary: Mapping[str, int],
    tokenizer: Any,
    dataset: OpenDataset,
    host: Host,
    limit: int,
) -> list[Word]:
    ids = {word: {vocabulary[entry] for entry in word.entries} for word in words}
    left = dict(ids)
    order = dataset.by_turns()
    for first in range(0, len(order), BATCH):
        texts = [text for sample in order[first : first + BATCH] for text in _texts(dataset, int(sample))]
        texts = _worth_a_look(texts, left)
        if texts:
            for row in tokenizer(texts, add_special_tokens=False, verbose=False).input_ids:
                seen = set(row[:limit])
                for word in [word for word, wanted in left.items() if seen & wanted]:
                    del left[word]
        if not left:
            break
        host.progress(min(first + BATCH, len(order)), len(order), "looking for the trained words in captions")
    return list(left)


def _worth_a_look(texts: Iterable[str], words: Collection[Word]) -> list[str]:
    """Those of ``texts``, each once, that may say one of ``words``; to split a text costs more than this."""
    entries = [entry for word in words for entry in word.entries]
    once = list(dict.fromkeys(texts))
    if len(entries) > _FEW or not all(entry.isascii() for entry in entries):
        return once
    plain = [entry.removesuffix("</w>").lower() for entry in entries]
    return [text for text in once if any(each in text.lower() for each in plain)]


def _texts(dataset: OpenDataset, sample: int) -> Iterator[str]:
    spec = dataset.caption_spec(sample)
    for caption in dataset.captions(sample):
        yield from possible_texts(spec, caption)


def possible_texts(spec: CaptionSpec, caption: str) -> Iterator[str]:
    """Texts that say, before any limit, whatever ``caption`` may say when it is drawn and varied by ``spec``.

    Tags that are shuffled or dropped may each come first after those that stay.
    """
    if not spec.shuffle_tags and spec.tag_dropout <= 0:
        yield f"{spec.prefix}{caption}{spec.suffix}"
        return
    tags = [tag for part in caption.split(spec.separator or ",") if (tag := part.strip())]
    fixed, rest = tags[: spec.keep_first], tags[spec.keep_first :]
    joint = (spec.separator or ",").strip()
    joint = joint + " " if joint else " "
    for more in [[tag] for tag in rest] if spec.tag_dropout < 1 and rest else [[]]:
        yield f"{spec.prefix}{joint.join([*fixed, *more])}{spec.suffix}"


def _cure(word: Word, vocabulary: Mapping[str, int], tokenizer: Any, dataset: OpenDataset, limit: int) -> str:
    samples = islice(dataset.by_turns(), SEARCHED)
    captions = list(dict.fromkeys(text for sample in samples for text in _texts(dataset, int(sample))))
    near = [f"'{_short(text)}' ({why})" for text, why in _near(word, vocabulary, tokenizer, captions, limit)]
    shown = f"Near it come {'; '.join(near)}" if near else f"Captions are such as '{_short(captions[0])}'"
    as_written = word.written if word.typed[0] == "new_tokens" else "it"
    return (
        f"{shown}. Write {as_written} into the captions exactly so, or put it in front of all of them with "
        "the prefix of Caption Options"
    )


def _near(
    word: Word, vocabulary: Mapping[str, int], tokenizer: Any, captions: list[str], limit: int
) -> list[tuple[str, str]]:
    """Captions that nearly say ``word``, and what is amiss with each; the nearest first."""
    wanted = {vocabulary[entry] for entry in word.entries}
    found: list[tuple[str, str]] = []
    for text in _worth_a_look(captions, [word]):
        if wanted & set(tokenizer(text).input_ids):
            found.append((text, f"behind the {limit} tokens that are read"))
            if len(found) >= SHOWN:
                return found
    plain = {re.sub(r"\W", "", entry.removesuffix("</w>")).casefold() for entry in word.entries[:_FEW]} - {""}
    for name in sorted(plain):
        for text in captions:
            if name in text.casefold() and all(text != other for other, _ in found):
                written = re.search(rf"\[?\w*{re.escape(name)}\w*\]?", text, re.IGNORECASE)
                found.append((text, f"writes {written[0] if written else name}"))
                if len(found) >= SHOWN:
                    return found
    spoken = {each for text in captions for each in re.findall(r"\w+", text.casefold())}
    for name in sorted(plain):
        for close in get_close_matches(name, spoken, n=SHOWN - len(found), cutoff=0.75) if not found else ():
            text = next(text for text in captions if close in text.casefold())
            found.append((text, f"writes {close}"))
    return found


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
