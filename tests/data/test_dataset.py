"""From a folder to batches: filters, duplicates, buckets, crops, the same on every machine."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.filters.expression import expression_filters
from cascade_train.data.filters.near_duplicates import duplicate_filters
from cascade_train.data.sources import folder_dataset
from cascade_train.data.spec import BucketSpec, CaptionSpec
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, Quiet, headless_folders
from cascade_train.jobs.prepare import samples_grid

from .conftest import photo

MakeFolder = Callable[..., Path]
Opened = Callable[..., OpenDataset]


def test_a_step_draws_the_same_for_any_way_of_asking(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(96, 64), (64, 64), (64, 96)] * 5)
    settings = {"buckets": BucketSpec(ratios=("1/1", "2/3"))}
    one, two = opened(root, **settings), opened(root, **settings)
    wanted = [one.draws(9, step, 6) for step in range(30)]
    assert [two.draws(9, step, 6) for step in reversed(range(30))] == wanted[::-1]
    code = f"""
from cascade_train.data.dataset import open_dataset
from cascade_train.data.readers import folder_source
from cascade_train.data.spec import *
source = folder_source(__import__('pathlib').Path({str(root)!r}), True, {str(root.parent / "c2")!r} and
                       __import__('pathlib').Path({str(root.parent / "c2")!r}))
dataset = Dataset((WeightedSource(source),), buckets=BucketSpec(ratios=("1/1", "2/3")))
opened = open_dataset(dataset, multiple=8, native_side=64, cache={str(root.parent / "c2")!r})
print([opened.draws(9, step, 6) for step in range(30)] )
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == str(wanted)


def test_whole_batches_stay_in_one_bucket_and_pixels_have_its_size(
    make_folder: MakeFolder, opened: Opened
) -> None:
    root = make_folder([(130, 64), (64, 64), (70, 96), (300, 40)] * 4)
    dataset = opened(root, buckets=BucketSpec(ratios=("1/1", "3/4", "1/2")))
    for step in range(12):
        draws = dataset.draws(0, step, 4)
        assert [draw.index for draw in draws] == [0, 1, 2, 3]
        assert len({(draw.width, draw.height) for draw in draws}) == 1
        for draw in draws:
            assert dataset.load(draw).pixels.shape == (draw.height, draw.width, 3)


def test_filters_over_metadata_and_size(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(96, 64), (64, 64), (200, 64), (64, 64)])
    for n, score in enumerate((5.0, 3.0, 9.0)):
        (root / f"{n:04}.json").write_text(f'{{"score": {score}}}')
    dataset = opened(root, filters=expression_filters("score > 4\naspect < 2"))
    assert [dataset.key(i) for i in range(len(dataset))] == ["pictures/0000.png"]
    dropped = {count.reason: count.names for count in dataset.report.dropped}
    assert dropped == {
        "not score > 4": ("0001.png",),
        "not aspect < 2": ("0002.png",),
        "without the field score": ("0003.png",),
    }
    with pytest.raises(CascadeError, match=r"no sample is left.*4 not width > 1000"):
        opened(root, filters=expression_filters("width > 1000"))
    looked_at = opened(root, filters=expression_filters("width > 1000"), strict=False).report
    assert looked_at.samples == 0 and "no sample is left, an error when training" in looked_at.text()
    assert len(opened(root, filters=expression_filters("file_size > 100 and file_name != '0000.png'"))) == 3


def test_duplicates_and_near_duplicates_are_dropped(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(96, 64)] * 4)
    shutil.copy(root / "0001.png", root / "copy of 1.png")
    shutil.copy(root / "0001.txt", root / "copy of 1.txt")
    for name in ("0002 small", "0003 jpeg"):
        (root / f"{name}.txt").write_text("again")
    Image.open(root / "0002.png").resize((48, 32)).save(root / "0002 small.png")
    Image.open(root / "0003.png").save(root / "0003 jpeg.jpg", quality=60)
    assert len(opened(root)) == 7
    exact = opened(root, filters=duplicate_filters("remove"))
    assert [(c.reason, c.names) for c in exact.report.dropped] == [("duplicate", ("copy of 1.png",))]
    near = opened(root, filters=duplicate_filters("remove near", 6))
    assert len(near) == 4, near.report.text()
    assert {c.reason: c.count for c in near.report.dropped} == {"duplicate": 1, "near duplicate": 2}


