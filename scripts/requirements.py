"""``requirements.txt``, which is installed into ComfyUI's own Python, from ``pyproject.toml``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "requirements.txt"
ROOT = Path(__file__).resolve().parent.parent

COMFYUI_BRINGS = ("torch", "torchvision", "transformers", "pillow", "numpy")
"""ComfyUI requires these itself and lives or dies by their versions, so this pack touches none of them."""


def wanted() -> dict[str, str]:
    """What the library needs: requirement lines of ``pyproject.toml`` by the package's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split(r"[<>=!~\[ ;]", line, maxsplit=1)[0]: line for line in project["dependencies"]}


def files() -> dict[str, str]:
    """All that the library needs and ComfyUI does not bring."""
    lines = [line for name, line in wanted().items() if name not in COMFYUI_BRINGS]
    why = f"# Written by `python start.py refresh`. ComfyUI brings {', '.join(COMFYUI_BRINGS)} itself."
    return {FILE: "\n".join([why, *lines]) + "\n"}
