"""What is trained: a LoRA, all of Stage C, text tokens."""

from __future__ import annotations

from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.host.base import Host
from cascade_train.training.spec import FullTarget, LoRATarget

from .base import TARGET, CascadeNode, Input, choice, integer, link, number, options, text

NOTHING = "nothing"
"""In the list of LoRA files to start from: none."""


def _start(name: str, host: Host) -> Any:
    from cascade_train.jobs.loras import start_file

    return start_file(name, host) if name.strip() not in ("", NOTHING) else None


def _layers(text: str, host: Host) -> None:
    from cascade_train.training.layers import pieces

    pieces(text)


class LoRATargetNode(CascadeNode):
    ID = "CascadeLoRATarget"
    DISPLAY_NAME = "LoRA (target)"
    CATEGORY = "cascade/targets"
    SEARCH_ALIASES = ("lora", "dora", "adapter", "peft", "rank")
    DESCRIPTION = "Train small low-rank adapters on Stage C and leave its own weights as they are."
    RETURN_TYPES = (TARGET,)
    RETURN_NAMES = ("target",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first into Train Tokens.",)
    HELP = """
    A LoRA learns with little memory and is exported as a small file.

    The filter `attn` adapts the attention layers, where text meets picture: enough for styles and many
    subjects. A new shape or a face is learned sooner with `attn, channelwise`. Names are those of ComfyUI and
    of diffusers.

    **start_from** goes on from a LoRA in `models/loras`: the first step sees the network as it is with that file
    laid over at strength 1. Rank and filter must hold what is in it, which *Training Run* checks; what it does to
    the text encoder is left out, and said. A run of your own goes on by *Train Steps*, and needs no file.
    """  # noqa: E501
    CHECKS = {"modules": _layers, "start_from": _start}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "rank": integer(
                    LoRATarget.rank, 1, 1024, "Size of the adapters. Larger learns more, and overfits sooner."
                ),
                "alpha": number(
                    LoRATarget.alpha,
                    0.0,
                    1024.0,
                    0.5,
                    "The adapters' strength is alpha / rank. Equal to the rank is a good start.",
                ),
                "modules": text(
                    LoRATarget.modules,
                    "Which layers get an adapter: parts of their names, separated by commas. 'attn' "
                    "is every attention layer; 'attn, channelwise' adds the residual blocks.",
                ),
                "kind": choice(
                    options(LoRATarget, "kind"),
                    "DoRA also learns each layer's magnitude: a little slower, often closer "
                    "to full training.",
                ),
            },
            "optional": {"start_from": cls._files()},
        }

    @classmethod
    def _files(cls) -> Input:
        from cascade_train.jobs.loras import listed

        host: Host | None = getattr(cls, "host", None)
        return choice(
            (NOTHING, *(listed(host) if host is not None else ())),
            "A LoRA file of any program to go on from: training begins where it ends, at strength 1. It is "
            "another run then, named by what is in the file.",
        )

    @classmethod
    def IS_CHANGED(cls, start_from: str = NOTHING, **_: Any) -> Any:
        try:
            start = _start(start_from, cls.host)
        except CascadeError as error:
            return str(error)
        return start.content if start is not None else ""

    def run(self, alpha: float, modules: str, start_from: str = NOTHING, **settings: Any) -> tuple[Any]:
        _layers(modules, self.host)
        start = _start(start_from, self.host)
        return (LoRATarget(alpha=float(alpha), modules=modules.strip(), start=start, **settings),)


class FullStageC(CascadeNode):
    ID = "CascadeFullStageC"
    DISPLAY_NAME = "Full Stage C (target)"
    CATEGORY = "cascade/targets"
    SEARCH_ALIASES = ("full finetune", "fine-tune", "dreambooth")
    DESCRIPTION = "Train all weights of Stage C. Needs far more memory than a LoRA."
    RETURN_TYPES = (TARGET,)
    RETURN_NAMES = ("target",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run.",)
    HELP = """
    Keeps the optimizer's state of every weight: about 16 bytes for each of Stage C's, 57 GB for the 3.6B
    model and 16 GB for the lite one.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "start_from": choice(
                    (FullTarget.init, "random"),
                    "'models' continues from the loaded weights; 'random' starts from nothing.",
                ),
            }
        }

    def run(self, start_from: str) -> tuple[Any]:
        return (FullTarget(part="stage_c", init=start_from),)


def _new_tokens(text: str, host: Host) -> None:
    from cascade_train.training.tokens import new_tokens

    new_tokens(text)


def _existing_tokens(text: str, host: Host) -> None:
    from cascade_train.training.tokens import existing_tokens

    existing_tokens(text)


class TrainTokens(CascadeNode):
    ID = "CascadeTrainTokens"
    DISPLAY_NAME = "Train Tokens (target)"
    CATEGORY = "cascade/targets"
    SEARCH_ALIASES = ("textual inversion", "embedding", "trigger word", "new word")
    DESCRIPTION = (
        "Train words of the text encoder: new ones, written [name] in captions and prompts, or existing "
        "ones. With a LoRA wired in both are trained together."
    )
    RETURN_TYPES = (TARGET,)
    RETURN_NAMES = ("target",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run.",)
    HELP = """
    A token is a word of the text encoder with its own embedding. Write it in captions and prompts exactly as
    here, with brackets: `a photo of [concept]`.

    It starts as the mean of the words that the expression finds: choose words near the concept. Expressions
    are searched in the vocabulary, whose words end in `</w>`: `^cat</w>$` is the word cat, `^(cat|dog)</w>$`
    the mean of two.

    A word that no caption says would learn nothing: that is an error before training, which shows the
    captions that came near. What counts is what the network reads: with prefix and suffix of *Caption
    Options*, written exactly so, and not behind the 77 tokens that CLIP reads.

    *Export Run* writes each token as an embedding file beside the LoRA; in ComfyUI put it into
    `models/embeddings`.
    """
    CHECKS = {"new_tokens": _new_tokens, "existing_tokens": _existing_tokens}

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "new_tokens": text(
                    "[concept] = ^shape</w>$",
                    "One new token a line: [name] = regular expression. The "
                    "token starts as the mean of the vocabulary's words that match; words end in "
                    "</w>.",
                    lines=True,
                ),
                "existing_tokens": text(
                    "",
                    "One regular expression a line: words of the vocabulary to train in place. May be empty.",
                    lines=True,
                ),
                "learning_rate": number(
                    0.0, 0.0, 1.0, 0.0001, "The tokens' own learning rate; 0 uses the optimizer's."
                ),
            },
            "optional": {"target": link(TARGET, "A LoRA to train together with the tokens.")},
        }

    def run(
        self, new_tokens: str, existing_tokens: str, learning_rate: float, target: Any = None
    ) -> tuple[Any]:
        from cascade_train.training.tokens import with_tokens

        return (with_tokens(target, new_tokens, existing_tokens, learning_rate or None),)
