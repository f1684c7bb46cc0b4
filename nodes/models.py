"""Loading Stable Cascade."""

from __future__ import annotations

from typing import Any, get_args

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.models.finding import listed
from cascade_train.models.library import FILES, NANO, load_models
from cascade_train.models.spec import AUTO, ModelsSpec, Part, Variant

from .base import MODELS, CascadeNode, Input, choice, link, number, options, switch, text

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
    "text": "The text encoder, CLIP ViT-bigG-14: a file, or a folder in Hugging Face layout.",
    "image": "The CLIP vision encoder, ViT-L-14: a file or a folder. Needed for image variations alone.",
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
    CHECKED_TOGETHER = ("source", "variant", *PARTS)
    RETURN_TYPES = (MODELS,)
    RETURN_NAMES = ("models",)
    OUTPUT_TOOLTIPS = ("For training, drawing and encoding.",)
    HELP = """
    Nothing is loaded by this node itself: each part is read when something needs it, and kept.

    **nano** comes with the pack. It has the architecture of Stable Cascade at small widths, draws 64×64
    pictures of simple shapes, and trains on any CPU: good for trying a workflow before it goes to the large
    models.

    **files** looks in ComfyUI's model folders. Files are known by what is in them, whatever they are called; the
    lists offer what fits. Where a part is not chosen, its official name is looked for, then the one file that
    holds it.

    | part | folder | official file |
    |---|---|---|
    | Stage C | `diffusion_models` or `unet` | `stage_c_bf16.safetensors`, lite: `stage_c_lite_bf16.safetensors` |
    | Stage B | `diffusion_models` or `unet` | `stage_b_bf16.safetensors`, lite: `stage_b_lite_bf16.safetensors` |
    | Stage A | `vae` | `stage_a.safetensors` |
    | compressor | `vae` | `effnet_encoder.safetensors` |
    | previewer | `vae` or `vae_approx` | `previewer.safetensors` |
    | text encoder | `text_encoders` | CLIP ViT-bigG-14: one file, or a folder in Hugging Face layout |
    | image encoder | `clip_vision` | CLIP ViT-L-14: one file, or a folder in Hugging Face layout |

    ComfyUI's two all-in-one files (`stable_cascade_stage_c`, `stable_cascade_stage_b`, in `checkpoints`) hold
    everything. Folders of diffusers (`prior`, `decoder`, `vqgan`) are taken too, with their shards and their bf16
    or fp16 variants. The tokenizer is taken from beside the text encoder, from ComfyUI, or from the package
    clip-anytorch (`pip install 'cascade-train[clip]'`).

    **captions** says what becomes of long ones. `cut` ends them after 75 tokens and says so. `chunks` reads them 75
    tokens at a time, each with a start and an end of its own, and hands the states of all to Stage C, as core does;
    the pooled text, which Stage B takes too, is that of the first. At most 16 chunks are read.

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
                    "GPU memory for them, but a step takes at least as long as moving them twice, with "
                    "checkpointing three times. Changes no result.",
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
        """A list of what holds the part; made at every look at the node, so each header is read once."""
        host: Host | None = getattr(cls, "host", None)
        found = dict.fromkeys(name for name, _ in listed(part, host)) if host is not None else {}
        return choice(
            (OFFICIAL, *sorted(found)),
            tip + " 'official name' looks for the official file, or the only one that holds this part.",
        )

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
            NANO if source == BUNDLED else source,
            host=cls.host,
            variant=variant,
            precision=precision,
            files=named,
            compact="" if compact == PLAIN else compact,
            offload=offload,
            captions=captions,
        )

    @classmethod
    def check_together(cls, host: Host, **given: Any) -> None:
        """The files are looked at, none is loaded."""
        for name, choices in (("source", (BUNDLED, FILES)), ("variant", get_args(Variant))):
            if given.get(name, choices[0]) not in choices:
                what = f"'{given[name]}' is not one of the choices"
                raise CascadeError(
                    what, fix=f"Choose {' or '.join(map(repr, choices))}", typed=(name, given[name])
                )
        cls._load(precision="fp32", **{"variant": "full", **given})

    def run(self, **settings: Any) -> tuple[Any]:
        return (self._load(**settings),)


NO_FILE = "choose a file"
"""In a list of LoRA files: none is chosen."""


def _lora(name: str, host: Host) -> None:
    from cascade_train.jobs.loras import found

    if name.strip() in ("", NO_FILE):
        raise CascadeError("no LoRA is chosen", fix="Choose a file; the list shows models/loras")
    found(name, host)


def _words(lines: str, host: Host) -> None:
    from cascade_train.training.tokens import new_tokens

    new_tokens(lines)


class LoadLoRA(CascadeNode):
    ID = "CascadeLoadLoRA"
    DISPLAY_NAME = "Load LoRA (Stable Cascade)"
    CATEGORY = "cascade/models"
    SEARCH_ALIASES = ("lora loader", "use lora", "lycoris", "lokr", "loha", "dora", "peft")
    DESCRIPTION = "Lays a LoRA file of any program over the models, each part as strongly as wanted."
    CHECKS = {"lora": _lora, "words": _words}
    RETURN_TYPES = (MODELS,)
    RETURN_NAMES = ("models",)
    OUTPUT_TOOLTIPS = ("The models with the LoRA, for drawing, training and more LoRAs.",)
    HELP = """
    The list shows the LoRAs of Stable Cascade in `models/loras`; those of other models are not offered, and are
    refused by name. Read are files of the official trainer, OneTrainer, kohya, LyCORIS (LoKr, LoHa), DoRA, peft,
    ComfyUI and this pack. Several may follow one another.

    A file may change Stage C, the text encoder, or both, and bring words of its own. Words are used whatever the
    strengths are. Official files do not tell the names of their words: write them into `words` as they were
    trained.

    `cascade-train lora info FILE` tells what is in a file.
    """  # noqa: E501

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "What the LoRA is laid over."),
                "lora": cls._files(),
                "strength": number(
                    1.0, -10.0, 10.0, 0.05, "How strongly Stage C is changed: 1 is as trained, 0 not at all."
                ),
                "text_strength": number(
                    1.0, -10.0, 10.0, 0.05, "The same for the text encoder, where the file changes it."
                ),
            },
            "optional": {
                "words": text(
                    "",
                    "For official files alone: one new word a line, as it was trained: [name] = regular "
                    "expression.",
                    lines=True,
                ),
            },
        }

    @classmethod
    def _files(cls) -> Input:
        from cascade_train.jobs.loras import listed

        host: Host | None = getattr(cls, "host", None)
        return choice(
            (NO_FILE, *(listed(host) if host is not None else ())),
            "A file in models/loras, or a path that may be read.",
        )

    @classmethod
    def IS_CHANGED(cls, lora: str = "", **_: Any) -> Any:
        from cascade_train.jobs.loras import found
        from cascade_train.models.loras.state import content_of

        try:
            return content_of(found(lora, cls.host))
        except CascadeError as error:
            return str(error)

    def run(
        self, models: Any, lora: str, strength: float, text_strength: float, words: str = ""
    ) -> tuple[Any]:
        from cascade_train.jobs.loras import apply_file, found

        _lora(lora, self.host)
        return (apply_file(models, found(lora, self.host), strength, text_strength, words, self.host),)
