"""LoRA, DoRA and tokens: what moves, what does not, and what is left when a run is applied."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec
from cascade_train.models.text import encode_text
from cascade_train.training import run
from cascade_train.training.layers import chosen_layers as chosen
from cascade_train.training.objectives.adapters import layers_of
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import Block, FullTarget, LoRATarget, TokenSpec
from cascade_train.training.tokens import with_tokens
from cascade_train.training.trainer import Trainer


def answers(unet: torch.nn.Module, text: torch.nn.Module, caption: str) -> torch.Tensor:
    states = encode_text(text, text.tokenizer, [caption])
    x = torch.linspace(-2, 2, 16 * 8 * 8).view(1, 16, 8, 8)
    with torch.no_grad():
        return unet(
            sample=x,
            timestep_ratio=torch.tensor([0.7]),
            clip_text_pooled=states.pooled,
            clip_text=states.hidden,
            clip_img=torch.zeros(1, 1, 32),
        ).sample


def weights_of(unet: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weight that each layer computes with."""
    return {
        name: module.weight
        for name, module in unet.named_modules()
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d))
    }


def test_filters_are_the_references_pieces_of_names(models: ModelsSpec) -> None:
    unet = library.part(models, "stage_c")
    attention = chosen(layers_of(unet), "attn")
    assert attention and all(
        name.split(".attention.")[1] in ("to_q", "to_k", "to_v", "to_out.0") for name in attention
    )
    assert chosen(layers_of(unet), ".attn.to_q") == [name for name in attention if name.endswith("to_q")]
    assert chosen(layers_of(unet), "attention.to_q") == chosen(layers_of(unet), ".attn.to_q")
    both = chosen(layers_of(unet), " channelwise , attn.out_proj,")
    assert {name.split(".")[3] for name in both} == {"channelwise", "attention"}
    assert len(chosen(layers_of(unet), "down_blocks.0")) < len(chosen(layers_of(unet), "down_blocks"))


