"""Captions of a run that its text encoder does not read to their end: counted and said once.

Imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.models.captions import TooLong, read_tokens, too_long
from cascade_train.models.clip import load_tokenizer
from cascade_train.models.library import part_file
from cascade_train.models.spec import Captions, ModelsSpec
from cascade_train.models.trained import kind_and_settings

if TYPE_CHECKING:
    from cascade_train.data.dataset import OpenDataset
    from cascade_train.host.base import Host

SEARCHED = 100_000
"""Samples of a dataset whose captions are looked at; with CLIP's tokenizer a few seconds' work."""

BATCH = 1024


def tokenizer_of(models: ModelsSpec) -> Any:
    """The tokenizer of the models' text encoder, which is not loaded, with the words of runs laid over it."""
    tokenizer = load_tokenizer(Path(part_file(models, "text").path))
    applied = [kind_and_settings(run)[1] for run in models.applied]
    names = [token["name"] for each in applied for token in each.get("tokens", ()) if token["new"]]
    if names:
        from transformers import AddedToken

        tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in names])
    return tokenizer


def in_dataset(tokenizer: Any, dataset: OpenDataset, captions: Captions, host: Host | None = None) -> TooLong:
    """How many captions of ``dataset``, as a network is shown them, are not read to their end.

    Tags count whether or not they are dropped now and then. Of a large dataset the first `SEARCHED` samples
    are looked at. ``host`` hears how far this is, and may stop it.
    """
    order = dataset.by_turns()[:SEARCHED]
    found = TooLong(read_tokens(tokenizer, captions))
    for first in range(0, len(order), BATCH):
        texts = [
            f"{spec.prefix}{text}{spec.suffix}"
            for sample in order[first : first + BATCH].tolist()
            for spec in (dataset.caption_spec(sample),)
            for text in dataset.captions(sample)
        ]
        found = found.joined(too_long(tokenizer, texts, captions))
        if host is not None and first + BATCH < len(order):
            host.progress(first + BATCH, len(order), "looking for captions that are too long")
    return found


class Remarks:
    """What is said of the captions that a run is shown: of a dataset before it trains; of a stream, whose
    captions nobody knows before, of the first long one when it comes and of their number after a block."""

    def __init__(self, tokenizer: Any, captions: Captions, host: Host) -> None:
        self._tokenizer, self._captions, self._host = tokenizer, captions, host
        self._met: dict[str, TooLong] = {}
        self.lines: list[str] = []

    def of_dataset(self, dataset: OpenDataset) -> None:
        """Say of ``dataset`` what there is to say."""
        self._say(in_dataset(self._tokenizer, dataset, self._captions, self._host).line(self._captions))

    def see(self, caption: str) -> None:
        """``caption`` of a stream is read."""
        if caption not in self._met:
            found = too_long(self._tokenizer, [caption], self._captions)
            if found.count:
                self._met[caption] = found
                if len(self._met) == 1:
                    self._host.warn(found.line(self._captions) + "; more are counted as they come")

    def of_stream(self) -> None:
        """Say how many captions of a stream have been too long by now."""
        if self._met:
            longest = max(self._met.values(), key=lambda each: each.tokens)
            self.lines.clear()
            self._say(longest.line(self._captions, many=f"{len(self._met)} captions that were streamed are"))

    def _say(self, line: str) -> None:
        if line:
            self.lines.append(line)
            self._host.warn(line)
