"""What training and drawing with the official models need of memory, as a table for the docs.

    python -m scripts.memory --models-dir DIR

Counts from the headers of the official files: of those in DIR, laid out as ComfyUI's models folder, weights
are not read. ``--remember`` keeps the counts in the package, so that nobody counts them again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from cascade_train.data.spec import BucketSpec, Dataset
from cascade_train.host.headless import HeadlessHost, headless_folders
from cascade_train.jobs.measured import measure
from cascade_train.jobs.needs import BUNDLED, between, bundled, corners
from cascade_train.jobs.phases import Needs, drawing, training
from cascade_train.jobs.tasks import Footprint, Task
from cascade_train.jobs.ways import Way
from cascade_train.models import library
from cascade_train.models.spec import ModelsSpec, Variant
from cascade_train.sampling.sizes import picture_size
from cascade_train.training.spec import FullTarget, LoRATarget, OptimizerSpec, RunSpec, Target

WAYS: tuple[tuple[str, Way], ...] = (
    ("as it is", Way()),
    ("without checkpointing", Way(checkpointing="off")),
    ("8-bit AdamW", Way(optimizer="adamw8bit")),
    ("base in int8", Way(compact="int8")),
    ("base from the CPU", Way(offload=True)),
    ("base in int8, from the CPU", Way(compact="int8", offload=True)),
)
LORA = LoRATarget(rank=16, alpha=16.0)
TRAININGS: tuple[tuple[str, Variant, Target, int], ...] = (
    ("LoRA of the 3.6B, rank 16, batch 1", "full", LORA, 1),
    ("LoRA of the 3.6B, rank 16, batch 4", "full", LORA, 4),
    ("LoRA of the 1B, rank 16, batch 1", "lite", LORA, 1),
    ("LoRA of the 1B, rank 16, batch 4", "lite", LORA, 4),
    ("all of the 1B, batch 1", "lite", FullTarget("stage_c"), 1),
    ("all of the 3.6B, batch 1", "full", FullTarget("stage_c"), 1),
)


def run_of(models: ModelsSpec, target: Target, batch: int) -> RunSpec:
    """A training at the size whose latents have 24×24 cells, computed in bf16."""
    dataset = Dataset((), buckets=BucketSpec(size=768))
    return RunSpec(models, dataset, target, OptimizerSpec(), batch_size=batch, precision="bf16")


def counter(seen: dict[str, Footprint]) -> Callable[[Task], Footprint]:
    """Counts what is not in ``seen``; LoRAs as they are counted from what comes with the package."""

    def count(task: Task) -> Footprint:
        if task.kind == "train" and task.adapts == "lora":
            for row in corners(task):
                for each in row:
                    if each.name not in seen:
                        seen[each.name] = measure(each)
            found = between(task, lambda name: asdict(seen[name]))
            assert found is not None
            return found
        if task.name not in seen:
            seen[task.name] = measure(task)
        return seen[task.name]

    return count


def both_models(folder: Path) -> dict[Variant, ModelsSpec]:
    host = HeadlessHost(headless_folders(folder / "output", None, [folder]), "cpu")
    load = partial(library.load_models, "files", host=host, precision="bf16")
    return {"full": load(variant="full"), "lite": load(variant="lite")}


def table(both: dict[Variant, ModelsSpec], count: Callable[[Task], Footprint]) -> Iterator[str]:
    """The lines of the table, Markdown, in GB."""
    yield "| GB, 24×24 latents, base in bf16 | " + " | ".join(name for name, _ in WAYS) + " |"
    yield "|---|" + "---|" * len(WAYS)
    for name, variant, target, batch in TRAININGS:
        spec = run_of(both[variant], target, batch)
        found = [training(spec, count, way, previews=True, cached=True) for _, way in WAYS]
        yield f"| {name} | " + " | ".join(map(_cell, found)) + " |"
    for name, variant in (("drawing 1024×1024, full B", "full"), ("drawing 1024×1024, lite", "lite")):
        models = both[variant]
        size = picture_size(library.geometry(models), 1024, 1024)
        found = [drawing(models, size, count, way, laid=LORA) for _, way in WAYS]
        yield f"| {name} | " + " | ".join(map(_cell, found)) + " |"


def others(both: dict[Variant, ModelsSpec], count: Callable[[Task], Footprint]) -> None:
    """What ``plan`` asks beside the table: encoders, one sample at a time, drawing with no run."""
    for models in both.values():
        spec = run_of(models, LORA, 4)
        size = picture_size(library.geometry(models), 1024, 1024)
        for way in (Way(), Way(single=True), Way(single=True, compact="int8")):
            training(spec, count, way, previews=True)
        for way in (Way(), Way(lite_b=True), Way(lite_b=True, compact="int8")):
            drawing(models, size, count, way)
            drawing(models, size, count, way, laid=LORA)


def _cell(needs: Needs) -> str:
    return f"{needs.peak.total / 1e9:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models-dir", type=Path, required=True)
    parser.add_argument("--remember", action="store_true")
    parser.add_argument("--again", action="store_true", help="count what the package remembers, too")
    args = parser.parse_args()
    seen = {} if args.again else {name: Footprint(**found) for name, found in bundled().items()}
    both, count = both_models(args.models_dir), counter(seen)
    for line in table(both, count):
        print(line, flush=True)
    if args.remember:
        others(both, count)
        known = {name: asdict(count) for name, count in sorted(seen.items())}
        BUNDLED.write_text(json.dumps(known, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
