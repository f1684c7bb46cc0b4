"""Real picture files and tars for the data room's tests."""

from __future__ import annotations

import functools
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cascade_train.data.dataset import OpenDataset, open_dataset
from cascade_train.data.readers import folder_source
from cascade_train.data.spec import Dataset, WeightedSource
from cascade_train.host.headless import HeadlessHost, headless_folders


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
                    ("txt", caption.encode("utf-8") if caption else None),
                    ("json", json.dumps(meta).encode("utf-8") if meta else None),
                ):
                    if data is not None:
                        info = tarfile.TarInfo(f"{key}.{ending}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        return path

    return make


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The URL of a real HTTP server of the files in tmp_path."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    serving = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path))
    )
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


@pytest.fixture
def near(tmp_path: Path) -> HeadlessHost:
    """A host that may read shards from this machine; its caches lie in ``tmp_path / "cache"``."""
    folders = headless_folders(tmp_path / "out", tmp_path, allowed_hosts=["127.0.0.1"])
    return HeadlessHost(replace(folders, cache=tmp_path / "cache"), "cpu")


@pytest.fixture
def shards(make_tar: Callable[..., Path]) -> list[Path]:
    """Three tars, a.tar to c.tar, of twelve samples each."""
    return [
        make_tar(
            [
                (f"{shard}{n:03}", encoded(photo(80, 72 + 8 * (n % 3), n)), f"{shard} {n}", {"n": n})
                for n in range(12)
            ],
            f"{shard}.tar",
        )
        for shard in "abc"
    ]