def test_crops(make_folder: MakeFolder, opened: Opened, tmp_path: Path) -> None:
    root = make_folder([])
    ramp = np.zeros((64, 256, 3), dtype=np.uint8)
    ramp[:, :, 0] = np.arange(256)
    for n in range(2):
        Image.fromarray(ramp).save(root / f"{n}.png")
        (root / f"{n}.txt").write_text("ramp")

    def lefts(**settings: object) -> list[int]:
        dataset = opened(root, buckets=BucketSpec(**settings))  # type: ignore[arg-type]
        return [
            int(dataset.load(draw).pixels[0, 0, 0])
            for step in range(40)
            for draw in dataset.draws(0, step, 2)
        ]

    assert set(lefts(crop="center")) == {96} and set(lefts(crop="top left")) == {0}
    assert set(lefts(crop="bottom right")) == {192}
    free = lefts(crop="random")
    assert len(set(free)) > 40 and min(free) < 20 and max(free) > 170
    fixed = lefts(crop="random", crops=3)
    assert 3 < len(set(fixed)) <= 6, "three crops for each of two pictures"
    assert all(count > 3 for count in Counter(fixed).values())


def test_views_name_pixels(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(64, 64), (70, 64)])
    dataset = opened(root)
    pixels: dict[object, bytes] = {}
    keys: dict[str, bytes] = {}
    for step in range(40):
        for draw in dataset.draws(0, step, 2):
            loaded = dataset.load(draw).pixels.tobytes()
            assert pixels.setdefault(dataset.view(draw), loaded) == loaded
            assert keys.setdefault(dataset.cache_key(draw), loaded) == loaded
    assert len(pixels) == len(keys) == 1 + 7, "no room to move: one view; six pixels of room: seven"


def test_threads_and_spawned_processes_read_the_same(make_folder: MakeFolder, opened: Opened) -> None:
    dataset = opened(make_folder([(96, 64)] * 12))
    draws = [draw for step in range(12) for draw in dataset.draws(0, step, 4)]
    alone = [dataset.load(draw) for draw in draws]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(dataset.load, draws))
    assert all((a.pixels == b.pixels).all() and a.caption == b.caption for a, b in zip(alone, together))
    copy = pickle.loads(pickle.dumps(dataset))  # what a spawned worker gets
    assert (copy.load(draws[3]).pixels == alone[3].pixels).all() and copy.draws(0, 5, 4) == dataset.draws(
        0, 5, 4
    )


def test_small_buckets_are_reported(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(64, 64)] * 6 + [(128, 64)])
    dataset = opened(root, buckets=BucketSpec(ratios=("1/1", "1/2")))
    (note,) = dataset.notes(4)
    assert "88×40 has 1 of the 4" in note
    merged = opened(root, buckets=BucketSpec(ratios=("1/1", "1/2"), leftovers="merge"))
    assert {d.width for step in range(8) for d in merged.draws(0, step, 4)} == {64}


def test_many_small_buckets_are_one_warning(make_folder: MakeFolder, tmp_path: Path) -> None:
    """Each by itself was a notice of its own in the browser."""
    root = make_folder([(64 + 16 * n, 64) for n in range(7)])
    host = HeadlessHost(headless_folders(tmp_path / "out", root.parent), "cpu", Quiet())
    dataset = folder_dataset(str(root), recursive=False, host=host)
    ratios = tuple(f"{64 + 16 * n}/64" for n in range(7))
    dataset = replace(dataset, buckets=BucketSpec(ratios=ratios, random_share=0.0))
    small = open_dataset(dataset, multiple=8, native_side=64, host=host)
    count = len(small.notes(4))
    assert count > 4
    (told,) = [text for text in host.sink.warnings if "bucket" in text]  # type: ignore[attr-defined]
    assert told.count("samples of a batch") == 3 and told.endswith(f"; and {count - 3} more such")


def test_the_preview_shows_what_is_trained(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(96, 64), (64, 64)] * 3)
    dataset = opened(root, captions=CaptionSpec(prefix="a very long caption that goes on and on " * 5))

    grid = samples_grid(dataset, 6, cell=128)
    assert grid.width > 3 * 128
    first = dataset.load(dataset.draws(0, 0, 1)[0]).pixels
    cell = np.asarray(grid)[8 : 8 + 128, 8 : 8 + 128][::2, ::2]
    assert (cell == first).all()


def test_training_without_the_resize_keeps_the_scale(make_folder: MakeFolder, opened: Opened) -> None:
    root = make_folder([(200, 150)])
    picture = np.asarray(photo(200, 150, 0))
    spec = BucketSpec(crop="top left", resize="none")
    assert (
        opened(root, buckets=spec).load(opened(root, buckets=spec).draws(0, 0, 1)[0]).pixels
        == picture[:64, :64]
    ).all()
    smaller = BucketSpec(crop="top left", resize="none", max_side=100, downsample=75)
    dataset = opened(root, buckets=smaller)
    halved = picture.reshape(75, 2, 100, 2, 3).mean((1, 3))[:64, :64]
    assert np.abs(dataset.load(dataset.draws(0, 0, 1)[0]).pixels - halved).max() <= 1
