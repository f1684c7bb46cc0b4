"""What a piece of work needs at once, phase by phase, and what each option would change. Imports no torch.

What lies on the device follows `models.owner`: a part that is not computing may be elsewhere, so a phase
needs the parts that compute in it and what a trainer cannot put away. Pictures are drawn one at a time where
memory is short. Frozen weights are counted at what their option makes of them: int8 and fp8 take a byte a
number of a Linear weight and four a row; those that come from the CPU layer by layer take two layers' room.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from cascade_train.data.buckets import Buckets
from cascade_train.jobs.tasks import Footprint, Task
from cascade_train.jobs.ways import AS_IT_IS, LITE_B, Held, Way, frozen_bytes
from cascade_train.models import build, clip, library, reading, weights
from cascade_train.models.shapes import WIDTHS
from cascade_train.models.spec import ModelsSpec, Part, PartFile
from cascade_train.sampling.sizes import PictureSize
from cascade_train.training.spec import LoRATarget, RunSpec

Counting = Callable[[Task], Footprint]

LARGE = 300_000_000
"""Parameters from which on automatic checkpointing is on (`training.objectives.base`)."""
NETWORKS: tuple[Part, ...] = ("stage_c", "stage_b")
SHOWN = 4
"""Captions that a preview draws while training."""
LONG = 3
"""Chunks of a caption where captions are read in chunks: up to 225 tokens, some 170 words."""


@dataclass(frozen=True)
class Phase:
    """What must be there at once, in bytes. ``kept``: of a trainer that is not at work meanwhile."""

    name: str
    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    average: int = 0
    activations: int = 0
    kept: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.average + self.activations + self.kept


@dataclass(frozen=True)
class Needs:
    """The phases of a piece of work, and ``kept``: what of a trainer stays on the device after it."""

    phases: tuple[Phase, ...]
    kept: int = 0

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)


def training(
    spec: RunSpec, count: Counting, way: Way = AS_IT_IS, *, previews: bool = False, cached: bool = False
) -> Needs:
    """The phases of training ``spec``. ``cached``: encoders have done their work before."""
    target, models = spec.target, spec.models
    held = way.of(models)
    part: Part = "stage_c" if isinstance(target, LoRATarget) else target.part
    shown = _step(spec, part, way)
    step = count(shown)
    optimizer = way.optimizer or str(spec.optimizer.name)
    numbers = step.trained // 4
    state = {"adamw": 8 * numbers, "sgd": 4 * numbers}.get(optimizer, 8 * numbers)
    if optimizer == "adamw8bit":
        state = 2 * (numbers - step.small) + math.ceil(8 * (numbers - step.small) / 256) + 8 * step.small
    frozen = frozen_bytes(step, part, held)
    own = Phase(
        "training",
        weights=frozen + step.trained,
        gradients=step.trained,
        optimizer=state,
        average=step.trained if spec.optimizer.ema > 0 else 0,
        activations=max(0, step.passes - step.trained),
    )
    phases = [own]
    idle = replace(own, activations=0)
    if not cached:
        for name, task in _encoding(spec, part, held):
            found = count(task)
            more = frozen_bytes(found, task.part, held)
            phases.append(replace(idle, name=name, weights=own.weights + more, activations=found.passes))
    if previews and part == "stage_c" and library.has(models, "previewer"):
        grid = _native(models)
        found = count(_preview(spec, held, grid))
        phases.append(replace(idle, name="previews", activations=found.passes))
        task = Task(
            "decode",
            "previewer",
            _config(models, "previewer"),
            held.precision,
            batch=SHOWN,
            height=grid[0],
            width=grid[1],
        )
        found = count(task)
        weights = own.weights + found.frozen
        phases.append(replace(idle, name="previews, decoded", weights=weights, activations=found.passes))
    return Needs(tuple(phases), step.trained * 2 + state + own.average)


def _preview(spec: RunSpec, held: Held, grid: tuple[int, int]) -> Task:
    """Stage C as it draws while it trains, with its adapters beside its layers."""
    target = spec.target
    drawn = _draws(spec.models, "stage_c", _config(spec.models, "stage_c"), held, SHOWN, grid, True)
    if not isinstance(target, LoRATarget) or not target.modules.strip():
        return replace(drawn, autocast=spec.precision == "bf16" and held.precision == "fp32")
    cast = "bf16" in (spec.precision, held.precision)
    # what adapters give is narrow: their rank hardly matters
    return replace(drawn, autocast=cast, beside=True, adapts=target.kind, rank=16, modules=target.modules)


def drawing(
    models: ModelsSpec,
    size: PictureSize,
    count: Counting,
    way: Way = AS_IT_IS,
    *,
    parts: Sequence[Part] = ("text", "stage_c", "stage_b", "stage_a"),
    guided: Sequence[Part] = NETWORKS,
    kept: int = 0,
    laid: LoRATarget | None = None,
) -> Needs:
    """The phases of drawing a picture of ``size`` with ``parts``, beside what a trainer has ``kept``;
    ``laid``: the adapters of a run are laid over Stage C."""
    held = way.of(models)
    phases = []
    for part in parts:
        if not library.has(models, part):
            continue
        found = count(drawing_task(models, part, size, part in guided, way, laid))
        frozen = frozen_bytes(found, part, held)
        if laid is not None and part == "stage_c":
            frozen += found.trained * laid.rank
        phases.append(Phase(_NAMES[part], frozen, activations=found.passes, kept=kept))
    return Needs(tuple(phases))


_NAMES: dict[Part, str] = {
    "text": "reading the text",
    "stage_c": "Stage C",
    "stage_b": "Stage B",
    "stage_a": "Stage A",
    "compressor": "encoding the picture",
    "image": "looking at the picture",
    "previewer": "preview",
}


def drawing_task(
    models: ModelsSpec,
    part: Part,
    size: PictureSize,
    guided: bool = True,
    way: Way = AS_IT_IS,
    laid: LoRATarget | None = None,
) -> Task:
    """What `drawing` asks of one part, for one picture."""
    held = way.of(models)
    precision = held.precision
    config = (
        _text(LITE_B) if part == "stage_b" and way.lite_b and _is_large(models) else _config(models, part)
    )
    if part == "stage_c":
        task = _draws(models, part, config, held, 1, size.stage_c, guided)
        if laid is not None and laid.modules.strip():  # what is worked out of a layer depends on no rank
            return replace(task, adapts=laid.kind, rank=1, modules=laid.modules)
        return task
    if part == "stage_b":
        return _draws(models, part, config, held, 1, size.stage_b, guided)
    if part == "text":
        return Task("encode", part, config, precision, batch=chunks_of(models), height=1, width=77)
    if part == "stage_a":
        return Task("decode", part, config, precision, height=size.stage_b[0], width=size.stage_b[1])
    if part == "previewer":
        return Task("decode", part, config, precision, height=size.stage_c[0], width=size.stage_c[1])
    return Task("encode", part, config, precision, height=size.encoded[0], width=size.encoded[1])


def encoding_a(models: ModelsSpec, size: PictureSize, count: Counting, way: Way = AS_IT_IS) -> Needs:
    """The phase of encoding a picture of ``size`` with Stage A."""
    held = way.of(models)
    height, width = size.picture
    config = _config(models, "stage_a")
    found = count(Task("encode", "stage_a", config, held.precision, height=height, width=width))
    return Needs((Phase("encoding the picture", found.frozen, activations=found.passes),))


def checkpointed(spec: RunSpec, part: Part, way: Way) -> bool:
    """Whether activations are computed again on the way back."""
    wanted = way.checkpointing or getattr(spec, "checkpointing", "auto")
    if part not in NETWORKS or wanted == "off":
        return False
    return wanted == "on" or parameters(spec.models, part) >= LARGE


def parameters(models: ModelsSpec, part: Part) -> int:
    """How many numbers the file of ``part`` holds."""
    shapes, _ = reading.part_headers(library.part_file(models, part))
    return sum(math.prod(shape) for shape in shapes.values())


def micro_batch(spec: RunSpec, way: Way = AS_IT_IS) -> int:
    """Samples of the largest part of a batch that passes at once."""
    if way.single:
        return 1
    return math.ceil(spec.batch_size / max(1, min(spec.accumulation, spec.batch_size)))


def _step(spec: RunSpec, part: Part, way: Way) -> Task:
    target, models = spec.target, spec.models
    held = way.of(models)
    batch = micro_batch(spec, way)
    height, width = _input(spec, part)
    pieces = batch < spec.batch_size
    checks = checkpointed(spec, part, way)
    if isinstance(target, LoRATarget):
        tokens = target.tokens is not None
        count = len(target.tokens.new) + len(target.tokens.existing) if target.tokens is not None else 0
        return Task(
            kind="train",
            part=part,
            config=_config(models, part),
            precision=held.precision,
            autocast=spec.precision == "bf16" or held.precision == "bf16",
            batch=batch,
            height=height,
            width=width,
            adapts=target.kind,
            rank=target.rank,
            modules=target.modules,
            text_config=_config(models, "text") if tokens else "",
            tokens=max(1, count) if tokens else 0,
            checkpointing=checks,
            pieces=pieces,
            positions=_positions(models),
            brings=held.brings(part),
        )
    also = "text" in target.also
    return Task(
        kind="train",
        part=part,
        config=target.config or _config(models, part),
        precision="fp32",
        autocast=(way.precision or spec.precision) == "bf16",
        batch=batch,
        height=height,
        width=width,
        text_config=_config(models, "text") if also else "",
        previewer_config=_decoder(models) if part == "compressor" else "",
        checkpointing=checks,
        pieces=pieces,
        positions=_positions(models) if part == "stage_c" else 77,
    )


def _decoder(models: ModelsSpec) -> str:
    """The configuration of the previewer that a compressor is trained with."""
    if library.has(models, "previewer"):
        return _config(models, "previewer")
    return _text({"widths": WIDTHS})


def _input(spec: RunSpec, part: Part) -> tuple[int, int]:
    """Sides (height, width) of what the trained network is given, of the largest bucket."""
    sizes = library.geometry(spec.models)
    width, height = _largest(spec)
    factor = {
        "stage_c": sizes.latent_factor,
        "previewer": sizes.latent_factor,
        "stage_b": sizes.stage_a_factor,
    }
    return height // factor.get(part, 1), width // factor.get(part, 1)


def _largest(spec: RunSpec) -> tuple[int, int]:
    sizes = library.geometry(spec.models)
    buckets = Buckets(spec.dataset.buckets, sizes.size_multiple, sizes.native_side)
    return max(buckets.sizes, key=lambda size: size[0] * size[1])


def _encoding(spec: RunSpec, part: Part, held: Held) -> list[tuple[str, Task]]:
    """What encoders do while ``spec`` trains, one sample at a time."""
    target, models = spec.target, spec.models
    width, height = _largest(spec)
    frozen: list[tuple[str, Part]] = []
    if part in NETWORKS:
        frozen.append(("encoding pictures", "compressor"))
        trains_text = target.tokens is not None if isinstance(target, LoRATarget) else "text" in target.also
        if not trains_text:
            frozen.append(("encoding captions", "text"))
    if part == "stage_b":
        frozen.append(("encoding pictures by Stage A", "stage_a"))
    if part == "stage_c" and spec.image_share > 0:
        frozen.append(("looking at pictures", "image"))
    if part == "previewer":
        frozen.append(("encoding pictures", "compressor"))
    out = []
    for name, each in frozen:
        if library.has(models, each):
            sides = (1, 77) if each == "text" else (height, width)
            rows = chunks_of(models) if each == "text" else 1
            config = _config(models, each)
            out.append(
                (
                    name,
                    Task("encode", each, config, held.precision, batch=rows, height=sides[0], width=sides[1]),
                )
            )
    return out


def _draws(
    models: ModelsSpec,
    part: Part,
    config: str,
    held: Held,
    batch: int,
    grid: tuple[int, int],
    guided: bool,
) -> Task:
    return Task(
        "draw",
        part,
        config,
        held.precision,
        batch=batch,
        height=grid[0],
        width=grid[1],
        guided=guided,
        positions=_positions(models) if part == "stage_c" else 77,
        brings=held.brings(part),
    )


def chunks_of(models: ModelsSpec) -> int:
    """Chunks that a caption is thought to have."""
    return LONG if models.captions == "chunks" else 1


def _positions(models: ModelsSpec) -> int:
    if not library.has(models, "text"):
        return 77
    length = min(77, int(json.loads(_config(models, "text")).get("max_position_embeddings", 77)))
    return length * chunks_of(models)


def _native(models: ModelsSpec) -> tuple[int, int]:
    from cascade_train.sampling.sizes import picture_size

    return picture_size(library.geometry(models)).stage_c


def _is_large(models: ModelsSpec) -> bool:
    """Whether the models are of full size, so that the official lite Stage B fits them."""
    return parameters(models, "stage_b") > 1_000_000_000


def _config(models: ModelsSpec, part: Part) -> str:
    return config_of(library.part_file(models, part))


def config_of(file: PartFile) -> str:
    """The configuration of a part by its file's header, as the text that a `Task` has."""
    return _config_at(file)


def _text(config: Any) -> str:
    return json.dumps(config, sort_keys=True)


@lru_cache(maxsize=64)
def _config_at(file: PartFile) -> str:
    config: Any
    shapes, metadata = reading.part_headers(file)
    if file.part in ("text", "image"):
        config = clip.config_of(file.part, Path(file.path), shapes)
        config.pop("cascade_geometry", None)
        return _text(config)
    config = weights.config_of(metadata)
    if config is None and file.part in NETWORKS:
        config = build.config_for(file.part, shapes, metadata)
    # what is read off other parts' shapes takes torch, so it waits until something is measured
    return _text(config if config is not None else {"shapes": dict(shapes)})
