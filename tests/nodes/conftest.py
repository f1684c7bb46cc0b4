"""A copy of the project in which a person changes something."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RUN_COPY = """
import os, sys
sys.meta_path = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
sys.path = [p for p in sys.path if not os.path.isdir(os.path.join(p, "cascade_train_nodes"))]
sys.path.insert(0, sys.argv.pop(1))
module = sys.argv.pop(1)
import importlib
sys.exit(importlib.import_module(module).main(sys.argv[1:]))
"""
"""Runs a module's ``main`` of the copy that is named, wherever the project is installed."""


@dataclass(frozen=True)
class Copied:
    """The copy in ``root``, without nano's weights."""

    root: Path

    def main(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", RUN_COPY, str(self.root), module, *arguments],
            cwd=self.root.parent,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )

    def refresh(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.main("scripts.refresh", *arguments)


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    project = tmp_path / "project"
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for name in ("scripts", "web", "workflows", "nodes", "cascade_train"):
        shutil.copytree(ROOT / name, project / name, ignore=ignored)
    (project / "tests" / "nodes").mkdir(parents=True)
    for name in ("tests/nodes/contract.json", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, project / name)
    return Copied(project)
