"""What nano is trained on and for how long: every stage as a `RunSpec`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cascade_train.data.spec import BucketSpec, CacheSpec, Dataset, WeightedSource
from cascade_train.models.spec import ModelsSpec
from cascade_train.nano import init
from cascade_train.nano.world_source import WorldSource
from cascade_train.training.spec import FullTarget, OptimizerSpec, RunSpec

INIT = init.NAME
"""Its import is what makes the name known where these specs go, in processes of their own too."""

Stage = Literal[
    "stage_a",
    "compressor",
    "stage_b",
    "stage_c",
    "stage_c_several",
    "stage_c_threes",
    "stage_c_fours",
    "stage_b_small",
]

PHASES: tuple[tuple[Stage, ...], ...] = (
    ("stage_a", "compressor"),
    ("stage_b",),
    ("stage_c",),
    ("stage_c_several",),
    ("stage_c_threes",),
    ("stage_c_fours",),
    ("stage_b_small",),
)
"""Stages of one phase need nothing of each other and train side by side; their batch norms want whole
batches. One that is alone in its phase shares its batch among processes."""

RESULT_PARTS: dict[Stage, tuple[str, ...]] = {
    "stage_a": ("stage_a",),
    "compressor": ("compressor", "previewer"),
    "stage_b": ("stage_b",),
    "stage_c": ("stage_c",),
    "stage_c_several": ("stage_c",),
    "stage_c_threes": ("stage_c",),
    "stage_c_fours": ("stage_c",),
    "stage_b_small": ("stage_b",),
}
"""The parts that each stage's run makes."""

LATENT_NOISE = 1.0
"""The compressor is trained under noise of up to this deviation, on latents of deviation 1. It costs no
sharpness that could be measured, and shapes survive what Stage C gets wrong."""

LATENT_NOISE_B = 0.2
"""The same for Stage B's condition: more would cost sharpness."""


@dataclass(frozen=True)
class Recipe:
    """Lengths and sizes of one `nano make`. ``config`` names the widths; ``pictures``, ``pictures_b``
    (for Stage B) and ``captions`` are how many samples there are of the rich and the captioned world.

    ``blocks_c`` are blocks of (steps, learning rate) of Stage C's run; 0 is the schedule, which spans
    ``steps_c``. Shape is what is learnt last, and needs more steps than the schedule gives it. Empty: the
    schedule to its end. ``steps_several`` is how long Stage C goes on after that, on more pictures of
    several shapes, ``blocks_threes`` (the schedule spans ``steps_threes``) after that again on more of three,
    and ``steps_fours`` last, with pictures of four shapes that have no caption. ``steps_small`` is how long
    Stage B then goes on, on more pictures of several and so small shapes.
    """

    name: str = "full"
    config: str = ""
    seed: int = 0
    pictures: int = 32768
    pictures_b: int = 8192
    captions: int = 24576
    steps_a: int = 1900
    steps_compressor: int = 2600
    steps_b: int = 4200
    steps_c: int = 16000
    blocks_c: tuple[tuple[int, float], ...] = (
        (11430, 0.0),
        (3600, 4e-4),
        (2400, 2e-4),
        (1200, 8e-5),
        (600, 3e-5),
        (2400, 3.5e-4),
        (1500, 1.5e-4),
        (800, 5e-5),
    )
    steps_several: int = 30000
    steps_threes: int = 5000
    blocks_threes: tuple[tuple[int, float], ...] = (
        (5000, 0.0),
        (7000, 5e-4),
        (3000, 2e-4),
        (1500, 6e-5),
    )
    steps_fours: int = 10000
    steps_small: int = 12000
    batch_pictures: int = 16
    batch: int = 32


FULL = Recipe()
QUICK = Recipe(
    name="quick",
    blocks_c=(),
    blocks_threes=(),
    config="quick",
    pictures=512,
    pictures_b=256,
    captions=256,
    steps_a=60,
    steps_compressor=60,
    steps_b=60,
    steps_c=60,
    steps_several=30,
    steps_threes=20,
    steps_fours=20,
    steps_small=20,
    batch_pictures=8,
    batch=16,
)


def recipe(quick: bool = False, seed: int = 0) -> Recipe:
    """The full recipe, or the one that only shows that every part learns."""
    return replace(QUICK if quick else FULL, seed=seed)


def steps_of(stage: Stage, of: Recipe) -> int:
    """Optimizer updates of a stage."""
    return {
        "stage_a": of.steps_a,
        "compressor": of.steps_compressor,
        "stage_b": of.steps_b,
        "stage_c": of.steps_c,
        "stage_c_several": of.steps_several,
        "stage_c_threes": of.steps_threes,
        "stage_c_fours": of.steps_fours,
        "stage_b_small": of.steps_small,
    }[stage]


def blocks_of(stage: Stage, of: Recipe) -> tuple[tuple[int, float | None], ...]:
    """The blocks of a stage's run: steps, and the learning rate where it is not the schedule's."""
    blocks = {
        "stage_c": of.blocks_c,
        "stage_c_threes": of.blocks_threes,
    }.get(stage)
    if blocks:
        return tuple((steps, rate or None) for steps, rate in blocks)
    return ((steps_of(stage, of), None),)


