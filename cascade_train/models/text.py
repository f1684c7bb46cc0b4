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
from cascade_train.models.captions import chunks, text_length
from cascade_train.models.spec import Captions


@dataclass(frozen=True)
class TextStates:
    """The states of B captions: ``hidden`` (B, L, D) before the final layer norm, ``pooled`` (B, 1, P)
    projected, ``mask`` (B, L) with 1 for tokens and 0 for padding. fp32.

    Where captions of several lengths lie together, ``own`` (B, L) is False at positions that a caption does
    not have; a network has to look past them (`marked`). None: each has all.
    """

    hidden: Tensor
    pooled: Tensor
    mask: Tensor
    own: Tensor | None = None


def together(states: Sequence[TextStates]) -> TextStates:
    """``states`` one after the other as one, the shorter ones filled up with zeros that are not ``own``."""
    pooled = torch.cat([each.pooled for each in states])
    longest = max(each.hidden.shape[1] for each in states)
    if all(each.own is None and each.hidden.shape[1] == longest for each in states):
        hidden = torch.cat([each.hidden for each in states])
        return TextStates(hidden, pooled, torch.cat([each.mask for each in states]))
    own = [torch.ones_like(each.mask, dtype=torch.bool) if each.own is None else each.own for each in states]
    return TextStates(
        torch.cat([filled(each.hidden, longest) for each in states]),
        pooled,
        torch.cat([filled(each.mask, longest) for each in states]),
        torch.cat([filled(each, longest) for each in own]),
    )


def marked(hidden: Tensor, own: Tensor | None) -> Tensor:
    """Text states (B, L, D) as `network.StageNetwork` takes them where only the positions ``own`` (B, L) are
    a caption's: with one channel more, 1 there and 0 elsewhere. None: all are, and nothing is added.

    The marks travel with the states, so that a block that is computed again on the way back sees its own.
    """
    return hidden if own is None else torch.cat([hidden, own.unsqueeze(-1).to(hidden)], dim=-1)


def filled(values: Tensor, length: int) -> Tensor:
    """``values`` (B, L, …) with zeros up to (B, ``length``, …)."""
    more = values.new_zeros(len(values), length - values.shape[1], *values.shape[2:])
    return torch.cat([values, more], dim=1)


@dataclass(frozen=True)
class Tokens:
    """What the encoder is given of B captions: ``ids`` and ``mask`` (R, L) int64, R the sum of ``chunks``,
    which says how many rows each caption takes."""

    ids: Tensor
    mask: Tensor
    chunks: tuple[int, ...]


def tokenize(tokenizer: Any, texts: Sequence[str], captions: Captions = "cut") -> Tokens:
    """The tokens of ``texts``, of which ones that are too long are treated as ``captions`` says.

    Each chunk has a start, an end and padding of its own, with ComfyUI's boundaries for Stable Cascade.
    """
    length = text_length(tokenizer)
    start, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    parts = [chunks(tokenizer, text, captions) for text in texts]
    rows = [[start, *chunk, end] for each in parts for chunk in each]
    return Tokens(
        torch.tensor([row + [pad] * (length - len(row)) for row in rows]),
        torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
        tuple(map(len, parts)),
    )


def encode_text(
    text_model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    device: str | torch.device = "cpu",
    captions: Captions = "cut",
) -> TextStates:
    """The states of ``texts`` under a CLIPTextModelWithProjection. Gradients flow if they are on."""
    return encode_chunks(text_model, tokenizer, tokenize(tokenizer, texts, captions), device)


def encode_chunks(
    text_model: nn.Module, tokenizer: Any, tokens: Tokens, device: str | torch.device = "cpu"
) -> TextStates:
    """The states of captions whose ``tokens`` may be several chunks: the chunks' states one after the other
    (L is that of a chunk times their number), pooled of the first."""
    end = int(tokenizer.eos_token_id)
    rows = encode_tokens(text_model, tokens.ids.to(device), tokens.mask.to(device), end)
    if set(tokens.chunks) == {1}:
        return rows
    counts = list(tokens.chunks)
    parts = zip(rows.hidden.split(counts), rows.pooled.split(counts), rows.mask.split(counts))
    return together(
        [
            TextStates(hidden.flatten(0, 1)[None], pooled[:1], mask.flatten()[None])
            for hidden, pooled, mask in parts
        ]
    )


def encode_tokens(text_model: Any, ids: Tensor, mask: Tensor, end_id: int) -> TextStates:
    """`encode_text` for the ids (B, L) of one chunk each and their mask; ``end_id`` is the end of text."""
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
