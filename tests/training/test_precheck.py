"""Mistakes in a run's settings are found when it is described, before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models import build, layouts, library
from cascade_train.models.spec import ModelsSpec
from cascade_train.training import run, tokens
from cascade_train.training.layers import layers_in
from cascade_train.training.objectives.adapters import layers_of
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import LoRATarget, TokenSpec

LAYOUTS = Path(__file__).parents[1] / "models" / "layouts"


def official(name: str) -> Mapping[str, Sequence[int]]:
    grouped = json.loads((LAYOUTS / f"{name}.json").read_text(encoding="utf-8"))
    return {key: json.loads(shape) for shape, keys in grouped.items() for key in keys.split()}


@pytest.mark.parametrize("name", ["stage_c", "stage_c_lite"])
def test_an_official_files_header_names_the_layers_of_its_network(name: str) -> None:
    shapes = official(name)
    with torch.device("meta"):
        network = build.build("stage_c", layouts.unet_config(shapes))
    assert sorted(layers_in(shapes)) == sorted(layers_of(network))
    prefixed = {f"model.diffusion_model.{key}": shape for key, shape in shapes.items()}
    assert layers_in(prefixed) == layers_in(shapes)


def test_so_does_the_header_of_the_models_here(models: ModelsSpec) -> None:
    from cascade_train.models.weights import read_header

    shapes, _ = read_header(Path(library.part_file(models, "stage_c").path))
    assert sorted(layers_in(shapes)) == sorted(layers_of(library.part(models, "stage_c")))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (LoRATarget(modules="attn, atn"), r"the LoRA filter 'atn' hits no layer \(input modules\).*attn"),
        (LoRATarget(modules=" "), "no layers: its filter is empty"),
        (LoRATarget(rank=0), "rank 0"),
        (
            LoRATarget(tokens=TokenSpec((("concept", "^circel</w>$"),))),
            r"no vocabulary entry matches the expression '\^circel</w>\$' \(input new_tokens\).*circle</w>",
        ),
        (LoRATarget(tokens=TokenSpec((), ("^circel</w>$",))), r"\(input existing_tokens\)"),
    ],
)
def test_what_the_models_do_not_have_is_told_when_the_run_is_described(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, target: LoRATarget, message: str
) -> None:
    host = studio.CountingHost(tmp_path)
    with pytest.raises(CascadeError, match=message):
        run.start(studio.spec("lora", models, target=target), host)
    assert not host.folders.runs.exists(), "no run is made of it"


def test_a_token_of_a_run_that_was_applied_exists_and_can_be_trained_on(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    taught, _ = run.train(run.start(studio.spec("tokens", models), host), 1, host=host)
    more = apply_trained(models, taught)
    again = LoRATarget(modules="", tokens=TokenSpec((("concept", "^star</w>$"),)))
    with pytest.raises(CascadeError, match=r"\[concept\] exists already.*existing_tokens"):
        run.start(studio.spec("tokens", more, target=again), host)
    on = replace(again, tokens=TokenSpec((), (r"^\[concept\]$",)))
    later, _ = run.train(run.start(studio.spec("tokens", more, target=on), host), 1, host=host)
    (row,) = run.trained(later).settings["tokens"]
    assert row["name"] == "[concept]" and not row["new"]


def test_an_expression_finds_entries_as_the_reference_does() -> None:
    """Anywhere in an entry (train_c_lora.py: ``re.search``), so that anchors are the person's to set."""
    vocabulary = {"snail</w>": 7, "snails</w>": 5, "a": 1, "a</w>": 2, "<|end|>": 9}

    def found(pattern: str) -> list[str]:
        return tokens.found_entries(TokenSpec((), (pattern,)), vocabulary, {9})[1]

    assert found("snail") == ["snails</w>", "snail</w>"]
    assert found("^snail</w>$") == ["snail</w>"]
    assert found("^snail") == ["snails</w>", "snail</w>"]
    assert found("a$") == ["a"]
    with pytest.raises(CascadeError, match="no vocabulary entry"):
        found("end")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(-+)+$", "(-|-)*$", "(.*)*x", "(a|a|-)*b$"])
def test_an_expression_that_would_never_end_is_given_up(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLIP's vocabulary has rows of up to 64 equal signs, over which these try 2^64 ways."""
    monkeypatch.setattr(tokens, "SEARCH_SECONDS", 0.5)
    vocabulary = {"-" * 64 + "</w>": 0, "a" * 64 + "</w>": 1}
    with pytest.raises(CascadeError, match=r"takes too long|no vocabulary entry"):
        tokens.found_entries(TokenSpec((), (pattern,)), vocabulary, set())


@pytest.mark.parametrize("pattern", ["((((a{99}){99}){99}){99}){99}", "a" * 3000, "(a{0,1}(b{1000}){1000})"])
def test_an_expression_that_would_fill_the_memory_is_refused(pattern: str) -> None:
    with pytest.raises(CascadeError, match="too large"):
        tokens.compiled(pattern)


def test_a_token_named_twice_is_told() -> None:
    with pytest.raises(CascadeError, match=r"\[cat\] is there twice"):
        tokens.new_tokens("[cat] = ^cat</w>$\ncat = ^dog</w>$")


@pytest.mark.skipif(
    int(version("transformers").split(".")[0]) < 5,
    reason="older transformers import torch with any tokenizer",
)
def test_nothing_of_it_needs_torch(models_folder: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cascade_train.data.spec import Dataset\n"
        "from cascade_train.models import library\n"
        "from cascade_train.training import precheck\n"
        "from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec, TokenSpec\n"
        "models = library.models_in(Path(sys.argv[1]), name='tiny')\n"
        "target = LoRATarget(tokens=TokenSpec((('a', '^star'),)))\n"
        "precheck.examine(RunSpec(models, Dataset(()), target, OptimizerSpec()))\n"
        "assert not {'torch', 'diffusers', 'cv2'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(models_folder)], capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr


def test_models_that_predict_something_else_are_noticed(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    host = studio.CountingHost(tmp_path)
    told: list[str] = []
    host.sink.warn = told.append
    v = studio.spec("stage_c", models, objective="v")
    later, _ = run.train(run.start(v, host), 1, host=host)
    assert "the models predict epsilon and the objective is v" in told.pop()
    over_v = apply_trained(models, later)
    run.start(studio.spec("lora", over_v, objective="v"), host)
    run.start(studio.spec("stage_b", over_v), host)
    assert not told, "the same on both sides, and a stage that the run left alone"
    run.start(studio.spec("lora", over_v), host)
    assert "the models predict v and the objective is epsilon" in told.pop()
    with pytest.raises(CascadeError, match=r"tokens alone cannot .* predict epsilon.*Choose the objective v"):
        run.start(studio.spec("tokens", over_v), host)