def test_a_filter_that_hits_nothing_names_what_is_near(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    spec = studio.spec("lora", models, target=LoRATarget(modules="attn, chanelwise"))
    with pytest.raises(CascadeError, match="the LoRA filter 'chanelwise' hits no layer") as told:
        Trainer(spec, host)
    assert "channelwise" in str(told.value)


def test_only_adapters_move_and_stage_c_has_no_dropout(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    trainer = Trainer(studio.spec("lora", models), studio.CountingHost(tmp_path))
    unet = trainer.objective.unet  # type: ignore[attr-defined]
    assert not any(module.training for module in unet.modules())
    before = {name: value.clone() for name, value in unet.named_parameters()}
    for _ in range(3):
        trainer.advance(Block(1))
    moved = {name for name, value in unet.named_parameters() if not torch.equal(value, before[name])}
    assert moved and all(".lora_A." in name or ".lora_B." in name for name in moved)
    assert len(moved) == 2 * len(chosen(layers_of(library.part(models, "stage_c")), "attn"))


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_applied_run_answers_as_the_network_did_in_training(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    host = studio.CountingHost(tmp_path)
    spec = studio.spec(kind, models)
    spec = replace(spec, optimizer=replace(spec.optimizer, ema=0.0, learning_rate=0.05))
    position, _ = run.train(run.start(spec, host), 4, host=host)
    live = next(iter(run._live.values())).objective.unet  # type: ignore[attr-defined]
    base, text = library.part(models, "stage_c"), library.part(models, "text")
    whole = library.part(apply_trained(models, position), "stage_c")
    caption = "a red circle"
    untouched = answers(base, text, caption)
    trained = answers(live, text, caption)
    assert (trained - untouched).abs().max() > 0.01
    torch.testing.assert_close(answers(whole, text, caption), trained, rtol=1e-3, atol=1e-4)
    # strength goes from the models to the trained state, along the weights
    half = weights_of(library.part(apply_trained(models, position, 0.5), "stage_c"))
    ends = weights_of(base), weights_of(whole)
    assert half.keys() == ends[0].keys() and any(not torch.equal(half[name], ends[0][name]) for name in half)
    for name, value in half.items():
        torch.testing.assert_close(value, (ends[0][name] + ends[1][name]) / 2, rtol=1e-4, atol=1e-6)
    assert torch.equal(answers(library.part(models, "stage_c"), text, caption), untouched)


def test_merging_is_what_peft_does(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """peft's own merge of the live DoRA against ours."""
    host = studio.CountingHost(tmp_path)
    spec = studio.spec("dora", models)
    spec = replace(spec, optimizer=replace(spec.optimizer, ema=0.0, learning_rate=0.05))
    position, _ = run.train(run.start(spec, host), 3, host=host)
    live = copy.deepcopy(next(iter(run._live.values())).objective.unet)  # type: ignore[attr-defined]
    ours = library.part(apply_trained(models, position), "stage_c")
    for name in chosen(layers_of(library.part(models, "stage_c")), "attn"):
        layer = live.get_submodule(name)
        layer.merge()
        torch.testing.assert_close(
            ours.get_submodule(name).weight,
            layer.get_base_layer().weight,
            rtol=1e-4,
            atol=1e-6,
        )
        layer.unmerge()


def test_a_new_token_starts_as_the_mean_of_what_its_expression_finds(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    trainer = Trainer(studio.spec("tokens", models), studio.CountingHost(tmp_path))
    text: Any = library.part(models, "text")
    vocabulary = text.tokenizer.get_vocab()
    table = text.text_model.embeddings.token_embedding.weight
    (rows,) = trainer.parameters.values()
    mean = (table[vocabulary["star</w>"]] + table[vocabulary["cross</w>"]]) / 2
    torch.testing.assert_close(rows[0], mean)
    assert torch.equal(rows[1], table[vocabulary["circle</w>"]])


def test_only_the_named_rows_move(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """Weight decay and AdamW's moments included: every other row stays the same bits."""
    host = studio.CountingHost(tmp_path)
    spec = studio.spec("tokens", models, dataset=studio.world(64), batch_size=16)
    spec = replace(spec, optimizer=replace(spec.optimizer, weight_decay=0.5))
    position, _ = run.train(run.start(spec, host), 3, host=host)
    base: Any = library.part(models, "text")
    applied: Any = library.part(apply_trained(models, position), "text")
    before = base.text_model.embeddings.token_embedding.weight
    after = applied.text_model.embeddings.token_embedding.weight
    circle = base.tokenizer.get_vocab()["circle</w>"]
    changed = [row for row in range(len(before)) if not torch.equal(before[row], after[row])]
    assert changed == [circle] and len(after) == len(before) + 1
    state = run.trained(position)
    assert state.kind == "tokens" and list(state.tensors) == ["tokens.rows"]
    assert state.settings["tokens"] == [
        {"name": "[concept]", "new": True, "id": len(before)},
        {"name": "circle</w>", "new": False, "id": circle},
    ]
    assert torch.equal(after[[len(before), circle]], state.tensors["tokens.rows"])
    others = {
        name
        for name, value in base.named_parameters()
        if not torch.equal(value, dict(applied.named_parameters())[name][: len(value)])
    }
    assert others == {"text_model.embeddings.token_embedding.weight"}
    # Stage C is not touched by tokens alone
    assert library.part(apply_trained(models, position), "stage_c") is not None
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            library.part(models, "stage_c").state_dict().values(),
            library.part(apply_trained(models, position), "stage_c").state_dict().values(),
        )
    )


def test_the_pooled_state_is_still_the_end_of_texts_with_a_new_token(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """The new token has the largest id; the text still ends at the end."""
    trainer = Trainer(studio.spec("tokens", models), studio.CountingHost(tmp_path))
    objective = trainer.objective
    text = objective._text  # type: ignore[attr-defined]
    ids = text.tokenizer("a [concept] here").input_ids
    assert max(ids) != text.tokenizer.eos_token_id and ids[-1] == text.tokenizer.eos_token_id
    states = objective.text(["a [concept] here"])  # type: ignore[attr-defined]
    inner = text.text_model
    hidden = inner.final_layer_norm(states.hidden)[0, len(ids) - 1]
    torch.testing.assert_close(states.pooled[0, 0], text.text_projection(hidden))


def test_tokens_learn_at_their_own_rate(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    trainer = Trainer(studio.spec("lora", models), studio.CountingHost(tmp_path))
    trainer.step = 10  # past the warm-up
    trainer.advance(Block(1))
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([1e-3, 1e-2])
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.01, 0.0]


def test_lines_of_the_tokens_node_are_read() -> None:
    target = with_tokens(None, "[cat] = ^snail</w>$\n\n  dog=^(a|b)\n", "^tree\n", 0.5)
    assert target == LoRATarget(
        modules="", tokens=TokenSpec((("cat", "^snail</w>$"), ("dog", "^(a|b)")), ("^tree",), 0.5)
    )
    lora = LoRATarget(rank=3)
    assert with_tokens(lora, "[cat] = x", "", None) == replace(lora, tokens=TokenSpec((("cat", "x"),), ()))


@pytest.mark.parametrize(
    ("new", "existing", "message"),
    [
        ("concept", "", "'concept' does not describe a new token"),
        ("[two words] = x", "", "does not describe a new token"),
        ("[a] = (", "", "is not a regular expression"),
        ("", "*", "is not a regular expression"),
        ("", " \n", "no tokens are named"),
    ],
)
def test_lines_that_cannot_be_read_are_told(new: str, existing: str, message: str) -> None:
    with pytest.raises(CascadeError, match=message):
        with_tokens(None, new, existing, None)


def test_tokens_do_not_join_full_training() -> None:
    with pytest.raises(CascadeError, match="not beside full weights"):
        with_tokens(FullTarget(), "[a] = b", "", None)


def test_an_expression_that_matches_nothing_names_words_near_it(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    target = with_tokens(None, "[concept] = ^circel</w>$", "", None)
    with pytest.raises(CascadeError, match="no vocabulary entry matches the expression") as told:
        Trainer(studio.spec("tokens", models, target=target), studio.CountingHost(tmp_path))
    assert "circle</w>" in str(told.value)


def test_a_run_does_not_fit_models_of_another_size(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("stage_a", models), host), 1, host=host)
    from cascade_train.models import applied, build
    from cascade_train.nano import widths

    other = build.build("stage_a", widths.config("stage_a"))
    (link,) = apply_trained(models, position).applied
    with pytest.raises(CascadeError, match="models of another size"):
        applied.merged(other, "stage_a", link)


def test_a_checkpoint_that_was_deleted_is_told_when_models_are_loaded(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    import shutil

    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", models), host), 1, host=host)
    applied = apply_trained(models, position)
    shutil.rmtree(run.checkpoint_of(position))
    library.forget()
    with pytest.raises(CascadeError, match="there is no trained state here"):
        library.part(applied, "stage_c")


def test_a_base_in_bf16_trains_adapters_in_fp32(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    spec = studio.spec("lora", replace(models, precision="bf16"))
    trainer = Trainer(spec, studio.CountingHost(tmp_path))
    trainer.advance(Block(1))
    dtypes = {str(value.dtype) for value in trainer.parameters.values()}
    base = {str(value.dtype) for value in trainer.objective.unet.parameters()}  # type: ignore[attr-defined]
    assert dtypes == {"torch.float32"} and "torch.bfloat16" in base
