"""The door that ComfyUI opens. It finds the library, loads the nodes under a name of their own, and says in
one line what to install when something is missing. It puts nothing on ``sys.path``: this folder holds a
package ``nodes`` that would shadow ComfyUI's module of that name.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_ROOT = Path(__file__).resolve().parent
_MODULE_OF = {"opencv-python-headless": "cv2", "pyyaml": "yaml", "pillow": "PIL"}
_log = logging.getLogger("cascade_train")

WEB_DIRECTORY = "./web"
NODE_CLASS_MAPPINGS: dict[str, Any] = {}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {}


def _version_of(file: Path) -> str | None:
    """The version that the library's ``__init__.py`` states, read without importing it."""
    found = re.search(r'^__version__ = "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else None


def _from_file(name: str, folder: Path) -> ModuleType:
    """Import the package in ``folder`` under ``name``, whatever the folders above it are called."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _library() -> None:
    """Make ``cascade_train`` importable: installed in this very version, else from this folder."""
    here = _version_of(_ROOT / "cascade_train" / "__init__.py")
    loaded = sys.modules.get("cascade_train")
    if loaded is not None:
        if getattr(loaded, "__version__", None) != here:
            raise ImportError(
                f"two versions of Cascade Train are here: {here} in {_ROOT}, and another loaded from "
                f"{getattr(loaded, '__file__', '?')}; remove one of them"
            )
        return
    found = importlib.util.find_spec("cascade_train")
    if found is not None and found.origin and Path(found.origin).is_file():
        # A folder of packs on sys.path makes a pack folder of that name look like the library: no version.
        version = _version_of(Path(found.origin))
        if version == here:
            importlib.import_module("cascade_train")
            return
        if version is not None:
            _log.warning(
                "Cascade Train: %s is installed in %s; this folder's own %s is used instead",
                version,
                found.origin,
                here,
            )
    _from_file("cascade_train", _ROOT / "cascade_train")


def _missing() -> list[str]:
    """Requirements that are not there, or are older than this version needs."""
    wanted = []
    for line in (_ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        found = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9.]+))?", line.split("#")[0])
        if not found:
            continue
        name, least = found.group(1).lower(), found.group(2)
        try:
            there = importlib.util.find_spec(_MODULE_OF.get(name, name.replace("-", "_"))) is not None
        except (ImportError, ValueError):
            there = False
        if not there or (least and _older(name, least)):
            wanted.append(line.strip())
    return wanted


def _older(name: str, least: str) -> bool:
    try:
        have = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False  # another distribution gives the module (opencv-python, say)
    return _numbers(have) < _numbers(least)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]]


def _advice() -> str:
    file = _ROOT / "requirements.txt"
    return f'Run\n    "{sys.executable}" -m pip install -r "{file}"\nand start ComfyUI again.'


def _open() -> None:
    missing = _missing()
    if missing:
        _log.error("Cascade Train: no nodes, since this Python lacks %s. %s", ", ".join(missing), _advice())
        return
    try:
        _library()
        nodes = sys.modules.get("cascade_train_nodes") or _from_file("cascade_train_nodes", _ROOT / "nodes")
        host = importlib.import_module("cascade_train.host.comfy").ComfyHost()
        classes, names = nodes.build_mappings(host)
    except ImportError as error:
        _log.error("Cascade Train: no nodes, since something cannot be imported: %s. %s", error, _advice())
        return
    NODE_CLASS_MAPPINGS.update(classes)
    NODE_DISPLAY_NAME_MAPPINGS.update(names)


_open()

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
