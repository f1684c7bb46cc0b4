"""Real picture files and tars for the data room's tests."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.readers import folder_source
from cascade_train.data.spec import Dataset, WeightedSource


def photo(width: int = 96, height: int = 72, seed: int = 0) -> Image.Image:
    """A smooth colourful picture with some grain, as a camera would make it."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.integers(-5, 6, smooth.shape)
    return Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder of PNG pictures of the given (width, height), each with a caption beside it."""

    def make(sizes: list[tuple[int, int]], name: str = "pictures", captions: bool = True) -> Path:
        root = tmp_path / name
        root.mkdir(parents=True, exist_ok=True)
        for number, (width, height) in enumerate(sizes):
            photo(width, height, number).save(root / f"{number:04}.png")
            if captions:
                (root / f"{number:04}.txt").write_text(f"picture {number}", encoding="utf-8")
        return root

    return make


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., OpenDataset]:
    """A folder as an open dataset for ÷8 models of side 64."""

    def make(root: Path, strict: bool = True, **settings: object) -> OpenDataset:
        source = folder_source(root, True, tmp_path / "cache" / "index")
        dataset = Dataset((WeightedSource(source),), **settings)  # type: ignore[arg-type]
        return open_dataset(dataset, multiple=8, native_side=64, cache=tmp_path / "cache", strict=strict)

    return make


@pytest.fixture
def make_tar(tmp_path: Path) -> Callable[..., Path]:
    """A WebDataset tar of (key, picture bytes, caption or None, metadata or None)."""

    def make(
        samples: list[tuple[str, bytes | None, str | None, dict | None]], name: str = "0000.tar"
    ) -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w") as tar:
            for key, picture, caption, meta in samples:
                for ending, data in (
                    ("png", picture),
                    ("txt", caption and caption.encode("utf-8")),
                    ("json", meta and json.dumps(meta).encode("utf-8")),
                ):
                    if data is not None and data is not False:
                        info = tarfile.TarInfo(f"{key}.{ending}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        return path

    return make
