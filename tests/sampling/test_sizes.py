"""The grids of full-size models and of nano."""

from __future__ import annotations

import pytest

from cascade_train.errors import CascadeError
from cascade_train.models.library import Geometry
from cascade_train.sampling.sizes import picture_size

FULL, NANO = Geometry(), Geometry(latent_factor=8, native_side=64, size_multiple=8)


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
