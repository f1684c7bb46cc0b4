"""Options that save memory: weights in int8, fp8 or on the CPU, checkpointing, 8-bit moments."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cascade_train.cli import main
from cascade_train.errors import CascadeError
from cascade_train.models import library, owner
from cascade_train.models.compact import CompactLinear, compacted, numbers
from cascade_train.models.spec import Compact, ModelsSpec
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.training import run
from cascade_train.training.objectives import base
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import Block, LoRATarget
from cascade_train.training.trainer import Trainer

KINDS: tuple[Compact, ...] = ("int8", "fp8")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    library.forget()
    yield
    library.forget()


@pytest.fixture(scope="module")
def nano() -> ModelsSpec:
    return library.models_in(library.nano_folder(), name="nano")


def losses(position: Any, steps: int, host: Any) -> list[float]:
    return [row["loss"] for row in run.train(position, steps, host=host)[1].rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("kind", ["", *KINDS])
def test_a_layer_is_bitwise_the_one_that_it_stands_for(
    kind: Compact, offload: bool, autocast: bool, dtype: torch.dtype
) -> None:
    """Answers and gradients are those of a linear layer with the brought weight, and it holds no weight."""
    torch.manual_seed(0)
    layer = nn.Linear(96, 64, dtype=dtype).requires_grad_(False)
    compact = CompactLinear(layer, kind, offload)
    weight = compact.weight
    whole = layer.weight.float()
    largest = whole.abs().amax(1, keepdim=True)
    # half a step: of 254 over a row's range, of the 3 bits of a float8's mantissa, of bf16's 8
    limit = {"": 0 * whole, "int8": largest / 254, "fp8": whole.abs() / 16 + largest / 448 / 2**9}[kind]
    limit = limit + (whole.abs() / 2**8 if dtype == torch.bfloat16 else 0)
    assert ((weight.float() - whole).abs() <= limit * 1.001 + 1e-7).all()

    def answer(call: Any) -> tuple[Tensor, Tensor, int]:
        x = torch.linspace(-2, 2, 5 * 96).view(5, 96).to(dtype).requires_grad_(True)
        saved: list[Tensor] = []

        def keep(value: Tensor) -> Tensor:
            saved.append(value)
            return value

        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            y = call(x)
        y.float().square().sum().backward()
        assert x.grad is not None
        return y, x.grad, sum(value.numel() for value in saved if value.numel() == 64 * 96)

    ours = answer(compact)
    theirs = answer(lambda x: F.linear(x, weight, layer.bias))
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    assert ours[2] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_layers_own_weight_is_gone_before_the_next_one_is_stored(
    kind: Compact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer at most is in memory twice."""
    whole = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5))).requires_grad_(False)
    own = [weakref.ref(layer.weight) for layer in whole]
    left: list[int] = []
    make = CompactLinear.__init__

    def counting(self: CompactLinear, *given: Any) -> None:
        left.append(sum(weight() is not None for weight in own))
        make(self, *given)

    monkeypatch.setattr(CompactLinear, "__init__", counting)
    compacted(whole, "stage_c", ModelsSpec("x", compact=kind))
    assert left == [5, 4, 3, 2, 1] and all(weight() is None for weight in own)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_no_number_is_named(value: float) -> None:
    inner = nn.Linear(64, 64).requires_grad_(False)
    inner.weight[3, 4] = value
    with pytest.raises(CascadeError, match=r"the layer 1\.0 of stage_c has weights that are no numbers"):
        compacted(
            nn.Sequential(nn.Linear(64, 64), nn.Sequential(inner)), "stage_c", ModelsSpec("x", compact="int8")
        )


@pytest.mark.parametrize("kind, off", [("int8", 0.04), ("fp8", 0.07)])
def test_nano_answers_nearly_the_same_in_a_quarter_of_the_memory(
    nano: ModelsSpec, kind: Compact, off: float
) -> None:
    plain: Any = library.part(nano, "stage_c")
    small = library.part(replace(nano, compact=kind), "stage_c")
    sizes = plain.config
    inputs = {
        "sample": torch.linspace(-2, 2, 16 * 64).view(1, 16, 8, 8),
        "timestep_ratio": torch.tensor([0.6]),
        "clip_text_pooled": torch.linspace(-1, 1, sizes.clip_text_pooled_in_channels).view(1, 1, -1),
        "clip_text": torch.linspace(-1, 1, 32 * sizes.clip_text_in_channels).view(1, 32, -1),
        "clip_img": torch.zeros(1, 1, sizes.clip_image_in_channels),
    }
    with torch.no_grad():
        wanted, found = plain(**inputs).sample, small(**inputs).sample
    assert 0 < float((found - wanted).norm() / wanted.norm()) < off
    linear = [m for m in plain.modules() if isinstance(m, nn.Linear) and m.weight.numel() >= 4096]
    saved = sum(m.weight.numel() * 3 - m.out_features * 4 for m in linear)
    assert owner.held_bytes(small) == owner.held_bytes(plain) - saved


