"""Drawing with the models: prompts, text, the three stages, previews. LATENT and IMAGE are as in core."""

from __future__ import annotations

from typing import Any

from cascade_train.host.base import Host
from cascade_train.sampling import sizes, spec

from .base import MODELS, PROMPTS, CascadeNode, choice, integer, link, number, options, path, seed, text

CONDITIONING, LATENT = "CONDITIONING", "LATENT"
SAMPLERS = options(spec.Prompts, "sampler")
WIDTH = "Width in pixels; 0 is the models' native side."
HEIGHT = "Height in pixels; 0 is the models' native side."
SAMPLER = "ddpm draws fresh noise at every step, ddim none."
RESCALE_OF = options(spec.Prompts, "rescale_of")
OF_WHAT = (
    "What rescale is worked out on: what the network answers, as in the official code, or v, as in core's "
    "RescaleCFG."
)
RESCALE = "Draws the contrast that guidance adds back towards normal; 0 leaves it."


def _prompts(text: str, host: Host) -> None:
    spec.Prompts(spec.prompts_from_lines(text))


LARGEST = 8192


def _side(side: int, host: Host) -> None:
    sizes.check_side(side, LARGEST)


class PromptsNode(CascadeNode):
    ID = "CascadePrompts"
    DISPLAY_NAME = "Prompts"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("validation prompts", "sample prompts", "test prompts")
    DESCRIPTION = "Texts that are drawn to see how a training is doing, always from the same seeds."
    RETURN_TYPES = (PROMPTS,)
    RETURN_NAMES = ("prompts",)
    OUTPUT_TOOLTIPS = ("Goes into Validate or Train and Validate.",)
    HELP = """
    Put the concept, variations of it, and something the model knew before, to see that it is not forgotten.
    """
    CHECKS = {"texts": _prompts, "width": _side, "height": _side}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "texts": text(
                    "a large red circle in the centre on a black background",
                    "One prompt a line. Lines that begin with # are left out.",
                    lines=True,
                ),
                "negative": text("", "What guidance leads away from."),
                "pictures": integer(
                    spec.Prompts.pictures, 1, 256, "Pictures for each prompt, with seeds seed, seed + 1, …"
                ),
                "seed": seed("Seed of the first picture of every prompt."),
                "width": integer(0, 0, LARGEST, WIDTH, 8),
                "height": integer(0, 0, LARGEST, HEIGHT, 8),
                "steps_c": integer(spec.Prompts.steps_c, 1, 1000, "Steps of Stage C."),
                "cfg_c": number(
                    spec.Prompts.cfg_c,
                    0.0,
                    30.0,
                    0.1,
                    "Guidance of Stage C: 1 is none, larger follows the text more.",
                ),
                "rescale": number(spec.Prompts.rescale, 0.0, 1.0, 0.05, RESCALE),
                "steps_b": integer(spec.Prompts.steps_b, 1, 1000, "Steps of Stage B."),
                "cfg_b": number(spec.Prompts.cfg_b, 0.0, 30.0, 0.1, "Guidance of Stage B."),
                "sampler": choice(SAMPLERS, SAMPLER),
                "shift": number(
                    0.0,
                    0.0,
                    10.0,
                    0.1,
                    "Stage C's schedule shift. 0: the models' own, which for Stable Cascade is 2, as in "
                    "ComfyUI; 1 shifts nothing.",
                ),
            },
            "optional": {"rescale_of": choice(RESCALE_OF, OF_WHAT)},
        }

    def run(self, texts: str, **settings: Any) -> tuple[Any]:
        return (spec.Prompts(texts=spec.prompts_from_lines(texts), **settings),)


