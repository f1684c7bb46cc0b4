"""The door that ComfyUI opens: from a plain copy, beside an installed library, and with something missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

OPEN = """
import importlib.util, json, logging, sys
from pathlib import Path
logging.basicConfig(format="%(levelname)s %(message)s")
folder, blocked = Path(sys.argv[1]), sys.argv[2].split(",")
# What pip's editable installation of this repository adds does not count as an installation here.
sys.meta_path = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in blocked else real(name, *a)
before = list(sys.path)
name = str(folder).replace(".", "_x_")   # as ComfyUI names the module
spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
spec.loader.exec_module(module)
library = sys.modules.get("cascade_train")
print(json.dumps({
    "ids": sorted(module.NODE_CLASS_MAPPINGS), "names": module.NODE_DISPLAY_NAME_MAPPINGS,
    "web": module.WEB_DIRECTORY, "library": str(library.__file__) if library else "",
    "nodes": "nodes" in sys.modules, "path": sys.path == before,
    "heavy": sorted({"torch", "diffusers", "transformers"} & set(sys.modules)),
}))
"""


def copy(target: Path) -> Path:
    target.mkdir(parents=True)
    for name in ("__init__.py", "requirements.txt"):
        shutil.copy2(ROOT / name, target / name)
    for name in ("cascade_train", "nodes"):
        left_out = shutil.ignore_patterns("__pycache__", "*.safetensors")
        shutil.copytree(ROOT / name, target / name, ignore=left_out)
    return target


def open_door(
    folder: Path, *, blocked: str = "", installed: Path | None = None
) -> tuple[dict[str, Any], str]:
    """Open the pack in ``folder`` in a fresh process; what came of it, and what it logged."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if installed is not None:
        kept["PYTHONPATH"] = str(installed)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder), blocked],
        capture_output=True,
        text=True,
        env=kept,
        cwd=folder.parent,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("name", ["cascade-train", "My Packs v1.2 (copy)", "cascade_train"])
def test_a_plain_copy_opens_under_any_folder_name(tmp_path: Path, name: str) -> None:
    folder = copy(tmp_path / name)
    found, log = open_door(folder)
    assert len(found["ids"]) >= 15 and all(node.startswith("Cascade") for node in found["ids"])
    assert found["names"].keys() == set(found["ids"]) and found["web"] == "./web"
    assert Path(found["library"]).is_relative_to(folder), "the library beside the door"
    assert found["path"] and not found["nodes"], "core's module 'nodes' is not shadowed"
    assert found["heavy"] == [], "opening is cheap: nothing heavy is imported"
    assert "ERROR" not in log


def test_an_installed_library_of_the_same_version_is_used(tmp_path: Path) -> None:
    folder = copy(tmp_path / "pack")
    site = tmp_path / "site"
    shutil.copytree(folder / "cascade_train", site / "cascade_train")
    found, _ = open_door(folder, installed=site)
    assert Path(found["library"]).is_relative_to(site)


def test_an_installed_library_of_another_version_is_passed_over_and_said(tmp_path: Path) -> None:
    folder = copy(tmp_path / "pack")
    site = tmp_path / "site"
    shutil.copytree(folder / "cascade_train", site / "cascade_train")
    (site / "cascade_train" / "__init__.py").write_text('__version__ = "0.0.1"\n', encoding="utf-8")
    found, log = open_door(folder, installed=site)
    assert Path(found["library"]).is_relative_to(folder) and len(found["ids"]) >= 15
    assert "0.0.1 is installed in" in log


def test_a_missing_package_is_named_with_what_to_run_and_no_traceback(tmp_path: Path) -> None:
    folder = copy(tmp_path / "pack")
    found, log = open_door(folder, blocked="peft,cv2")
    assert found["ids"] == [] and found["web"] == "./web"
    assert "lacks peft>=" in log and "opencv-python-headless>=" in log
    assert f'-m pip install -r "{folder / "requirements.txt"}"' in log and sys.executable in log
    assert "Traceback" not in log and len(log.splitlines()) <= 4


def test_a_package_that_is_too_old_is_named(tmp_path: Path) -> None:
    folder = copy(tmp_path / "pack")
    (folder / "requirements.txt").write_text("numpy>=1.0\nfilelock>=99\n", encoding="utf-8")
    found, log = open_door(folder)
    assert found["ids"] == [] and "lacks filelock>=99." in log and "numpy" not in log


def test_a_node_file_that_cannot_be_imported_says_so_in_a_line(tmp_path: Path) -> None:
    folder = copy(tmp_path / "pack")
    (folder / "nodes" / "models.py").write_text("import not_a_package\n", encoding="utf-8")
    found, log = open_door(folder)
    assert found["ids"] == [] and "No module named 'not_a_package'" in log and "Traceback" not in log
