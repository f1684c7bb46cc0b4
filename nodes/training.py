"""Runs: describing one and training it block by block."""

from __future__ import annotations

from typing import Any

from cascade_train.training.spec import OptimizerSpec, RunSpec

from .base import (
    DATASET,
    MODELS,
    OPTIMIZER,
    PROMPTS,
    RUN,
    TARGET,
    CascadeNode,
    choice,
    integer,
    link,
    number,
    options,
    seed,
    text,
)


class Optimizer(CascadeNode):
    ID = "CascadeOptimizer"
    DISPLAY_NAME = "Optimizer"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("adamw", "sgd", "learning rate", "scheduler", "ema")
    DESCRIPTION = "How the weights are moved: optimizer, learning-rate schedule, averaging."
    RETURN_TYPES = (OPTIMIZER,)
    RETURN_NAMES = ("optimizer",)
    OUTPUT_TOOLTIPS = ("Goes into Training Run.",)
    HELP = """
    Good starts: a LoRA on full-size models 1e-4, a token 1e-3 to 1e-2 (it has its own rate in *Train
    Tokens*), nano 1e-3 and more. A short warm-up (10 to 50 steps) costs nothing.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        beta1, beta2 = OptimizerSpec.betas
        return {
            "required": {
                "name": choice(
                    options(OptimizerSpec, "name"),
                    "AdamW suits nearly everything. adamw8bit keeps its moments in 8 bits, a quarter of the "
                    "memory, which matters for full training; it needs bitsandbytes.",
                ),
                "learning_rate": number(
                    OptimizerSpec.learning_rate,
                    0.0,
                    10.0,
                    1e-5,
                    "Size of a step. 1e-4 suits a LoRA on full-size models; "
                    "the small nano model takes some 1e-3.",
                ),
                "schedule": choice(
                    options(OptimizerSpec, "schedule"),
                    "How the rate falls over the run's planned total of steps, after the warm-up.",
                ),
                "warmup": integer(
                    OptimizerSpec.warmup, 0, 1_000_000, "Steps over which the rate rises from 0."
                ),
                "weight_decay": number(
                    OptimizerSpec.weight_decay, 0.0, 10.0, 0.001, "Pull of the weights towards 0."
                ),
                "clip_norm": number(
                    OptimizerSpec.clip_norm,
                    0.0,
                    1000.0,
                    0.1,
                    "Longest gradient that is taken as it is; 0 never shortens.",
                ),
                "ema": number(
                    OptimizerSpec.ema,
                    0.0,
                    0.99999,
                    0.001,
                    "Averages the weights over about 1 / (1 − ema) steps; 0 keeps no average.",
                ),
                "beta1": number(beta1, 0.0, 0.9999, 0.01, "AdamW's memory of the gradient; SGD's momentum."),
                "beta2": number(beta2, 0.0, 0.99999, 0.001, "AdamW's memory of the squared gradient."),
            }
        }

    def run(self, beta1: float, beta2: float, **settings: Any) -> tuple[Any]:
        return (OptimizerSpec(betas=(beta1, beta2), **settings),)


class TrainingRun(CascadeNode):
    ID = "CascadeTrainingRun"
    DISPLAY_NAME = "Training Run"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("train", "trainer", "training settings", "batch size", "seed")
    DESCRIPTION = (
        "Describes a training. It trains nothing yet: Train Steps does. The same settings always name the "
        "same run, so that queueing again continues or finds what is there."
    )
    RETURN_TYPES = (RUN,)
    RETURN_NAMES = ("run",)
    OUTPUT_TOOLTIPS = ("The run at step 0.",)
    HELP = """
    A run is named by everything that determines its weights. Its folder, `output/cascade/runs/<name>`, holds
    `run.json` (the settings), `metrics.jsonl`, `checkpoints`, `samples` and `exports`. Queueing the same
    graph again finds it there and trains nothing twice; changing a setting begins another run and leaves the
    first as it is.

    Memory: lower `batch_size` or raise `accumulation`, which changes no result beyond rounding. With large
    models the node says what training needs at most; `cascade-train plan` says it for the whole graph.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "models": link(MODELS, "What training starts from."),
                "dataset": link(DATASET, "Pictures and captions."),
                "target": link(TARGET, "What is trained."),
                "optimizer": link(OPTIMIZER, "How the weights are moved."),
                "seed": seed("All that is random in the run follows from it. Another seed is another run."),
                "batch_size": integer(RunSpec.batch_size, 1, 4096, "Samples in each step."),
                "accumulation": integer(
                    RunSpec.accumulation,
                    1,
                    4096,
                    "Splits the batch into this many parts that pass one after the other: "
                    "less memory, the same result.",
                ),
                "total_steps": integer(
                    RunSpec.total_steps,
                    1,
                    100_000_000,
                    "Planned length, over which the learning-rate schedule "
                    "spans. Train Steps says how far to go.",
                ),
                "precision": choice(
                    options(RunSpec, "precision"),
                    "bf16 computes the networks in half precision and keeps the trained "
                    "weights in fp32: faster on most GPUs.",
                ),
                "caption_dropout": number(
                    RunSpec.caption_dropout,
                    0.0,
                    1.0,
                    0.01,
                    "Share of samples whose caption is left out, which guidance needs.",
                ),
                "image_share": number(
                    RunSpec.image_share,
                    0.0,
                    1.0,
                    0.01,
                    "Share of samples that are also shown their CLIP image "
                    "embedding, where there is an image encoder.",
                ),
                "loss_weight": choice(
                    options(RunSpec, "loss_weight"),
                    "How times are weighted: p2 for LoRA, adaptive for training the full model.",
                ),
                "objective": choice(
                    options(RunSpec, "objective"),
                    "What the network predicts. Stable Cascade predicts epsilon.",
                ),
                "offset_noise": number(
                    RunSpec.offset_noise,
                    0.0,
                    1.0,
                    0.01,
                    "Noise of a picture's mean colour added to the noise.",
                ),
                "label": text("", "A name for people. It changes nothing in the result."),
            },
            "optional": {
                "checkpointing": choice(
                    options(RunSpec, "checkpointing"),
                    "Whether activations are worked out again on the way back rather than kept: less memory, "
                    "about a third more time, the same result. auto: for networks of 300 million weights and "
                    "more.",
                ),
            },
        }

    def run(self, label: str, **settings: Any) -> tuple[Any]:
        from cascade_train.jobs.memory import tell_need
        from cascade_train.training.run import start

        run = start(RunSpec(label=label.strip(), **settings), self.host)
        tell_need(run.settings, self.host)
        return (run,)

    def planned(self, label: str, **settings: Any) -> tuple[tuple[Any], str, None]:
        """For ``--dry-run``: the outputs, a line, and whether the work is done (None: there is none)."""
        from cascade_train.jobs.foreseen import planned_start
        from cascade_train.jobs.memory import run_line

        run, text = planned_start(RunSpec(label=label.strip(), **settings), self.host)
        return (run,), f"{text}; {run_line(run.settings, self.host)}", None


