"""Drawing pictures: Stage C → Stage B → Stage A, previews, validation grids.

Importing this package imports torch; `spec` holds what travels on links.
"""

from cascade_train.sampling.pipeline import image_to_image, reconstruct, text_to_image
from cascade_train.sampling.spec import Prompts
from cascade_train.sampling.validation import draw_prompts, validation_grid

__all__ = ["Prompts", "draw_prompts", "image_to_image", "reconstruct", "text_to_image", "validation_grid"]
