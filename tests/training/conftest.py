"""One small Stable Cascade for the room, and `studio` as a fixture."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cascade_train.models.spec import ModelsSpec

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def studio() -> ModuleType:
    """The module `studio.py` beside this file."""
    found = importlib.util.spec_from_file_location("training_studio", HERE / "studio.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["training_studio"] = module
    found.loader.exec_module(module)
    torch.set_num_threads(1)
    return module


@pytest.fixture(scope="session")
def models_folder(studio: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return studio.make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def models(models_folder: Path) -> ModelsSpec:
    from cascade_train.models import library

    return library.models_in(models_folder, name="tiny")


@pytest.fixture(autouse=True)
def nothing_kept_in_memory() -> None:
    """Each test begins like a fresh process: without a live trainer from the one before."""
    from cascade_train.training import run

    run.release()