class EncodeText(CascadeNode):
    ID = "CascadeEncodeText"
    DISPLAY_NAME = "Encode Text (Cascade)"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("clip text encode", "prompt", "conditioning", "image variation")
    DESCRIPTION = (
        "A text as the networks see it. An image adds its CLIP embedding, for variations of a picture."
    )
    RETURN_TYPES = (CONDITIONING,)
    RETURN_NAMES = ("conditioning",)
    OUTPUT_TOOLTIPS = ("For Sample Stage C and Decode Stage B.",)
    HELP = """
    For core's nodes too: the output has core's form. Core's own text encoder node does not know trained
    tokens of a run; this one does, behind *Apply Run*.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "Whose text encoder reads it; tokens of an applied run are known."),
                "text": text(
                    "a large red circle in the centre on a black background", "What to draw.", lines=True
                ),
            },
            "optional": {"image": link("IMAGE", "A picture to make variations of (needs an image encoder).")},
        }

    def run(self, models: Any, text: str, image: Any = None) -> tuple[Any]:
        from cascade_train.sampling.links import encode_prompt

        return (encode_prompt(models, text, image, self.host),)


class SampleStageC(CascadeNode):
    ID = "CascadeSampleStageC"
    DISPLAY_NAME = "Sample Stage C"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("ksampler", "sampler", "text to image", "img2img", "generate")
    DESCRIPTION = "Draws the semantic latents of pictures from text, or from a latent and text."
    RETURN_TYPES = (LATENT,)
    RETURN_NAMES = ("stage_c",)
    OUTPUT_TOOLTIPS = ("16 channels; goes into Decode Stage B.",)
    HELP = """
    A picture depends on its own seed and not on the batch it is drawn in, up to the rounding of batched
    kernels.

    Full-size models draw 1024×1024 pixels from 24×24 latents. The smallest side is 64 pixels, nano's 16.
    """
    CHECKS = {"width": _side, "height": _side}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "The models to draw with."),
                "positive": link(CONDITIONING, "What to draw."),
                "seed": seed("Picture i has seed + i, so that it is the same in any batch."),
                "pictures": integer(1, 1, 4096, "How many pictures."),
                "width": integer(0, 0, LARGEST, WIDTH, 8),
                "height": integer(0, 0, LARGEST, HEIGHT, 8),
                "steps": integer(spec.Prompts.steps_c, 1, 1000, "Evaluations of the network."),
                "cfg": number(
                    spec.Prompts.cfg_c, 0.0, 30.0, 0.1, "Guidance: 1 is none, larger follows the text more."
                ),
                "rescale": number(spec.Prompts.rescale, 0.0, 1.0, 0.05, RESCALE),
                "sampler": choice(SAMPLERS, SAMPLER),
                "shift": number(
                    0.0,
                    0.0,
                    10.0,
                    0.1,
                    "Stage C's schedule shift. 0: the models' own, which for Stable Cascade is 2, as in "
                    "ComfyUI; 1 shifts nothing.",
                ),
                "strength": number(1.0, 0.01, 1.0, 0.01, "With a latent: how much of it is drawn anew."),
            },
            "optional": {
                "negative": link(CONDITIONING, "What guidance leads away from; none is the empty text."),
                "latent": link(LATENT, "From Encode Stage C, to begin from instead of noise."),
                "rescale_of": choice(RESCALE_OF, OF_WHAT),
            },
        }

    def run(self, models: Any, positive: Any, **settings: Any) -> tuple[Any]:
        from cascade_train.sampling.links import sample_stage_c

        return (sample_stage_c(models, positive, self.host, **settings),)


class DecodeStageB(CascadeNode):
    ID = "CascadeDecodeStageB"
    DISPLAY_NAME = "Decode Stage B"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("ksampler", "stage b", "upscale latent")
    DESCRIPTION = "Draws Stage A's latents from Stage C's."
    RETURN_TYPES = (LATENT,)
    RETURN_NAMES = ("stage_b",)
    OUTPUT_TOOLTIPS = ("4 channels; goes into Decode Stage A.",)
    HELP = "Stage B needs few steps and little guidance. Width and height follow Stage C unless given."
    CHECKS = {"width": _side, "height": _side}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "The models to draw with."),
                "stage_c": link(LATENT, "From Sample Stage C or Encode Stage C."),
                "seed": seed("Picture i has seed + i."),
                "steps": integer(spec.Prompts.steps_b, 1, 1000, "Evaluations of the network."),
                "cfg": number(spec.Prompts.cfg_b, 0.0, 30.0, 0.1, "Guidance; 1 is none."),
                "sampler": choice(SAMPLERS, SAMPLER),
                "width": integer(0, 0, LARGEST, "Width in pixels; 0 is as Stage C was sampled.", 8),
                "height": integer(0, 0, LARGEST, "Height in pixels; 0 is as Stage C was sampled.", 8),
            },
            "optional": {
                "positive": link(CONDITIONING, "The text, which Stage B takes a little of."),
                "negative": link(CONDITIONING, "What guidance leads away from."),
                "rescale": number(spec.Prompts.rescale, 0.0, 1.0, 0.05, RESCALE),
                "rescale_of": choice(RESCALE_OF, OF_WHAT),
            },
        }

    def run(self, models: Any, stage_c: Any, **settings: Any) -> tuple[Any]:
        from cascade_train.sampling.links import decode_stage_b

        return (decode_stage_b(models, stage_c, self.host, **settings),)


class DecodeStageA(CascadeNode):
    ID = "CascadeDecodeStageA"
    DISPLAY_NAME = "Decode Stage A"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("vae decode", "latent to image")
    DESCRIPTION = "Turns Stage B's latents into pictures."
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("image",)
    OUTPUT_TOOLTIPS = ("The pictures.",)
    HELP = "The latents are in the scale that core's VAE Decode takes."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "Whose Stage A decodes."),
                "stage_b": link(LATENT, "From Decode Stage B or Encode Stage A."),
            }
        }

    def run(self, models: Any, stage_b: Any) -> tuple[Any]:
        from cascade_train.sampling.links import decode_stage_a

        return (decode_stage_a(models, stage_b, self.host),)


class EncodeStageC(CascadeNode):
    ID = "CascadeEncodeStageC"
    DISPLAY_NAME = "Encode Stage C"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("vae encode", "semantic compressor", "effnet", "img2img")
    DESCRIPTION = "Compresses pictures to the semantic latents that Stage C works on."
    RETURN_TYPES = (LATENT,)
    RETURN_NAMES = ("stage_c",)
    OUTPUT_TOOLTIPS = ("16 channels; for Sample Stage C (image to image) or Decode Stage B.",)
    HELP = """
    Pictures are resized so that their latents have the grid that pictures of their size are sampled at.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "Whose semantic compressor encodes."),
                "image": link("IMAGE", "Pictures; they are resized to the grid that is sampled at."),
            }
        }

    def run(self, models: Any, image: Any) -> tuple[Any]:
        from cascade_train.sampling.links import encode_stage_c

        return (encode_stage_c(models, image, self.host),)


