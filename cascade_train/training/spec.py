"""What a run is made of, as values: target, optimizer, run, block, position. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Union

from cascade_train.data.spec import Dataset
from cascade_train.diffusion.targets import Objective
from cascade_train.diffusion.weighting import LossWeight
from cascade_train.digest import digest, local
from cascade_train.errors import CascadeError
from cascade_train.models.spec import ModelsSpec, Precision


@dataclass(frozen=True)
class TokenSpec:
    """Text tokens to train.

    ``new`` holds (name, regular expression) pairs: the token is written ``[name]`` in captions and starts
    as the mean of the embeddings whose vocabulary entry matches the expression. ``existing`` are regular
    expressions over the vocabulary whose rows are trained in place.
    """

    new: tuple[tuple[str, str], ...] = ()
    existing: tuple[str, ...] = ()
    learning_rate: float | None = None


@dataclass(frozen=True)
class StartFile:
    """A LoRA file that training starts from: its content, and where it lies."""

    content: str
    path: str = local("")


@dataclass(frozen=True)
class LoRATarget:
    """Low-rank adapters on Stage C. ``modules`` are name filters, comma-separated, as in the reference
    (``attn`` hits every attention projection); ``tokens`` are trained beside them. ``start``: what the
    adapters are before training (see `objectives.started`); without, they change nothing."""

    rank: int = 8
    alpha: float = 8.0
    modules: str = "attn"
    kind: Literal["lora", "dora"] = "lora"
    tokens: TokenSpec | None = None
    start: StartFile | None = None


@dataclass(frozen=True)
class FullTarget:
    """All weights of one part. ``init`` names a starting state when it is not the models' own: ``random``
    (library initialisation) or a registered initialisation such as nano's."""

    part: Literal["stage_c", "stage_b", "stage_a", "compressor", "text", "previewer"] = "stage_c"
    init: str = "models"
    config: str = ""
    also: tuple[str, ...] = ()
    """Further parts trained together with it (nano trains its text encoder with Stage C)."""
    condition_size: float = 0.5
    """Stage B: its condition is the picture shrunk by a factor drawn from [this, 1); 1 always takes it whole,
    for models whose Stage C draws at the size that is encoded."""
    pyramid_noise: bool = True
    """Stage B: train under the reference's pyramid noise; else under the white noise that sampling adds."""
    latent_noise: float = 0.0
    """Compressor and Stage B: decode from semantic latents under white noise of a deviation drawn from
    [0, this) for each picture, so that they say what matters loudly, and small errors of Stage C stay small.
    Wuerstchen trains its Stage B so (Pernias et al. 2023, arXiv:2306.00637, section 3)."""


Target = Union[LoRATarget, FullTarget]  # noqa: UP007

WHOLE_BATCHES = ("stage_a", "compressor", "previewer")
"""Parts with batch norm. Samples that pass together change each other's results, so accumulation would train
another run; on several processes each norm sees its process's share, and the run is one of its own."""


def splits(target: Target) -> bool:
    """Whether a batch of ``target`` may pass in pieces without changing what is learned."""
    return isinstance(target, LoRATarget) or target.part not in WHOLE_BATCHES


@dataclass(frozen=True)
class OptimizerSpec:
    """Optimizer, learning-rate schedule and EMA. Rates are per step; ``warmup`` counts steps."""

    name: Literal["adamw", "sgd", "adamw8bit"] = "adamw"
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    clip_norm: float = 1.0
    ema: float = 0.0
    """EMA decay per step; 0 keeps none."""


Checkpointing = Literal["auto", "on", "off"]
"""Whether activations are worked out again on the way back rather than kept: less memory, about a third more
time, the same result. ``auto``: for large networks."""


@dataclass(frozen=True)
class RunSpec:
    """All that determines a run's weights before any block. ``total_steps`` is what the learning-rate
    schedule spans. ``accumulation`` splits the batch of ``batch_size`` samples into that many micro-batches:
    it changes memory and time, no result beyond rounding, and so not the run's name. A run goes on under
    another one. Parts with batch norm (`WHOLE_BATCHES`) cannot be split."""

    models: ModelsSpec
    dataset: Dataset
    target: Target
    optimizer: OptimizerSpec
    seed: int = 0
    batch_size: int = 4
    accumulation: int = local(1)
    total_steps: int = 1000
    precision: Precision = "fp32"
    caption_dropout: float = 0.05
    image_share: float = 0.1
    """Share of samples that get their CLIP image embedding; the rest get zeros."""
    loss_weight: LossWeight = "p2"
    objective: Objective = "epsilon"
    offset_noise: float = 0.0
    label: str = local("")
    checkpointing: Checkpointing = local("auto")  # noqa: RUF009

    @property
    def digest(self) -> str:
        return digest(self)


@dataclass(frozen=True)
class KeptSpec:
    """A run known by its folder, ``digest``, without the settings that it was trained with: it draws,
    validates and is exported, and cannot be trained on. ``models`` are what it is laid over; ``lora`` is its
    target where that is one, for counting memory."""

    digest: str
    models: ModelsSpec
    objective: Objective = "epsilon"
    label: str = local("")
    lora: LoRATarget | None = local(None)  # noqa: RUF009


@dataclass(frozen=True)
class Block:
    """Consecutive steps under equal settings; None keeps the run's own."""

    steps: int
    learning_rate: float | None = None

    def same_settings(self, other: Block) -> bool:
        return replace(self, steps=0) == replace(other, steps=0)


@dataclass(frozen=True)
class Position:
    """What travels on a CASCADE_RUN link: a run, and how far along which blocks. Never a live trainer."""

    spec: Union[RunSpec, KeptSpec]  # noqa: UP007
    blocks: tuple[Block, ...] = ()
    folder: str = local("")
    """The run folder, named by ``spec.digest``."""

    @property
    def settings(self) -> RunSpec:
        """What the run trains by.

        Raises:
            CascadeError: it was loaded from its folder, which does not tell them.
        """
        if isinstance(self.spec, RunSpec):
            return self.spec
        raise CascadeError(
            f"the run {self.spec.label or self.spec.digest[:12]} was loaded from its folder and cannot be "
            "trained on",
            fix="Queue the graph that trained it; or export it, and let a LoRA target start from that file",
        )

    @property
    def step(self) -> int:
        return sum(block.steps for block in self.blocks)

    @property
    def name(self) -> str:
        """The digest of all that determines the weights here."""
        return digest((self.spec.digest, self.blocks))

    def after(self, block: Block) -> Position:
        """This position and then ``block``; neighbouring blocks with equal settings become one."""
        if block.steps <= 0:
            return self
        if self.blocks and self.blocks[-1].same_settings(block):
            merged = replace(block, steps=self.blocks[-1].steps + block.steps)
            return replace(self, blocks=(*self.blocks[:-1], merged))
        return replace(self, blocks=(*self.blocks, block))
