"""Drawing pictures: Stage C → Stage B → Stage A, previews, validation grids.

`spec` holds what travels on links. It imports no torch, and neither does this package before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascade_train.jobs.validation import draw_prompts, validation_grid
    from cascade_train.sampling.pipeline import image_to_image, reconstruct, text_to_image
    from cascade_train.sampling.spec import Prompts

_FROM = {
    "Prompts": "spec",
    "draw_prompts": "validation",
    "image_to_image": "pipeline",
    "reconstruct": "pipeline",
    "text_to_image": "pipeline",
    "validation_grid": "validation",
}

__all__ = ["Prompts", "draw_prompts", "image_to_image", "reconstruct", "text_to_image", "validation_grid"]


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
