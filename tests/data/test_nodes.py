"""The data nodes as a graph calls them, with the bundled nano models."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders

from .conftest import encoded, photo


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    (tmp_path / "in").mkdir()
    return HeadlessHost(headless_folders(tmp_path / "out", tmp_path / "in"), "cpu")


@pytest.fixture
def call(host: HeadlessHost) -> Any:
    from cascade_train_nodes import build_mappings

    classes, _ = build_mappings(host)

    def run(node: str, **given: Any) -> Any:
        cls = classes[node]
        inputs = cls.INPUT_TYPES()
        wanted = {**inputs["required"], **inputs.get("optional", {})}
        assert set(given) <= set(wanted), set(given) - set(wanted)
        defaults = {name: spec[1]["default"] for name, spec in wanted.items() if "default" in spec[1]}
        answer = getattr(cls(), cls.FUNCTION)(**{**defaults, **given})
        return answer["result"] if isinstance(answer, dict) else answer  # an output node's has a picture too

    run.classes = classes  # type: ignore[attr-defined]
    return run


def make(folder: Path, count: int = 5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        photo(96, 64 + 16 * (n % 2), n).save(folder / f"{n}.png")
        (folder / f"{n}.txt").write_text(f"red, fox, {n}")


def test_every_input_has_a_tooltip_and_every_node_a_description(call: Any) -> None:
    for name, cls in call.classes.items():
        if cls.CATEGORY == "cascade/data" and cls.__module__.endswith("data"):
            inputs = cls.INPUT_TYPES()
            assert cls.DESCRIPTION and cls.OUTPUT_TOOLTIPS
            for key, spec in {**inputs["required"], **inputs.get("optional", {})}.items():
                assert spec[1].get("tooltip"), (name, key)


def test_a_chain_from_folder_to_preview(call: Any, tmp_path: Path) -> None:
    make(tmp_path / "in" / "foxes")
    (tmp_path / "in" / "foxes" / "broken.png").write_bytes(b"")
    (dataset,) = call("CascadeImageFolder", path="foxes")
    (dataset,) = call("CascadeFilterSamples", dataset=dataset, filters="height > 70\n# note")
    (dataset,) = call("CascadeCaptionOptions", dataset=dataset, prefix="a photo of ", shuffle_tags=True)
    (dataset,) = call("CascadeAspectBuckets", dataset=dataset, size=64, random_share=0.0)
    grid, report = call("CascadeDatasetPreview", dataset=dataset, count=4)
    assert grid.ndim == 4 and grid.shape[-1] == 3 and 0 <= float(grid.min()) < float(grid.max()) <= 1
    assert "2 samples" in report and "zero bytes: broken.png" in report and "3 not height > 70" in report
    assert "latents" in report


def test_a_second_filter_adds_to_the_first(call: Any, tmp_path: Path) -> None:
    make(tmp_path / "in" / "foxes")
    shutil.copy(tmp_path / "in" / "foxes" / "1.png", tmp_path / "in" / "foxes" / "copy.png")
    (tmp_path / "in" / "foxes" / "copy.txt").write_text("again")
    (dataset,) = call("CascadeImageFolder", path="foxes")
    (first,) = call("CascadeFilterSamples", dataset=dataset, filters="", duplicates="remove")
    (second,) = call(
        "CascadeFilterSamples", dataset=first, filters="caption contains 'fox'\nwidth > 3", duplicates="keep"
    )
    _, report = call("CascadeDatasetPreview", dataset=second)
    assert "5 samples" in report and "1 duplicate: copy.png" in report
    assert second.filters[: len(first.filters)] == first.filters and len(second.filters) == 3
    (third,) = call("CascadeFilterSamples", dataset=second, filters="", duplicates="remove near")
    assert [type(each).__name__ for each in third.filters[3:]] == ["ExactDuplicates", "NearDuplicates"]
    (nothing,) = call("CascadeFilterSamples", dataset=third, filters="# none", duplicates="keep")
    assert nothing == third


def test_the_folder_node_notices_changes(call: Any, tmp_path: Path) -> None:
    make(tmp_path / "in" / "foxes")
    changed = call.classes["CascadeImageFolder"].IS_CHANGED
    first = changed(path="foxes", recursive=True, on_bad="skip")
    assert changed(path="foxes", recursive=True, on_bad="skip") == first
    (tmp_path / "in" / "foxes" / "0.txt").write_text("another caption")
    assert changed(path="foxes", recursive=True, on_bad="skip") != first
    gone = changed(path="nowhere", recursive=True)
    assert gone != gone, "NaN: the node runs, and says what is wrong"


@pytest.mark.parametrize(
    ("node", "inputs", "what"),
    [
        ("CascadeImageFolder", {"path": "nowhere"}, "does not exist"),
        ("CascadeImageFolder", {"path": "hollow"}, "no picture was found"),
        ("CascadeImageFolder", {"path": "foxes", "background": "no colour"}, "is no colour"),
        ("CascadeWebDataset", {"shards": "pipe:rm -rf /"}, "start a program"),
        ("CascadeWebDataset", {"shards": ""}, "no tar is named"),
    ],
)
def test_what_is_wrong_is_said(call: Any, tmp_path: Path, node: str, inputs: dict, what: str) -> None:
    make(tmp_path / "in" / "foxes")
    (tmp_path / "in" / "hollow").mkdir()
    with pytest.raises(CascadeError, match=what):
        call(node, **inputs)


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        ("CascadeFilterSamples", {"filters": "__import__('os')"}),
        ("CascadeAspectBuckets", {"ratios": "wide"}),
        ("CascadeAspectBuckets", {"resolutions": "big"}),
        ("CascadeCaptionOptions", {"getter": "open('x')"}),
    ],
)
def test_wrong_settings_are_said_at_once(call: Any, tmp_path: Path, node: str, inputs: dict) -> None:
    make(tmp_path / "in" / "foxes")
    (dataset,) = call("CascadeImageFolder", path="foxes")
    with pytest.raises(CascadeError):
        call(node, dataset=dataset, **inputs)


def test_tars_and_pictures_of_other_nodes(call: Any, tmp_path: Path, make_tar: Any) -> None:
    import torch

    make_tar([(f"{n}", encoded(photo(64, 64, n)), f"tar {n}", None) for n in range(3)], "in/a.tar")
    (tars,) = call("CascadeWebDataset", shards="a.tar")
    (images,) = call(
        "CascadeDatasetFromImages",
        images=[torch.rand(1, 64, 64, 3), torch.rand(1, 96, 64, 3)],
        captions=["one\ntwo"],
    )
    (both,) = call("CascadeCombineDatasets", dataset_1=tars, dataset_2=images, repeats_2=3)
    _, report = call("CascadeDatasetPreview", dataset=both)
    assert "5 samples, 9 an epoch" in report


def test_training_from_caches_gives_the_same_bits(call: Any, host: HeadlessHost, tmp_path: Path) -> None:
    """Caches change how soon a step is done, and nothing else: on demand, ahead, and read again."""
    import torch

    from cascade_train.data.caches import flush_all, listing
    from cascade_train.models.library import load_models, nano_folder
    from cascade_train.training.run import metrics, start, train
    from cascade_train.training.spec import LoRATarget, OptimizerSpec, RunSpec

    if not (nano_folder() / "stage_c.safetensors").is_file():
        pytest.skip("nano's weights are not there")
    torch.set_num_threads(1)  # threads that wait for each other crawl on a busy machine
    models = load_models("nano", host=host)
    (dataset,) = call("CascadeImageFolder", path="bundled/crescent")

    def losses(dataset: Any, seed_folder: str) -> list[float]:
        there = HeadlessHost(replace(host.folders, runs=tmp_path / seed_folder), "cpu")
        spec = RunSpec(models, dataset, LoRATarget(rank=2), OptimizerSpec(), batch_size=2, total_steps=2)
        position, _ = train(start(spec, there), 2, host=there)
        return [row["loss"] for row in metrics(position)]

    plain = losses(dataset, "plain")
    (lazy,) = call("CascadeCacheLatents", dataset=dataset, models=models, ahead=False, crops=0)
    assert lazy.digest == dataset.digest, "the same run"
    assert losses(lazy, "lazy") == plain
    flush_all()
    assert losses(lazy, "again") == plain, "read back from disk"

    (ahead,) = call("CascadeCacheLatents", dataset=dataset, models=models, ahead=True, crops=1)
    kinds = {kept.kind: kept for kept in listing(host.folders.cache)}
    assert kinds["latents"].bytes > 20 * 16 * 8 * 8 * 4 and kinds["text"].bytes > 0
    files = sorted(kinds["latents"].path.glob("*.safetensors"))
    first = losses(ahead, "ahead")
    assert losses(ahead, "ahead twice") == first and len(first) == 2
    assert sorted(kinds["latents"].path.glob("*.safetensors")) == files, "nothing was left to work out"
