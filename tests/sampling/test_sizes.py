"""The grids of full-size models and of nano."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cascade_train.data.sources import folder_dataset
from cascade_train.errors import CascadeError
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.models import library
from cascade_train.models.library import Geometry
from cascade_train.models.spec import ModelsSpec
from cascade_train.sampling.pipeline import text_to_image
from cascade_train.sampling.sizes import picture_size
from cascade_train.training import run as runs
from cascade_train.training.spec import LoRATarget, OptimizerSpec, Position, RunSpec

FULL = Geometry()
NANO = Geometry(latent_factor=8, native_side=64, size_multiple=8, smallest_grid=2, smallest_side=16)


def test_full_size_models_sample_1024_pixels_on_a_grid_of_24() -> None:
    size = picture_size(FULL)
    assert size.picture == (1024, 1024) and size.stage_c == (24, 24) and size.stage_b == (256, 256)
    assert size.encoded == (768, 768), "the picture that encodes to that grid; 1024 would give 32"


def test_nano_samples_at_the_compressor_s_own_grid() -> None:
    size = picture_size(NANO)
    assert size.picture == (64, 64) and size.stage_c == (8, 8) and size.stage_b == (16, 16)
    assert size.encoded == (64, 64)


def test_wide_pictures() -> None:
    size = picture_size(FULL, width=1536, height=640)
    assert size.stage_c == (15, 36) and size.stage_b == (160, 384)


def test_a_side_that_cannot_be_drawn() -> None:
    with pytest.raises(CascadeError, match="a width of 1020 pixels"):
        picture_size(FULL, width=1020)


@pytest.mark.parametrize(("sizes", "least"), [(FULL, 64), (NANO, 16)])
def test_a_side_that_is_too_small_is_told_with_the_smallest_that_works(sizes: Geometry, least: int) -> None:
    for wrong in (8, least - 8):
        with pytest.raises(CascadeError, match=f"too small for these models.*smallest .* is {least}"):
            picture_size(sizes, width=wrong, height=256)
        with pytest.raises(CascadeError, match=f"smallest .* is {least}"):
            picture_size(sizes, width=256, height=wrong)
    assert picture_size(sizes, least, least).picture == (least, least)


def test_the_smallest_side_is_drawn_and_trained_and_no_smaller_one(tiny: ModelsSpec, tmp_path: Path) -> None:
    """What `geometry` says is what the networks can do."""
    least = library.geometry(tiny).smallest_side
    assert least == 16
    drawn = text_to_image(tiny, ["a ring"], seeds=[0], width=least, height=least, steps_c=1, steps_b=1)
    assert drawn.shape == (1, least, least, 3)
    host = HeadlessHost(headless_folders(tmp_path), "cpu")
    folder = folder_dataset("bundled/crescent", recursive=True, host=host)

    def begun(side: int) -> Position:
        dataset = replace(folder, buckets=replace(folder.buckets, size=side, ratios=("1/1",)))
        spec = RunSpec(tiny, dataset, LoRATarget(rank=1, alpha=1), OptimizerSpec(), batch_size=1)
        return runs.start(spec, host)

    assert runs.train(begun(least), 1, host=host)[0].step == 1
    with pytest.raises(CascadeError, match=r"a bucket of 8×8 pixels is too small.*smallest side .* is 16"):
        begun(8)
