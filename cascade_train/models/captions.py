"""How much of a caption the text encoder reads, and what is said of captions that are longer.

CLIP reads a fixed number of tokens at a time (77, of which a start and an end). A longer caption is either
cut there, or read in chunks that each have a start and an end of their own, as ComfyUI does.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from cascade_train.models.spec import Captions

MOST_CHUNKS = 16
"""Chunks that a caption is read in at most: some 900 words, far more than anyone describes a picture with."""

BATCH = 1024
SPECIAL = 2
"""Of the tokens of a chunk: its start and its end."""


def text_length(tokenizer: Any) -> int:
    """Tokens of a chunk: 77 for CLIP, fewer for nano."""
    return int(min(tokenizer.model_max_length, 77))


def read_tokens(tokenizer: Any, captions: Captions) -> int:
    """How many tokens of a caption are read, starts and ends not counted."""
    return (text_length(tokenizer) - SPECIAL) * (MOST_CHUNKS if captions == "chunks" else 1)


def chunks(tokenizer: Any, caption: str, captions: Captions) -> list[list[int]]:
    """The token ids of ``caption`` as the encoder is given them, without starts, ends and padding.

    There is one list for each chunk, at least one, which may be empty.
    """
    size = text_length(tokenizer) - SPECIAL
    ids = tokenizer(caption, add_special_tokens=False, verbose=False).input_ids
    ids = ids[: read_tokens(tokenizer, captions)]
    return [ids[first : first + size] for first in range(0, max(len(ids), 1), size)]


@dataclass(frozen=True)
class TooLong:
    """``count`` captions of ``seen`` have more than the ``limit`` tokens that are read, of which ``example``
    (``tokens`` long) is the longest."""

    limit: int
    count: int = 0
    seen: int = 0
    example: str = ""
    tokens: int = 0

    def joined(self, other: TooLong) -> TooLong:
        """Both counts as one."""
        longer = self if self.tokens >= other.tokens else other
        return replace(longer, count=self.count + other.count, seen=self.seen + other.seen)

    def line(self, captions: Captions, many: str = "") -> str:
        """What a person is told, empty where no caption is too long; ``many`` says how many otherwise."""
        if not self.count:
            return ""
        ends = "their ends are" if self.seen > 1 or many else "its end is"
        many = many or (f"{self.count} of {self.seen} captions are" if self.seen > 1 else "the caption is")
        cure = " (Load Stable Cascade's captions 'chunks' reads them whole)" if captions == "cut" else ""
        example = self.example if len(self.example) <= 60 else self.example[:59] + "…"
        return (
            f"{many} longer than the {self.limit} tokens that are read, and {ends} cut: "
            f"'{' '.join(example.split())}' has {self.tokens}{cure}"
        )


def too_long(tokenizer: Any, texts: Iterable[str], captions: Captions) -> TooLong:
    """How many of ``texts`` are not read to their end."""
    limit = read_tokens(tokenizer, captions)
    found = TooLong(limit)
    rest = iter(texts)
    while some := list(islice(rest, BATCH)):
        found = replace(found, seen=found.seen + len(some))
        # a token stands for a byte at least, so that short texts need not be split; NFC may double a few
        worth = [text for text in some if 2 * len(text.encode("utf-8", "replace")) > limit]
        if not worth:
            continue
        for text, ids in zip(worth, tokenizer(worth, add_special_tokens=False, verbose=False).input_ids):
            if len(ids) > limit:
                found = found.joined(TooLong(limit, 1, 0, text, len(ids)))
    return found
