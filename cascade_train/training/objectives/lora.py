"""Training adapters on Stage C and rows of the text embedding, together or each alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from cascade_train.models import library
from cascade_train.models.spec import Part
from cascade_train.models.trained import TrainedState
from cascade_train.training.feed import TokenFeed
from cascade_train.training.objectives.adapters import RowEmbedding, adapter_tensors, add_lora
from cascade_train.training.objectives.base import ParameterGroup, save_memory
from cascade_train.training.objectives.stage_c import StageCBase, frozen_text
from cascade_train.training.said import check_said
from cascade_train.training.spec import LoRATarget
from cascade_train.training.tokens import rows_of

if TYPE_CHECKING:
    from cascade_train.host.base import Host
    from cascade_train.models.text import TextStates
    from cascade_train.training.spec import RunSpec

ROWS = "text.text_model.embeddings.token_embedding.rows"


class LoRAObjective(StageCBase):
    """Adapters and tokens over a frozen Stage C and text model, both in eval: no dropout."""

    def __init__(self, spec: RunSpec, host: Host) -> None:
        target = spec.target
        assert isinstance(target, LoRATarget)
        self.target = target
        super().__init__(spec, host)
        modules: dict[str, nn.Module] = {}
        self.rows: list[dict[str, Any]] = []
        shared: list[Part] = []
        if target.tokens is not None:
            text, self.rows = _with_rows(library.own_twin(spec.models, "text", host.device), target)
            shared.append("text")
            if not spec.dataset.streamed:  # what a stream will say is not known
                check_said(
                    target.tokens,
                    text.tokenizer,
                    self.dataset,
                    host,
                    spec.caption_dropout,
                    spec.models.captions,
                )
            self._text = text
            self._tokens = TokenFeed(text.tokenizer, self.device, spec.models.captions)
        else:
            self._frozen = frozen_text(spec, host, self.check_stop)
        if target.modules.strip():
            unet = library.own_twin(spec.models, "stage_c", host.device)
            add_lora(unet, target, spec.seed, spec.models)
            modules["stage_c"] = unet.to(self.device)
        else:
            unet = library.own_twin(spec.models, "stage_c", host.device)
        shared.append("stage_c")
        self._shared = tuple(shared)
        self.unet = unet.eval()
        save_memory(self.unet, spec.checkpointing)
        self.autocast = self.autocast or spec.models.precision == "bf16"
        if target.tokens is not None:
            modules["text"] = self._text.eval()
        self.modules = nn.ModuleDict(modules)

    def in_place(self) -> AbstractContextManager[Any]:
        return library.in_place(self.spec.models, self._shared, self.host.device)

    def text(self, captions: list[str]) -> TextStates:
        if self._frozen is not None:
            return self._frozen.batch(captions)
        return self._tokens.states(self._text, captions)

    def tokenizer(self) -> Any:
        return super().tokenizer() if self._frozen is not None else self._text.tokenizer

    def groups(self) -> list[ParameterGroup]:
        everything = self.parameters()
        rows = {name: value for name, value in everything.items() if name == ROWS}
        adapters = {name: value for name, value in everything.items() if name != ROWS}
        rate = self.target.tokens.learning_rate if self.target.tokens is not None else None
        # decay would pull a word towards the middle of the vocabulary, where it means nothing
        return [ParameterGroup(adapters), ParameterGroup(rows, rate, decay=False)]

    def result(self, weights: Mapping[str, Tensor]) -> TrainedState:
        tensors = adapter_tensors(weights, "stage_c")
        kind = "lora" if tensors else "tokens"
        parts = ["stage_c"] if tensors else []
        settings: dict[str, Any] = {"parts": parts}
        if tensors:
            settings.update(
                rank=self.target.rank,
                alpha=self.target.alpha,
                variant=self.target.kind,
                modules=self.target.modules,
            )
        if self.rows:
            parts.append("text")
            tensors["tokens.rows"] = weights[ROWS]
            settings["tokens"] = self.rows
        return TrainedState(kind, tensors, settings)


def _with_rows(text: nn.Module, target: LoRATarget) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A copy of the text model that knows the new tokens and trains the rows of ``target``."""
    from cascade_train.models.text import with_new_tokens

    assert target.tokens is not None
    table: nn.Embedding = text.text_model.embeddings.token_embedding  # type: ignore[union-attr, assignment]
    rows, values = rows_of(target.tokens, text.tokenizer, table.weight)
    text = with_new_tokens(text, [name for name, _ in target.tokens.new]).requires_grad_(False)
    vocabulary: dict[str, int] = text.tokenizer.get_vocab()  # type: ignore[operator, union-attr]
    rows = [replace(row, id=vocabulary[row.name]) if row.new else row for row in rows]
    embeddings: nn.Module = text.text_model.embeddings  # type: ignore[union-attr, assignment]
    embeddings.token_embedding = RowEmbedding(embeddings.token_embedding, rows, values)  # type: ignore[arg-type]
    return text, [row.settings() for row in rows]