_PREVIEW_EVERY = integer(
    20,
    0,
    1_000_000,
    "Steps between small pictures on the node: what is drawn now for some captions of the dataset, above the "
    "loss. They change no result and take at most a twentieth of the time, beside one early and one at the "
    "end of a block. 0 shows none.",
)


class TrainSteps(CascadeNode):
    ID = "CascadeTrainSteps"
    DISPLAY_NAME = "Train Steps"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("train", "trainer", "fit", "lora training", "loss", "resume")
    DESCRIPTION = (
        "Trains a run further by a block of steps. A block that was trained before is read from disk at "
        "once; stopping in the middle loses nothing."
    )
    RETURN_TYPES = (RUN, "IMAGE", "FLOAT")
    RETURN_NAMES = ("run", "loss_plot", "last_loss")
    OUTPUT_TOOLTIPS = (
        "The run, further on.",
        "The loss of the whole run so far.",
        "The loss, averaged over the block's last steps (at most 50).",
    )
    OUTPUT_NODE = True
    HELP = """
    Blocks may follow each other, branch, and be looked at in any order. 100 + 100 steps are the same as 200.
    Changing a block trains that block and those after it again, from exactly the state before it.

    Interrupting saves first; queue again to go on.

    While it trains the node shows small pictures, drawn with the weights of the moment from always the same
    noise for up to four captions of the dataset, and under them the loss, which grows with every message. The
    first come after the first step, the last at the block's end; the node keeps these. They need the
    previewer; full-size models without its file show the loss alone.
    """

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "run": link(RUN, "Where to go on from."),
                "steps": integer(100, 0, 100_000_000, "Optimizer updates to add."),
                "learning_rate": number(
                    0.0, 0.0, 10.0, 1e-5, "Another rate for this block; 0 keeps the run's own schedule."
                ),
            },
            "optional": {"preview_every": _PREVIEW_EVERY},
        }

    def run(self, run: Any, steps: int, learning_rate: float, preview_every: int = 20) -> dict[str, Any]:
        from cascade_train.jobs.previews import node_picture
        from cascade_train.jobs.train import train_block

        later, plot, loss = train_block(run, steps, learning_rate or None, self.host, preview_every)
        return {"ui": {"images": node_picture(later, plot, self.host)}, "result": (later, plot, loss)}

    def planned(
        self, run: Any, steps: int, learning_rate: float, preview_every: int = 20
    ) -> tuple[tuple[Any, Any, Any], str, bool]:
        from cascade_train.jobs.foreseen import planned_block

        later, text, there = planned_block(run, steps, learning_rate or None)
        return (later, None, None), text, there


class TrainAndValidate(CascadeNode):
    ID = "CascadeTrainAndValidate"
    DISPLAY_NAME = "Train and Validate"
    CATEGORY = "cascade/training"
    SEARCH_ALIASES = ("train", "trainer", "sample while training")
    DESCRIPTION = "Trains in equal blocks and draws the prompts after each, all in one node."
    RETURN_TYPES = (RUN, "IMAGE")
    RETURN_NAMES = ("run", "grids")
    OUTPUT_TOOLTIPS = ("The run after the last block.", "One grid before training and one after each block.")
    HELP = "The same as a chain of *Train Steps* and *Validate*, without the boxes."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {
                "run": link(RUN, "Where to go on from."),
                "prompts": link(PROMPTS, "What to draw after each block."),
                "total": integer(300, 1, 100_000_000, "Optimizer updates to add, all blocks together."),
                "every": integer(100, 1, 100_000_000, "Steps between validations."),
                "learning_rate": number(
                    0.0, 0.0, 10.0, 1e-5, "Another rate for these steps; 0 keeps the run's own schedule."
                ),
            },
            "optional": {"preview_every": _PREVIEW_EVERY},
        }

    def run(
        self, run: Any, prompts: Any, total: int, every: int, learning_rate: float, preview_every: int = 20
    ) -> tuple[Any, Any]:
        from cascade_train.jobs.train import train_and_validate

        rate = learning_rate or None
        return train_and_validate(run, prompts, total, every, rate, self.host, preview_every)

    def planned(
        self, run: Any, prompts: Any, total: int, every: int, learning_rate: float, preview_every: int = 20
    ) -> tuple[tuple[Any, Any], str, bool]:
        from cascade_train.jobs.foreseen import planned_validation

        rate = learning_rate or None
        later, text, there = planned_validation(run, prompts, total, every, rate, self.host)
        return (later, None), text, there
