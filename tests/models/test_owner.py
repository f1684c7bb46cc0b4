"""One owner of memory: what is shared, what leaves when room is short, and no result that changes for it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.models import library, owner
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling import links, stages, tiles
from cascade_train.sampling.conditioning import encode_prompts
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.training import run
from cascade_train.training.run import apply_trained
from cascade_train.training.spec import LoRATarget


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    library.forget()
    yield
    owner.set_limit("cpu", None)
    library.forget()


@pytest.fixture(scope="module")
def nano() -> ModelsSpec:
    return library.models_in(library.nano_folder(), name="nano")


def storages(*modules: nn.Module) -> dict[int, int]:
    """Bytes by storage of all that the modules hold."""
    values = itertools.chain.from_iterable((*m.parameters(), *m.buffers()) for m in modules)
    return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in values}


def held() -> list[str]:
    return [base.part for base in owner._BASES.values()]


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_trainer_preview_and_validation_share_one_base(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    """Whatever is laid over Stage C, its weights are in memory once."""
    host = studio.CountingHost(tmp_path)
    first, _ = run.train(run.start(studio.spec(kind, models), host), 1, host=host)
    later, _ = run.train(first, 1, host=host)
    live: Any = next(iter(run._live.values()))
    plain = library.part(models, "stage_c")
    served = [
        library.part(apply_trained(models, position, strength), "stage_c")
        for position, strength in ((first, 1.0), (later, 0.5))
    ]
    text_to_image(apply_trained(models, later), ["a red circle"], seeds=[1], steps_c=2, steps_b=1)
    whole = sum(storages(live.objective.unet, plain, *served).values())
    adapters = sum(value.numel() * 4 for value in live.parameters.values())
    assert whole <= owner.held_bytes(plain) + 4 * adapters
    assert library.part(models, "stage_c") is plain and held().count("stage_c") == 1


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_serving_between_steps_changes_no_bit(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str
) -> None:
    """Neither of the training, nor of what the plain models draw."""

    def drawn(of: ModelsSpec) -> torch.Tensor:
        return text_to_image(of, ["a red circle"], seeds=[1], steps_c=2, steps_b=1, preview=False)

    plain = drawn(models)
    fingerprints = set()
    for looks in (False, True):
        run.release()
        library.forget()
        host = studio.CountingHost(tmp_path / str(looks))
        position = start = run.start(studio.spec(kind, models), host)
        for _ in range(3):
            position, _ = run.train(position, 1, host=host)
            if looks:
                assert torch.equal(drawn(models), plain)
                wordless = LoRATarget(rank=3, alpha=1.0, modules="channelwise")
                other, _ = run.train(
                    run.start(studio.spec(kind, models, target=wordless), host), 1, host=host
                )
                both = apply_trained(apply_trained(models, position, 0.5), other)
                assert not torch.equal(drawn(both), plain)
                assert torch.equal(drawn(models), plain)
        fingerprints.add(studio.fingerprint(position))
        assert start.step == 0
    assert len(fingerprints) == 1


@pytest.mark.parametrize("strength", [1.0, 0.5, -0.7])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_laid_over_is_as_merged(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path, kind: str, strength: float
) -> None:
    host = studio.CountingHost(tmp_path)
    spec = studio.spec(kind, models)
    spec = replace(spec, optimizer=replace(spec.optimizer, ema=0.0, learning_rate=0.05))
    position, _ = run.train(run.start(spec, host), 3, host=host)
    applied = apply_trained(models, position, strength)
    over, into = library.part(applied, "stage_c"), library.own_copy(applied, "stage_c")
    for name, layer in into.named_modules():
        if isinstance(layer, nn.Linear):
            weight = over.get_submodule(name).weight
            torch.testing.assert_close(weight, layer.weight, rtol=1e-5, atol=1e-6)


def test_parts_leave_by_bytes_encoders_first(nano: ModelsSpec) -> None:
    """With room for Stages C and B and little else, both stay and the encoders go."""
    sizes = {part: owner.held_bytes(library.part(nano, part)) for part in ("stage_c", "stage_b", "text")}
    library.forget()
    owner.set_limit("cpu", sizes["stage_c"] + sizes["stage_b"] + sizes["text"] // 2)
    caption = ["a large red star in the centre on a navy background"]
    short = text_to_image(nano, caption, seeds=[3], preview=False)
    assert owner.held_on("cpu") <= sizes["stage_c"] + sizes["stage_b"] + sizes["text"] // 2
    assert "stage_b" in held() and "text" not in held()
    owner.set_limit("cpu", None)
    library.forget()
    assert torch.equal(text_to_image(nano, caption, seeds=[3], preview=False), short)
    assert {"text", "stage_c", "stage_b", "stage_a"} <= set(held())


def test_what_computes_stays_and_what_was_used_longest_ago_goes(nano: ModelsSpec) -> None:
    for part in ("stage_a", "stage_b", "previewer", "text"):
        library.part(nano, part)
    library.part(nano, "stage_a")
    with library.use(nano, "previewer"):
        left = []
        while len(held()) > 1:
            owner.set_limit("cpu", owner.held_on("cpu") - 1)
            before = held()
            owner.make_room(0, "cpu")
            left += [part for part in before if part not in held()]
    assert left == ["text", "stage_b", "stage_a"] and held() == ["previewer"]


def test_a_base_that_a_trainer_holds_is_never_read_twice(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """Between two blocks memory runs short: what the trainer holds anyway stays, until the trainer goes."""
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("lora", models), host), 1, host=host)
    trained = next(iter(run._live.values())).objective.unet  # type: ignore[attr-defined]
    owner.make_room(1 << 62, "cpu")
    assert held().count("stage_c") == 1 and "stage_b" not in held()
    served = library.part(apply_trained(models, position), "stage_c")
    assert storages(library.part(models, "stage_c")).keys() <= storages(trained).keys()
    del trained, served
    run.release()
    gc.collect()
    owner.make_room(1 << 62, "cpu")
    assert held() == []


def test_a_part_that_was_moved_while_a_graph_ran_still_trains(nano: ModelsSpec) -> None:
    """Nodes run without gradients; what they move must remain what a trainer can compute with.

    Another precision stands for another device, of which there may be none: both make every value anew.
    """
    shared: Any = library.own_twin(nano, "stage_a")
    base = next(iter(owner._BASES.values()))
    with torch.inference_mode():
        owner._move(base, torch.bfloat16)  # type: ignore[arg-type]
    assert storages(shared).keys() >= {value.data_ptr() for value in base.module.parameters()}
    x = torch.randn(1, 4, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    shared.pictures(x).sum().backward()
    assert x.grad is not None and float(x.grad.abs().sum()) > 0


def test_encoders_leave_when_all_is_cached(studio: ModuleType, models: ModelsSpec, tmp_path: Path) -> None:
    """A run whose latents and texts are on disk never loads an encoder."""
    from cascade_train.jobs.prepare import with_caches

    host = studio.CountingHost(tmp_path)
    dataset = with_caches(studio.world(), models, latents=True, texts=True, crops=1, ahead=True, host=host)
    library.forget()
    spec = studio.spec("lora", models, dataset=dataset)
    spec = replace(spec, target=replace(spec.target, tokens=None))
    run.train(run.start(spec, host), 2, host=host)
    assert held() == ["stage_c"]


def test_pieces_are_halved_until_they_fit() -> None:
    """Every row is worked out once and in order; what does not fit alone is an error."""
    asked: list[int] = []

    def work(first: int, last: int) -> torch.Tensor:
        asked.append(last - first)
        if last - first > 3:
            raise torch.OutOfMemoryError("more than three")
        return torch.arange(first, last)

    assert torch.cat(owner.in_pieces(work, 10, 1, "cpu")).tolist() == list(range(10))
    assert asked == [10, 5, 2, 2, 2, 2, 2]

    def never(first: int, last: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("none")

    with pytest.raises(CascadeError, match="not even one picture fits into the memory of cpu"):
        owner.in_pieces(never, 2, 1, "cpu")
    asked.clear()
    owner.set_limit("cpu", 2)
    assert torch.cat(owner.in_pieces(work, 5, 1, "cpu")).tolist() == list(range(5)) and asked == [2, 2, 1]


@torch.no_grad()
def test_stage_a_in_pieces_and_in_tiles(nano: ModelsSpec) -> None:
    """Picture by picture nothing changes; tiles differ by less than a quarter of an 8-bit step."""
    latents = torch.randn(3, 4, 40, 72, generator=torch.Generator().manual_seed(0)) * 0.4
    together = stages.decode_a(nano, latents)
    owner.set_limit("cpu", 1)
    assert torch.equal(stages.decode_a(nano, latents), together)
    owner.set_limit("cpu", None)
    decoder: Any = library.part(nano, "stage_a")
    whole, cut = decoder.pictures(latents), tiles.tiled(decoder.pictures, latents, 4, 24)
    assert cut.shape == whole.shape and float((cut - whole).abs().max()) < 1 / 1024


@torch.no_grad()
def test_tiles_are_the_last_resort(nano: ModelsSpec) -> None:
    """One picture that does not fit is tried again with every unused part gone before it is cut."""
    decoder: Any = library.part(nano, "stage_a")
    library.part(nano, "stage_b")
    seen: list[tuple[int, list[str]]] = []

    def short(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append((inputs[0].shape[-1], held()))
        if "stage_b" in held() or inputs[0].shape[-1] > limit:
            raise torch.OutOfMemoryError("a small device")

    hook = decoder.up_blocks.register_forward_pre_hook(short)
    latents = torch.zeros(1, 4, stages.TILE + 8, stages.TILE + 8)
    limit = latents.shape[-1]
    try:
        assert stages.decode_a(nano, latents).shape == (1, *(4 * side for side in latents.shape[-2:]), 3)
        assert [side for side, _ in seen] == [limit, limit] and seen[-1][1] == ["stage_a"]
        limit = latents.shape[-1] - 1
        seen.clear()
        with pytest.raises(CascadeError, match="not even one picture fits"):
            stages.decode_a(nano, torch.zeros(1, 4, 8, limit + 1))
    finally:
        hook.remove()


def test_stage_b_in_pieces(nano: ModelsSpec) -> None:
    condition = encode_prompts(nano, [""])
    latents = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(0))

    def drawn() -> torch.Tensor:
        return stages.sample_b(nano, latents, condition, condition, seeds=range(4), size=(16, 16))

    together = drawn()
    owner.set_limit("cpu", 1)
    assert (drawn() - together).abs().max() < 1e-4


def test_memory_that_a_full_run_takes_is_its_own(
    studio: ModuleType, models: ModelsSpec, tmp_path: Path
) -> None:
    """What training changed wholly is a base of its own: nothing of the file's stays beside it."""
    host = studio.CountingHost(tmp_path)
    position, _ = run.train(run.start(studio.spec("stage_c", models), host), 1, host=host)
    run.release()
    library.forget()
    applied = apply_trained(models, position)
    module = library.part(applied, "stage_c")
    assert held() == ["stage_c"] and library.part(applied, "stage_c") is module
    state = run.trained(position).tensors
    assert all(torch.equal(value, state[f"stage_c.{name}"]) for name, value in module.state_dict().items())


