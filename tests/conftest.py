"""What several rooms' tests use: small Stable Cascades with random weights, and `studio`."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cascade_train.models.spec import ModelsSpec

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def studio() -> ModuleType:
    """The module `training/studio.py` beside this file."""
    import torch

    found = importlib.util.spec_from_file_location("training_studio", TESTS / "training" / "studio.py")
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
    run = sys.modules.get("cascade_train.training.run")
    if run is not None:
        run.release()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from cascade_train.models import build, weights
    from cascade_train.nano import widths

    folder = tmp_path_factory.mktemp("tiny-models")
    torch.manual_seed(0)
    for part in ("stage_c", "stage_b", "stage_a", "compressor", "previewer"):
        config = widths.config(part, "quick")
        module = build.build(part, config)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("clf.1.weight") or "gammas" in name:
                    parameter.normal_(std=0.05)
        weights.write_tensors(folder / f"{part}.safetensors", build.file_tensors(part, module), config)
    widths.write_tokenizer(folder / "text")
    config = widths.config("text")
    text = build.build("text", config)
    weights.write_tensors(folder / "text" / "model.safetensors", text.state_dict())
    (folder / "text" / "config.json").write_text(
        json.dumps({**config, "cascade_geometry": {"native_side": 64}}), encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> ModelsSpec:
    from cascade_train.models import library

    return library.models_in(tiny_folder, name="tiny")


@pytest.fixture(scope="session")
def tiny_with_image(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelsSpec:
    """The same with a CLIP vision encoder."""
    import torch

    from cascade_train.models import build, library, weights
    from cascade_train.nano import widths

    folder = tmp_path_factory.mktemp("tiny-with-image") / "models"
    shutil.copytree(tiny_folder, folder)
    config = {
        "architectures": ["CLIPVisionModelWithProjection"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": widths.IMAGE_WIDTH,
    }
    torch.manual_seed(1)
    encoder = build.build("image", config)
    weights.write_tensors(folder / "image" / "model.safetensors", encoder.state_dict())
    (folder / "image" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return library.models_in(folder, name="tiny with image")