class EncodeStageA(CascadeNode):
    ID = "CascadeEncodeStageA"
    DISPLAY_NAME = "Encode Stage A"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("vae encode", "vqgan")
    DESCRIPTION = "Compresses pictures to Stage A's latents, with little loss."
    RETURN_TYPES = (LATENT,)
    RETURN_NAMES = ("stage_b",)
    OUTPUT_TOOLTIPS = ("4 channels; for Decode Stage A.",)
    HELP = """
    *Encode Stage A* followed by *Decode Stage A* is the best any training of the other stages can reach.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "Whose Stage A encodes."),
                "image": link("IMAGE", "Pictures with sides in multiples of 8 pixels."),
            }
        }

    def run(self, models: Any, image: Any) -> tuple[Any]:
        from cascade_train.sampling.links import encode_stage_a

        return (encode_stage_a(models, image, self.host),)


class PreviewLatent(CascadeNode):
    ID = "CascadePreviewLatent"
    DISPLAY_NAME = "Preview Latent"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("quick decode", "latent preview")
    DESCRIPTION = "A small rough picture of Stage C latents, at once."
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("image",)
    OUTPUT_TOOLTIPS = ("Small pictures.",)
    HELP = "Needs the previewer's file; nano has one."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "Whose previewer draws."),
                "stage_c": link(LATENT, "From Sample Stage C or Encode Stage C."),
            }
        }

    def run(self, models: Any, stage_c: Any) -> tuple[Any]:
        from cascade_train.sampling.links import preview_latent

        return (preview_latent(models, stage_c, self.host),)


def _place(text: str, host: Host) -> None:
    host.folders.resolve_read(text)


class LoadPictures(CascadeNode):
    ID = "CascadeLoadPictures"
    DISPLAY_NAME = "Load Pictures"
    CATEGORY = "cascade/sampling"
    SEARCH_ALIASES = ("load images", "load image batch", "folder")
    DESCRIPTION = "Pictures of a folder, or one file, as a batch of one size."
    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("images",)
    OUTPUT_TOOLTIPS = ("The pictures, cropped to one size.",)
    HELP = "For image to image, variations and reconstruction. Training takes *Image Folder*."
    CHECKS = {"path": _place}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "path": path(
                    "bundled/crescent",
                    "A folder or a file, in ComfyUI's input folder or by its whole path. "
                    "bundled/… comes with the pack.",
                    "any",
                ),
                "first": integer(0, 0, 1_000_000, "How many pictures of the folder to pass over."),
                "count": integer(4, 1, 256, "How many to load."),
                "width": integer(64, 8, 8192, "Width in pixels. Pictures are cropped to this shape.", 8),
                "height": integer(64, 8, 8192, "Height in pixels.", 8),
            }
        }

    @classmethod
    def IS_CHANGED(cls, path: str, first: int, count: int, **_: Any) -> Any:
        from cascade_train.sampling.pictures import stamp

        return stamp(path, first, count, cls.host)

    def run(self, path: str, first: int, count: int, width: int, height: int) -> tuple[Any]:
        from cascade_train.sampling.pictures import load_pictures

        return (load_pictures(path, first, count, width, height, self.host),)
