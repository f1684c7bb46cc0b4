"""The house stands: imports point one way, light things stay light, files stay small. The guard guards."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _beside(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


house = _beside("house")
Rule = Callable[[Any], list[str]]


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    return house.house(ROOT)


@pytest.mark.parametrize("rule", house.RULES, ids=lambda rule: rule.__name__)
def test_the_house_stands(rule: Rule, modules: dict[str, Any]) -> None:
    assert len(modules) > 100, "the modules are found"
    faults = rule(modules)
    assert not faults, f"{rule.__doc__}\n" + "\n".join(faults)


@dataclass
class Copy:
    """A copy of the library and the nodes, in which faults are planted and taken away again."""

    root: Path
    modules: dict[str, Any]
    faults: dict[str, set[str]]
    """What each rule says of the copy as it is."""

    def caught(self, planted: dict[str, str]) -> set[str]:
        """The rules that say more once the ``planted`` files are there."""
        made: list[Path] = []
        try:
            for name, source in planted.items():
                path = self.root / name
                assert not path.exists(), "a planted file is a new one"
                if not path.parent.exists():
                    path.parent.mkdir()
                    made.append(path.parent)
                path.write_text(source, encoding="utf-8")
                made.append(path)
            modules = house.house(self.root, self.modules)
            return {rule.__name__ for rule in house.RULES if set(rule(modules)) - self.faults[rule.__name__]}
        finally:
            for path in reversed(made):
                path.rmdir() if path.is_dir() else path.unlink()


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    root = tmp_path_factory.mktemp("house")
    for name in ("cascade_train", "nodes"):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
        )
    modules = house.house(root)
    return Copy(root, modules, {rule.__name__: set(rule(modules)) for rule in house.RULES})


def inside(line: str) -> str:
    """A module whose only function does ``line``."""
    return f"import importlib\nimport sys\n\n\ndef planted():\n    {line}\n"


def typed(line: str) -> str:
    """A module that needs ``line`` for its types alone."""
    return (
        f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {line}\n\n\ndef planted():\n    pass\n"
    )


LIBRARY = "cascade_train"
ONE_WAY, APART = "imports_point_one_way", "rooms_beside_each_other_stay_apart"
COMFYUI, CIRCLE = "only_the_host_knows_comfyui", "files_import_in_no_circle"
PICTURES = "pictures_are_opened_in_one_place"
IDEA = "def planted():\n    pass\n"

FAULTS: list[tuple[str, dict[str, str]]] = [
    # data importing nodes
    (ONE_WAY, {"cascade_train/data/planted.py": f"from cascade_train_nodes import base\n{IDEA}"}),
    (ONE_WAY, {"cascade_train/data/planted.py": inside("from cascade_train_nodes.base import link")}),
    (ONE_WAY, {"cascade_train/data/planted.py": inside('importlib.import_module("cascade_train_nodes")')}),
    # graph importing training, and whatever else is no business of a graph's
    (
        ONE_WAY,
        {"cascade_train/graph/run/planted.py": inside("from cascade_train.training.spec import RunSpec")},
    ),
    (ONE_WAY, {"cascade_train/graph/run/planted.py": inside("from cascade_train import training")}),
    (ONE_WAY, {"cascade_train/graph/planted.py": inside("from ..training import spec")}),
    (
        ONE_WAY,
        {"cascade_train/graph/run/planted.py": typed("from cascade_train.models.spec import ModelsSpec")},
    ),
    (ONE_WAY, {"cascade_train/graph/run/planted.py": inside("import cascade_train_nodes")}),
    # the rest of the order
    (ONE_WAY, {"cascade_train/models/planted.py": inside("import cascade_train.data.spec")}),
    (ONE_WAY, {"cascade_train/training/planted.py": inside("from cascade_train.jobs import blocks")}),
    (ONE_WAY, {"cascade_train/sampling/planted.py": typed("from cascade_train.jobs import blocks")}),
    (ONE_WAY, {"cascade_train/data/planted.py": inside("from cascade_train.nano.world import scene")}),
    (ONE_WAY, {"cascade_train/host/planted.py": inside("from cascade_train.graph.run import execute")}),
    (ONE_WAY, {"nodes/planted.py": inside("from cascade_train.graph.check import schema")}),
    (ONE_WAY, {"cascade_train/jobs/planted.py": inside("from cascade_train import cli")}),
    # a node that calculates
    ("nodes_hold_no_maths", {"nodes/planted.py": f"import torch\n{IDEA}"}),
    ("nodes_hold_no_maths", {"nodes/planted.py": inside("import torch.nn.functional as F")}),
    ("nodes_hold_no_maths", {"nodes/planted.py": inside("from numpy import ndarray")}),
    ("nodes_hold_no_maths", {"nodes/planted.py": inside('importlib.import_module("cv2")')}),
    # ComfyUI, however it is spelled
    (COMFYUI, {"cascade_train/graph/run/planted.py": f"import comfy.utils\n{IDEA}"}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside("from comfy_execution import graph_utils")}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside("import nodes")}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": typed("from server import PromptServer")}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('importlib.import_module("comfy.sd")')}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('importlib.import_module("nodes")')}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('__import__("execution")')}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('importlib.util.find_spec("server")')}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('return sys.modules["nodes"]')}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('return sys.modules.get("execution")')}),
    (COMFYUI, {"cascade_train/graph/run/planted.py": inside('return "server" in sys.modules')}),
    (
        COMFYUI,
        {"cascade_train/graph/run/planted.py": inside('return getattr(sys, "modules")["folder_paths"]')},
    ),
    (COMFYUI, {"cascade_train/data/planted.py": inside("import folder_paths")}),
    (COMFYUI, {"nodes/planted.py": inside("import comfy.model_management")}),
    # rooms that know nothing of each other
    *(
        (APART, {f"cascade_train/{here}/planted.py": inside(f"from cascade_train import {there}")})
        for here in ("training", "sampling", "formats")
        for there in ("training", "sampling", "formats")
        if here != there
    ),
    (APART, {"cascade_train/sampling/planted.py": typed("from cascade_train.training.run import start")}),
    # circles
    (
        CIRCLE,
        {
            "cascade_train/data/one.py": f"from cascade_train.data import two\n{IDEA}",
            "cascade_train/data/two.py": inside("from cascade_train.data.one import planted"),
        },
    ),
    (
        CIRCLE,
        {
            "cascade_train/data/one.py": inside("from .two import planted"),
            "cascade_train/data/two.py": inside("from . import three"),
            "cascade_train/data/three.py": inside("import cascade_train.data.one"),
        },
    ),
    (
        CIRCLE,
        {
            "cascade_train/data/attic/__init__.py": "from cascade_train.data.attic.one import planted\n",
            "cascade_train/data/attic/one.py": inside("from cascade_train.data import attic"),
        },
    ),
    # the rest
    ("no_room_is_empty", {"cascade_train/data/attic/__init__.py": ""}),
    ("no_room_is_empty", {"cascade_train/serve/__init__.py": '"""To come."""\n'}),
    ("every_room_is_known", {"cascade_train/attic/__init__.py": "OLD = True\n"}),
    ("every_room_is_known", {"cascade_train/attic.py": IDEA}),
    ("files_stay_small", {"cascade_train/data/planted.py": IDEA + "# more\n" * 419}),
    ("files_stay_small", {"nodes/planted.py": IDEA + "# more\n" * 419}),
    (
        "no_file_only_passes_on",
        {"cascade_train/data/planted.py": "from cascade_train.data.spec import Dataset\n"},
    ),
    (
        "hosts_are_handed_down",
        {"cascade_train/jobs/planted.py": inside("from cascade_train.host import headless")},
    ),
    ("hosts_are_handed_down", {"cascade_train/graph/planted.py": inside("import cascade_train.host.comfy")}),
    (PICTURES, {"cascade_train/jobs/planted.py": inside("return Image.open(sys.argv[1])")}),
    (PICTURES, {"cascade_train/graph/core/planted.py": inside("return PIL.Image.open(sys.argv[1])")}),
    (PICTURES, {"cascade_train/data/planted.py": inside("return cv2.imread(sys.argv[1])")}),
    (PICTURES, {"cascade_train/data/planted.py": inside("from PIL.Image import open")}),
    ("classes_have_names_of_their_own", {"cascade_train/models/planted.py": "class Dataset:\n    pass\n"}),
]


@pytest.mark.parametrize(
    ("rule", "planted"), FAULTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_fault_is_caught_by_its_rule_and_no_other(copied: Copy, rule: str, planted: dict[str, str]) -> None:
    assert copied.caught(planted) == {rule}


@pytest.mark.parametrize(
    "planted",
    [
        {"nodes/planted.py": typed("from torch import Tensor")},
        {"nodes/planted.py": inside("from cascade_train.jobs.blocks import export")},
        {"nodes/planted.py": inside("from . import base")},
        {"cascade_train/commands/planted.py": inside("from cascade_train.graph.run import execute")},
        {"cascade_train/graph/run/planted.py": inside("from cascade_train.host.base import Host")},
        {"cascade_train/graph/run/planted.py": inside('return {"nodes": 1, "server": 2}')},
        {"cascade_train/graph/run/planted.py": '"""Says what comfy does."""\n\n\n' + inside('"""comfy"""')},
        {"cascade_train/host/planted.py": inside("import comfy.utils")},
        {"cascade_train/data/planted.py": IDEA + "# more\n" * 418},
        {
            "cascade_train/data/one.py": inside("from cascade_train.data import two"),
            "cascade_train/data/two.py": typed("from cascade_train.data.one import planted"),
        },
    ],
)
def test_what_is_right_is_not_caught(copied: Copy, planted: dict[str, str]) -> None:
    assert copied.caught(planted) == set()


def test_every_rule_is_seen_to_catch() -> None:
    assert {rule for rule, _ in FAULTS} == {rule.__name__ for rule in house.RULES}


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["validate", "--help"],
        ["nodes"],
        ["nano", "--help"],
        ["dataset", "--help"],
        ["cache", "--help"],
    ],
)
def test_help_comes_without_torch(command: list[str]) -> None:
    code = (
        "import sys; from cascade_train.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = sorted({'torch', 'diffusers', 'transformers', 'cv2'} & set(sys.modules))\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 0, done.stderr