@pytest.mark.parametrize("target", ["lora", "dora"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_learn_over_it_nearly_what_they_learn_over_the_plain_base(
    studio: ModuleType, nano: ModelsSpec, tmp_path: Path, kind: Compact, target: str
) -> None:
    curves = {}
    for models in (nano, replace(nano, compact=kind)):
        host = studio.CountingHost(tmp_path / (models.compact or "plain"))
        spec = studio.spec(target, models, batch_size=8, dataset=studio.world(32))
        curves[models.compact] = losses(run.start(spec, host), 12, host)
    means = {name: sum(curve) / len(curve) for name, curve in curves.items()}
    assert means[kind] == pytest.approx(means[""], rel=0.05)
    assert curves[kind] != curves[""]


@pytest.mark.parametrize("kind", KINDS)
def test_an_applied_run_answers_as_in_training(
    studio: ModuleType, nano: ModelsSpec, tmp_path: Path, kind: Compact
) -> None:
    """Adapters trained over a quantised base are laid over that base; it is never merged into and rounded."""
    models = replace(nano, compact=kind)
    host = studio.CountingHost(tmp_path)
    spec = studio.spec("lora", models, target=LoRATarget(rank=4, alpha=4.0))
    spec = replace(spec, optimizer=replace(spec.optimizer, learning_rate=0.01, ema=0.0))
    position, _ = run.train(run.start(spec, host), 2, host=host)
    live: Any = next(iter(run._live.values())).objective.unet  # type: ignore[attr-defined]
    served: Any = library.part(apply_trained(models, position), "stage_c")
    plain: Any = library.part(models, "stage_c")
    layers = [name for name, module in plain.named_modules() if name.endswith("attention.to_q")]
    assert layers
    for name in layers:
        x = torch.linspace(-1, 1, 3 * plain.get_submodule(name).in_features).view(3, -1)
        ours, theirs = served.get_submodule(name)(x), live.get_submodule(name)(x)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(ours, plain.get_submodule(name)(x), atol=1e-4)


@pytest.mark.parametrize("kind", ["lora", "dora", "stage_c", "stage_b"])
@pytest.mark.parametrize("option", ["offload", "checkpointing"])
def test_what_is_said_to_change_no_result_changes_no_bit(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, option: str, kind: str
) -> None:
    """Weights on the CPU, and activations that are worked out again: in fp32 and under bf16 autocast."""
    for precision in ("fp32", "bf16"):
        found = set()
        for on in (False, True):
            run.release()
            library.forget()
            spec = studio.spec(kind, models, precision=precision)
            if option == "offload":
                spec = replace(spec, models=replace(models, offload=on))
            else:
                spec = replace(spec, checkpointing="on" if on else "off")
            host = studio.CountingHost(tmp_path / precision / str(on))
            position, _ = run.train(run.start(spec, host), 3, host=host)
            assert position.spec.digest == studio.spec(kind, models, precision=precision).digest
            found.add(studio.fingerprint(position))
        assert len(found) == 1, precision


@pytest.mark.parametrize("checkpointing, times", [("off", 2), ("on", 3)])
def test_a_step_brings_each_weight_as_often_as_the_node_says(
    studio: ModuleType, nano: ModelsSpec, tmp_path: Path, checkpointing: str, times: int
) -> None:
    spec = studio.spec("lora", replace(nano, offload=True), checkpointing=checkpointing)
    trainer = Trainer(spec, studio.CountingHost(tmp_path))
    network: nn.Module = trainer.objective.unet  # type: ignore[attr-defined]
    names = {id(layer): name for name, layer in network.named_modules() if isinstance(layer, CompactLinear)}
    brought: Counter[str] = Counter()
    bring = CompactLinear.brought

    def counting(self: CompactLinear) -> Tensor:
        brought[names[id(self)]] += 1
        return bring(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompactLinear, "brought", counting)
        trainer.advance(Block(1))
    # the layers before the first adapter need no gradient
    assert brought and max(brought.values()) == times
    assert sum(count == times for count in brought.values()) > len(names) / 2


def test_a_network_is_as_large_wherever_its_weights_lie(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Automatic checkpointing, which a small card needs most, goes by all weights."""
    plain = library.part(models, "stage_c")
    for compact in ("", *KINDS):
        for offload in (False, True):
            form = replace(models, compact=compact, offload=offload)
            assert numbers(plain) <= numbers(library.part(form, "stage_c")) < 1.05 * numbers(plain)
    monkeypatch.setattr(base, "LARGE", numbers(plain))
    for offload in (False, True):
        spec = studio.spec("lora", replace(models, offload=offload))
        network: Any = Trainer(spec, studio.CountingHost(tmp_path)).objective.unet  # type: ignore[attr-defined]
        assert network.gradient_checkpointing, offload


def test_a_part_that_is_trained_itself_is_not_touched(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """All of Stage C learns from its whole weights, whatever form the frozen parts have."""
    made = []
    for compact in ("", "int8"):
        host = studio.CountingHost(tmp_path / (compact or "plain"))
        spec = studio.spec("stage_c", replace(models, compact=compact))
        position, _ = run.train(run.start(spec, host), 2, host=host)
        made.append(run.trained(position).tensors)
        run.release()
    assert made[0].keys() == made[1].keys()
    assert all(torch.equal(made[1][name], value) for name, value in made[0].items())


def test_offloaded_weights_lie_once_in_main_memory(nano: ModelsSpec) -> None:
    """Twins share them, and the module holds only its small tensors on the device."""
    models = replace(nano, offload=True)
    plain, far = library.part(nano, "stage_c"), library.part(models, "stage_c")
    assert owner.held_bytes(far) < 0.15 * owner.held_bytes(plain)
    other = library.own_twin(models, "stage_c")
    kept = [
        (ours.kept, theirs.kept)
        for ours, theirs in zip(far.modules(), other.modules())
        if isinstance(ours, CompactLinear) and isinstance(theirs, CompactLinear)
    ]
    assert kept and all(ours is theirs for ours, theirs in kept)
    drawn = [
        text_to_image(
            each, ["a red star on a navy background"], seeds=[1], steps_c=4, steps_b=2, preview=False
        )
        for each in (nano, models)
    ]
    assert torch.equal(*drawn)


def test_eight_bit_moments_learn_the_same_and_resume_bit_for_bit(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    curves = {}
    for name in ("adamw", "adamw8bit"):
        spec = studio.spec("stage_c", models)
        spec = replace(spec, optimizer=replace(spec.optimizer, name=name))
        host = studio.CountingHost(tmp_path / name)
        start = run.start(spec, host)
        position, _ = run.train(start, 6, host=host)
        curves[name] = losses(start, 6, host)
        whole = studio.fingerprint(position)
        run.release()
        again = studio.CountingHost(tmp_path / f"{name} again")
        half, _ = run.train(run.start(spec, again), 3, host=again)
        run.release()
        assert studio.fingerprint(run.train(half, 3, host=again)[0]) == whole, name
    assert curves["adamw8bit"] == pytest.approx(curves["adamw"], rel=0.02)
    assert curves["adamw8bit"] != curves["adamw"]
    state = run.checkpoint_of(position) / "state.safetensors"
    from safetensors import safe_open

    with safe_open(state, "pt") as stored:
        moments = [key for key in stored.keys() if "/state1/" in key]  # noqa: SIM118
        large = [key for key in moments if stored.get_tensor(key).numel() >= 4096]
        assert large and all(stored.get_tensor(key).dtype == torch.uint8 for key in large)


def test_without_bitsandbytes_it_is_said_before_anything_loads(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "bitsandbytes" else real(name, *rest)
    )
    spec = studio.spec("lora", models)
    spec = replace(spec, optimizer=replace(spec.optimizer, name="adamw8bit"))
    with pytest.raises(CascadeError, match=r"needs bitsandbytes.*cascade-train\[optim\]"):
        run.start(spec, studio.CountingHost(tmp_path))


def test_the_nodes_take_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = Path(__file__).resolve().parents[2] / "workflows" / "text_to_image.json"
    few = {"Sample Stage C.steps": 2, "Sample Stage C.pictures": 1, "Decode Stage B.steps": 1}
    options = {"Load Stable Cascade.compact": "int8", "Load Stable Cascade.offload": "true", **few}
    arguments = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
    code = main(["run", str(workflow), *arguments, "--output-dir", str(tmp_path), "--json"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert json.loads(told.out.splitlines()[-1])
    assert list(tmp_path.rglob("stars_*.png"))
