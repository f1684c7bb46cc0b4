"""What is trained: a LoRA, all of Stage C, text tokens."""

from __future__ import annotations

from typing import Any

from .base import TARGET, CascadeNode, choice, integer, link, number, text


class LoRA(CascadeNode):
    ID = "CascadeLoRATarget"
    DISPLAY_NAME = "LoRA (target)"
    CATEGORY = "cascade/targets"
    DESCRIPTION = "Train small low-rank adapters on Stage C and leave its own weights as they are."
    RETURN_TYPES = (TARGET,)
    RETURN_NAMES = ("target",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run, or first into Train Tokens.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "rank": integer(8, 1, 1024, "Size of the adapters. Larger learns more, and overfits sooner."),
                "alpha": number(
                    8.0,
                    0.0,
                    1024.0,
                    0.5,
                    "The adapters' strength is alpha / rank. Equal to the rank is a good start.",
                ),
                "modules": text(
                    "attn",
                    "Which layers get an adapter: parts of their names, separated by commas. 'attn' "
                    "is every attention layer; 'attn, channelwise' adds the residual blocks.",
                ),
                "kind": choice(
                    ("lora", "dora"),
                    "DoRA also learns each layer's magnitude: a little slower, often closer "
                    "to full training.",
                ),
            }
        }

    def run(self, rank: int, alpha: float, modules: str, kind: str) -> tuple[Any]:
        from cascade_train.training.layers import pieces
        from cascade_train.training.spec import LoRATarget

        pieces(modules)
        return (LoRATarget(rank=rank, alpha=float(alpha), modules=modules.strip(), kind=kind),)  # type: ignore[arg-type]


class FullStageC(CascadeNode):
    ID = "CascadeFullStageC"
    DISPLAY_NAME = "Full Stage C (target)"
    CATEGORY = "cascade/targets"
    DESCRIPTION = "Train all weights of Stage C. Needs far more memory than a LoRA."
    RETURN_TYPES = (TARGET,)
    RETURN_NAMES = ("target",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run.",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "start_from": choice(
                    ("models", "random"),
                    "'models' continues from the loaded weights; 'random' starts from nothing.",
                ),
            }
        }

    def run(self, start_from: str) -> tuple[Any]:
        from cascade_train.training.spec import FullTarget

        return (FullTarget(part="stage_c", init=start_from),)


class TrainTokens(CascadeNode):
    ID = "CascadeTrainTokens"
    DISPLAY_NAME = "Train Tokens (target)"
    CATEGORY = "cascade/targets"
    DESCRIPTION = (
        "Train words of the text encoder: new ones, written [name] in captions and prompts, or existing "
        "ones. With a LoRA wired in both are trained together."
    )
    RETURN_TYPES = (TARGET,)
    RETURN_NAMES = ("target",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run.",)

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


NODES = (LoRA, FullStageC, TrainTokens)
