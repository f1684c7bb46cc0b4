"""CLIP text: captions → states that condition the stages, and new words.

Stage C takes the hidden states *before* the final layer norm and the projected pooled state; the pooled
position is the first end-of-text token, also after words were added (library code that looks for the largest
id would pool elsewhere).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cascade_train.errors import CascadeError
from cascade_train.models import owner


@dataclass(frozen=True)
class TextStates:
    """The states of B captions: ``hidden`` (B, L, D) before the final layer norm, ``pooled`` (B, 1, P)
    projected, ``mask`` (B, L) with 1 for tokens and 0 for padding. fp32."""

    hidden: Tensor
    pooled: Tensor
    mask: Tensor


def text_length(tokenizer: Any) -> int:
    """Tokens a caption is padded or cut to: 77 for CLIP, fewer for nano."""
    return int(min(tokenizer.model_max_length, 77))


def tokenize(tokenizer: Any, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both (B, L) int64; longer captions are cut."""
    tokens = tokenizer(
        list(captions),
        padding="max_length",
        truncation=True,
        max_length=text_length(tokenizer),
        return_tensors="pt",
    )
    return tokens.input_ids, tokens.attention_mask


def encode_text(
    text_model: nn.Module, tokenizer: Any, captions: Sequence[str], device: str | torch.device = "cpu"
) -> TextStates:
    """The states of ``captions`` under a CLIPTextModelWithProjection. Gradients flow if they are on."""
    ids, mask = tokenize(tokenizer, captions)
    return encode_tokens(text_model, ids.to(device), mask.to(device), int(tokenizer.eos_token_id))


def encode_tokens(text_model: Any, ids: Tensor, mask: Tensor, end_id: int) -> TextStates:
    """`encode_text` for token ids (B, L) and their mask; ``end_id`` is the end-of-text token."""
    seen: dict[str, Tensor] = {}

    def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen["hidden"] = inputs[0]

    inner = text_model.text_model
    hook = inner.final_layer_norm.register_forward_pre_hook(keep)
    try:
        normed = inner(input_ids=ids, attention_mask=mask).last_hidden_state
    finally:
        hook.remove()
    first_end = (ids == end_id).int().argmax(dim=1)
    pooled = text_model.text_projection(normed[torch.arange(len(ids), device=ids.device), first_end])
    return TextStates(seen["hidden"].float(), pooled.float()[:, None], mask)


def with_new_tokens(text_model: Any, names: Sequence[str], rows: Tensor | None = None) -> Any:
    """A twin of ``text_model`` (with a ``tokenizer`` of its own) that knows the words ``[name]``. With
    names its table of embeddings is a copy; all else is shared.

    Args:
        names: without brackets; they get the ids after the vocabulary's last, in this order.
        rows: their embeddings (n, D); zeros when None.

    Raises:
        CascadeError: a name is taken, empty or holds spaces or brackets.
    """
    known = text_model.tokenizer.get_vocab()
    for name in names:
        if not re.fullmatch(r"[^\s\[\]]+", name):
            raise CascadeError(f"'{name}' cannot be the name of a token", fix="Use one word without brackets")
        if f"[{name}]" in known:
            raise CascadeError(f"the token [{name}] exists already", fix="Choose another name")
    model: Any = owner.twin(text_model)
    if not names:
        return model
    from transformers import AddedToken

    tokenizer = model.tokenizer
    tokenizer.add_tokens([AddedToken(f"[{name}]", normalized=False, special=False) for name in names])
    ids = [tokenizer.convert_tokens_to_ids(f"[{name}]") for name in names]
    old = model.text_model.embeddings.token_embedding
    size = max(max(ids) + 1, old.num_embeddings)
    new = nn.Embedding(size, old.embedding_dim, dtype=old.weight.dtype, device=old.weight.device)
    with torch.no_grad():
        new.weight.zero_()
        new.weight[: old.num_embeddings] = old.weight
        if rows is not None:
            new.weight[ids] = rows.to(new.weight)
    new.weight.requires_grad_(old.weight.requires_grad)
    model.text_model.embeddings.token_embedding = new
    model.config.vocab_size = size
    return model


def build_text_model(config: Mapping[str, Any]) -> nn.Module:
    """A CLIPTextModelWithProjection of this configuration, weights not set up."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    return CLIPTextModelWithProjection(CLIPTextConfig(**settings))
