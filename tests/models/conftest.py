"""The tensors of the official files, and a host of a folder of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cascade_train.host.headless import HeadlessHost, headless_folders

LAYOUTS = Path(__file__).parent / "layouts"


@pytest.fixture
def layout() -> Callable[[str], dict[str, list[int]]]:
    """Shapes by tensor name of an official file. On disk they are grouped by shape."""

    def read(name: str) -> dict[str, list[int]]:
        grouped = json.loads((LAYOUTS / f"{name}.json").read_text(encoding="utf-8"))
        return {key: json.loads(shape) for shape, keys in grouped.items() for key in keys.split()}

    return read


@pytest.fixture
def host(tmp_path: Path) -> HeadlessHost:
    return HeadlessHost(
        headless_folders(tmp_path / "output", tmp_path / "input", [tmp_path / "models"]), device="cpu"
    )
