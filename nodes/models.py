"""Loading Stable Cascade."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.models.library import FILES, MODEL_FOLDERS, NANO, load_models
from cascade_train.models.spec import AUTO, ModelsSpec, Part, Variant

from .base import MODELS, CascadeNode, Input, choice, options, switch

BUNDLED = "nano (bundled)"
"""How `NANO` is shown."""

OFFICIAL = "official name"
"""In a list of files: the file that has the official name."""

PLAIN = "as precision"
"""In the list of ways to store weights: as they are computed with."""

PARTS: dict[Part, str] = {
    "stage_c": "Stage C's file.",
    "stage_b": "Stage B's file.",
    "stage_a": "Stage A's file (the VQGAN).",
    "compressor": "The semantic compressor's file (effnet_encoder).",
    "previewer": "The previewer's file. Needed for previews alone.",
    "text": "The text encoder's folder in Hugging Face layout (config.json, model.safetensors, tokenizer).",
    "image": "The CLIP vision encoder's folder in Hugging Face layout. Needed for image variations alone.",
}


class LoadStableCascade(CascadeNode):
    ID = "CascadeLoadStableCascade"
    DISPLAY_NAME = "Load Stable Cascade"
    CATEGORY = "cascade/models"
    SEARCH_ALIASES = ("checkpoint loader", "load model", "wuerstchen", "nano", "unet loader")
    DESCRIPTION = (
        "Names the parts of a Stable Cascade. Each part is loaded when something needs it, once. The bundled "
        "nano model draws 64×64 pictures of simple shapes on any CPU."
    )
    RETURN_TYPES = (MODELS,)
    RETURN_NAMES = ("models",)
    OUTPUT_TOOLTIPS = ("For training, drawing and encoding.",)
    HELP = """
    Nothing is loaded by this node itself: each part is read when something needs it, and kept.

    **nano** comes with the pack. It has the architecture of Stable Cascade at small widths, draws 64×64
    pictures of simple shapes, and trains on any CPU: good for trying a workflow before it goes to the large
    models.

    **files** looks in ComfyUI's model folders, for the official names unless others are chosen:

    | part | folder | official file |
    |---|---|---|
    | Stage C | `diffusion_models` or `unet` | `stage_c_bf16.safetensors`, lite: `stage_c_lite_bf16.safetensors` |
    | Stage B | `diffusion_models` or `unet` | `stage_b_bf16.safetensors`, lite: `stage_b_lite_bf16.safetensors` |
    | Stage A | `vae` | `stage_a.safetensors` |
    | compressor | `vae` | `effnet_encoder.safetensors` |
    | previewer | `vae` | `previewer.safetensors` |
    | text encoder | `text_encoders` | a folder in Hugging Face layout, `stable-cascade/text_encoder` |
    | image encoder | `clip_vision` | a folder in Hugging Face layout, `stable-cascade/image_encoder` |

    Only `.safetensors` files are read.
    """  # noqa: E501

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "source": choice(
                    (BUNDLED, FILES),
                    "The small model that comes with the pack, or files in ComfyUI's model folders.",
                ),
                "variant": choice(
                    get_args(Variant),
                    "Of the official files: 3.6B and 3B parameters, or 1B and 700M.",
                ),
                "precision": choice(
                    (*options(ModelsSpec, "precision"), AUTO),
                    "How the frozen weights are held in memory; bf16 takes half. auto: bf16 for files on a "
                    "GPU that computes in it, else fp32.",
                    default=AUTO,
                ),
            },
            "optional": {
                **{part: cls._files(part, tip) for part, tip in PARTS.items()},
                "compact": choice(
                    (PLAIN, *options(ModelsSpec, "compact")[1:]),
                    "How the frozen weights of Stages C and B are stored: int8 and fp8 take half of bf16's "
                    "memory, with errors of about 2 and 4 % where bf16 has 1 %. What is drawn and learned "
                    "changes a little. A part that is trained itself is not touched.",
                ),
                "offload": switch(
                    False,
                    "Keep these weights in main memory, and bring them to the GPU layer by layer: next to no "
                    "GPU memory for them, but a step takes at least as long as moving them three times. "
                    "Changes no result.",
                ),
                "captions": choice(
                    options(ModelsSpec, "captions"),
                    "What becomes of captions and prompts of more than 75 tokens (some 55 words): their ends "
                    "are cut, which is said, or they are read in chunks of 75 as ComfyUI does. In training "
                    "and drawing alike.",
                ),
            },
        }

    @classmethod
    def _files(cls, part: Part, tip: str) -> Input:
        """A list of the files (or folders) there are; cheap, since it is made at every look at the node."""
        host: Host | None = getattr(cls, "host", None)
        found: dict[str, None] = {}
        models = host.folders.models if host is not None else {}
        for kind in MODEL_FOLDERS[part]:
            for root in models.get(kind, ()):
                found.update(dict.fromkeys(_listed(root, folders=part in ("text", "image"))))
        return choice((OFFICIAL, *sorted(found)), tip + " 'official name' looks for the official file.")

    @classmethod
    def IS_CHANGED(cls, **settings: Any) -> Any:
        try:
            return cls._load(**settings).digest
        except CascadeError as error:
            return str(error)

    @classmethod
    def _load(
        cls,
        source: str,
        variant: Any,
        precision: Any,
        compact: Any = PLAIN,
        offload: bool = False,
        captions: Any = "cut",
        **files: str | None,
    ) -> Any:
        named: Any = {part: name for part, name in files.items() if name and name != OFFICIAL}
        return load_models(
            NANO if source == BUNDLED else FILES,
            host=cls.host,
            variant=variant,
            precision=precision,
            files=named,
            compact="" if compact == PLAIN else compact,
            offload=offload,
            captions=captions,
        )

    def run(self, **settings: Any) -> tuple[Any]:
        return (self._load(**settings),)


def _listed(root: Path, folders: bool) -> list[str]:
    if not root.is_dir():
        return []
    if folders:
        return sorted(
            path.parent.relative_to(root).as_posix() for path in root.glob("*/config.json")
        ) + sorted(path.parent.relative_to(root).as_posix() for path in root.glob("*/*/config.json"))
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.safetensors"))