class AskedHost(HeadlessHost):
    """A host on a device of its own that counts how often it is asked to unload its models."""

    asked = 0

    def make_room(self) -> None:
        self.asked += 1


def test_the_host_is_asked_for_room_by_all_that_draws_and_encodes(nano: ModelsSpec, tmp_path: Path) -> None:
    """On a full device it is asked before any part is loaded; where there is room it is left alone."""
    host = AskedHost(headless_folders(tmp_path), "meta")
    picture = torch.zeros(1, 64, 64, 3)
    stage_c, stage_b = {"samples": torch.zeros(1, 16, 2, 2)}, {"samples": torch.zeros(1, 4, 16, 16)}
    works: list[Any] = [
        lambda: links.encode_prompt(nano, "a red circle", None, host),
        lambda: links.decode_stage_a(nano, stage_b, host),
        lambda: links.encode_stage_c(nano, picture, host),
        lambda: links.encode_stage_a(nano, picture, host),
        lambda: links.preview_latent(nano, stage_c, host),
    ]
    try:
        # 4 MB hold Stage A, and not its activations beside it
        for limit, each in ((1, 1), (1 << 40, 0), (4_000_000, 1)):
            for work in works if limit != 4_000_000 else (works[1], works[3]):
                library.forget()
                owner.set_limit("meta", limit)
                host.asked = 0
                with suppress(Exception):  # nothing is worked out on a device that keeps no values
                    work()
                assert host.asked == each
    finally:
        owner.set_limit("meta", None)