def run_spec(stage: Stage, models: ModelsSpec, of: Recipe) -> RunSpec:
    """The run that trains ``stage`` on top of the parts in ``models``.

    Stage A and the compressor see rich pictures, so that they can draw what no caption names. Stage B sees
    the same with empty captions: its condition tells it all. Stage C sees captioned scenes; why it
    starts and is weighted as it is, is told in `nano.init.scaled_copy`, and why the text encoder stays
    as it starts, in `nano.init.balanced_words`. After that it can draw one shape and still gets two and
    three wrong, so it goes on with pictures of which seven in ten show several. What is left then are threes
    drawn as fours and twos as threes: guidance leads away from what pictures show on average, which for these
    counts is less. More threes help little; at last one in twelve pictures shows four and has no caption, so
    that the average lies above. What is wrong after that is drawn so by Stage B: small stars, and most of all
    those of a colour near the background's; so it goes on with more of these.
    """
    total = steps_of(stage, of)
    warm = min(100, total // 5)
    if stage in ("stage_a", "compressor"):
        return RunSpec(
            models=models,
            dataset=_world("rich", of.seed + 1, of.pictures),
            seed=of.seed,
            target=FullTarget(
                part=stage,
                init=INIT,
                config=of.config,
                also=("previewer",) if stage == "compressor" else (),
                latent_noise=LATENT_NOISE if stage == "compressor" else 0.0,
            ),
            optimizer=OptimizerSpec(learning_rate=2e-3, betas=(0.9, 0.99), schedule="cosine", warmup=warm),
            batch_size=of.batch_pictures,
            total_steps=total,
            loss_weight="none",
            label=f"nano {stage}",
        )
    if stage in ("stage_b", "stage_b_small"):
        dataset, start, rate = _stage_b(stage, of)
        return RunSpec(
            models=models,
            dataset=dataset,
            seed=of.seed,
            target=replace(start, condition_size=1.0, pyramid_noise=False, latent_noise=LATENT_NOISE_B),
            optimizer=OptimizerSpec(learning_rate=rate, schedule="cosine", warmup=warm, ema=0.999),
            batch_size=of.batch,
            total_steps=total,
            caption_dropout=1.0,
            loss_weight="min_snr_inverse",
            label=f"nano {stage}",
        )
    dataset, target, rate = _stage_c(stage, of)
    return RunSpec(
        models=models,
        seed=of.seed,
        dataset=dataset,
        target=target,
        optimizer=OptimizerSpec(learning_rate=rate, schedule="cosine", warmup=warm, ema=0.999),
        batch_size=of.batch,
        total_steps=total,
        caption_dropout=0.1,
        image_share=0.0,
        loss_weight="min_snr_inverse",
        label=f"nano {stage}",
    )


def _world(kind: str, seed: int, count: int) -> Dataset:
    return Dataset(sources=(WeightedSource(WorldSource(kind, seed, count)),), buckets=_WHOLE, cache=_CACHE)


def _stage_b(stage: Stage, of: Recipe) -> tuple[Dataset, FullTarget, float]:
    """Pictures, where it starts and the learning rate of one of Stage B's runs."""
    if stage == "stage_b":
        start = FullTarget(part="stage_b", init=INIT, config=of.config)
        return _world("rich", of.seed + 1, of.pictures_b), start, 1.5e-3
    rich = WorldSource("rich", of.seed + 10, of.pictures_b)
    several = WorldSource("several", of.seed + 11, of.pictures_b * 2)
    return _mixed((rich, 0.4), (several, 0.6)), FullTarget(part="stage_b"), 1e-3


def _stage_c(stage: Stage, of: Recipe) -> tuple[Dataset, FullTarget, float]:
    """Pictures, what is trained and the learning rate of one of Stage C's runs. Each sees pictures that the
    ones before have not seen."""
    if stage == "stage_c":
        start = FullTarget(part="stage_c", init=INIT, config=of.config)
        return _world("captioned", of.seed + 2, of.captions), start, 2e-3
    go_on = FullTarget("stage_c")
    if stage == "stage_c_several":
        usual = WorldSource("captioned", of.seed + 3, of.captions // 2)
        several = WorldSource("several", of.seed + 4, of.captions)
        return _mixed((usual, 0.5), (several, 0.5)), go_on, 8e-4
    if stage == "stage_c_threes":
        usual = WorldSource("captioned", of.seed + 5, of.captions // 3)
        threes = WorldSource("threes", of.seed + 6, of.captions * 2 // 3)
        return _mixed((usual, 0.4), (threes, 0.6)), go_on, 6e-4
    usual = WorldSource("captioned", of.seed + 7, of.captions // 2)
    several = WorldSource("several", of.seed + 8, of.captions // 2)
    fours = WorldSource("fours", of.seed + 9, of.captions // 6)
    return _mixed((usual, 0.45), (several, 0.47), (fours, 0.08)), go_on, 5e-4


def _mixed(*sources: tuple[WorldSource, float]) -> Dataset:
    weighted = tuple(WeightedSource(source, share=share) for source, share in sources)
    return Dataset(sources=weighted, buckets=_WHOLE, cache=_CACHE)


_WHOLE = BucketSpec(crop="center")
"""Whole pictures: a crop would move what captions place."""

_CACHE = CacheSpec()
"""Latents and text states on disk: processes encode for each other, and a stop costs no second encoding."""
