"""What ComfyUI brings that is of use to others, found without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def comfyui_tokenizer() -> Path | None:
    """The folder of CLIP's tokenizer in the ComfyUI that this process can import; None without one."""
    found = importlib.util.find_spec("comfy")
    for root in (found.submodule_search_locations or ()) if found is not None else ():
        if (Path(root) / "sd1_tokenizer").is_dir():
            return Path(root) / "sd1_tokenizer"
    return None
