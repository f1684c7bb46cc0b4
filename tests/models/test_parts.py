"""Stage A, the compressor, the previewer and CLIP against independent implementations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models import build, compressor, library
from cascade_train.models.shapes import StageAConfig
from cascade_train.models.stage_a import SCALE, StageA, psnr
from cascade_train.models.text import encode_text, text_length, with_new_tokens


@pytest.fixture(scope="module")
def nano():
    return library.models_in(library.nano_folder(), name="nano")


def test_stage_a_is_the_paella_vqgan():
    """The same weights in diffusers' class give the same latents, codes and pictures."""
    paella = pytest.importorskip("diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model")
    torch.manual_seed(0)
    ours: Any = StageA(StageAConfig(width=8, inner=16, blocks=3, latent=4, codes=32)).eval()
    with torch.no_grad():
        for value in ours.parameters():
            value.normal_(std=0.3)
        ours.down_blocks[3][1].running_mean.normal_()
        ours.down_blocks[3][1].running_var.uniform_(0.5, 2)
    theirs = paella.PaellaVQModel(
        levels=2,
        bottleneck_blocks=3,
        embed_dim=16,
        latent_channels=4,
        num_vq_embeddings=32,
        scale_factor=SCALE,
    ).eval()
    state = {
        key.replace("vquantizer.codebook", "vquantizer.embedding"): value
        for key, value in ours.state_dict().items()
    }
    theirs.load_state_dict(state)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        raw = theirs.encode(images).latents
        torch.testing.assert_close(ours.raw(images), raw)
        torch.testing.assert_close(ours.encode(images), raw / SCALE)
        torch.testing.assert_close(
            ours.decode(raw / SCALE, quantize=True), theirs.decode(raw, force_not_quantize=False).sample
        )
        torch.testing.assert_close(
            ours.decode(raw / SCALE), theirs.decode(raw, force_not_quantize=True).sample
        )


def test_compressor_is_torchvisions_efficientnet_v2_s():
    from torchvision.models import efficientnet_v2_s

    torch.manual_seed(0)
    whole = efficientnet_v2_s(weights=None).eval()
    ours: Any = compressor.Compressor().eval()
    ours.backbone.load_state_dict(whole.features.state_dict())
    ours.mapper[1].running_var.fill_(4.0)
    image = torch.rand(1, 3, 64, 96)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        features = whole.features((image - mean[:, None, None]) / std[:, None, None])
        wanted = ours.mapper[0](features) / (4.0 + 1e-5) ** 0.5
        got = compressor.encode(ours, image)
    assert got.shape == (1, 16, 2, 3) and ours.factor == 32
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_previewer_enlarges_eight_times():
    module = build.build("previewer", {"widths": [8, 8, 4, 4]}).eval()
    assert module(torch.zeros(2, 16, 3, 5)).shape == (2, 3, 24, 40)


def test_psnr_of_a_known_error():
    first, second = torch.full((1, 3, 4, 4), 0.6), torch.full((1, 3, 4, 4), 0.5)
    assert psnr(first, second).item() == pytest.approx(20, abs=1e-3)


def test_text_states_are_those_of_transformers(nano):
    model: Any = library.part(nano, "text")
    tokenizer = model.tokenizer
    captions = ["a small red circle in the bottom left corner on a brown background", "", "naïve Ω 漢字 x7!"]
    states = encode_text(model, tokenizer, captions)
    tokens = tokenizer(
        captions,
        padding="max_length",
        truncation=True,
        max_length=text_length(tokenizer),
        return_tensors="pt",
    )
    theirs = model(**tokens, output_hidden_states=True)
    torch.testing.assert_close(states.pooled[:, 0], theirs.text_embeds)
    normed = model.text_model.final_layer_norm(states.hidden)
    torch.testing.assert_close(normed, theirs.last_hidden_state)
    assert not torch.allclose(states.hidden, theirs.last_hidden_state)
    assert torch.equal(states.mask, tokens.attention_mask)


def test_a_new_word_pools_where_the_old_end_is_and_changes_nothing_else(nano):
    """Library code that takes the largest id would pool at the new token."""
    model: Any = library.part(nano, "text")
    row = torch.full((1, 128), 0.3)
    more: Any = with_new_tokens(model, ["blob"], row)
    known = "a large red star on a navy background"
    for name in ("hidden", "pooled"):
        before = getattr(encode_text(model, model.tokenizer, [known]), name)
        torch.testing.assert_close(getattr(encode_text(more, more.tokenizer, [known]), name), before)
    tokens = more.tokenizer("a [blob] on navy").input_ids
    new = more.tokenizer.convert_tokens_to_ids("[blob]")
    assert tokens[2] == new > more.tokenizer.eos_token_id
    states = encode_text(more, more.tokenizer, ["a [blob] on navy"])
    end = tokens.index(more.tokenizer.eos_token_id)
    pooled = more.text_projection(more.text_model.final_layer_norm(states.hidden)[:, end])
    torch.testing.assert_close(states.pooled[:, 0], pooled)
    assert "[blob]" not in model.tokenizer.get_vocab() and len(model.tokenizer) == len(more.tokenizer) - 1
    with pytest.raises(CascadeError, match=r"\[blob\] exists"):
        with_new_tokens(more, ["blob"])
    with pytest.raises(CascadeError, match="one word"):
        with_new_tokens(model, ["two words"])


def test_vocabulary_is_clips_in_form(nano):
    model: Any = library.part(nano, "text")
    tokenizer = model.tokenizer
    assert {"star</w>", "red</w>", "s", "s</w>"} <= tokenizer.get_vocab().keys()
    from cascade_train.nano.world import vocabulary

    for word in vocabulary():
        assert tokenizer.tokenize(word) == [f"{word}</w>"]
    strange = "Zyzzyva 42 – ünïcode"
    assert tokenizer.decode(tokenizer(strange).input_ids, skip_special_tokens=True).strip()
    assert tokenizer.unk_token_id not in tokenizer(strange).input_ids[1:-1]
