"""Does nano learn a new shape? Runs ``workflows/teach_a_concept.json`` as a user would, then counts.

    python tests/bench/teach_a_concept.py [--json] [--output-dir DIR] [--sheet FILE]

``before`` and ``after``: the share of 64 seeds whose picture shows the concept, by prompts with its
token in colours and on backgrounds in turn. ``known_shapes``: how often prompts of the seven shapes that
nano knew come out right after training, as a share of how often they did before (64 seeds). ``minutes``:
the whole workflow, validation included. The judge fits outlines (`shape_judge`); ``judge_error`` is how
often it is wrong about real pictures, ``judge_error_decoded`` the same after compressor, Stage B and
Stage A.
With ``--output-dir`` a training that is already there is used as it is, and ``minutes`` says what it
took.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

if TYPE_CHECKING:
    from PIL import Image

    from cascade_train.models.spec import ModelsSpec

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOW = ROOT / "workflows" / "teach_a_concept.json"
SEEDS = range(1000, 1064)


def train(output: Path) -> float:
    """Run the workflow in a process of its own; the minutes it took."""
    began = time.monotonic()
    env = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "cascade_train.cli", "run", str(WORKFLOW), "--output-dir", str(output)],
        env=env,
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the workflow ended with {done.returncode}")
    return (time.monotonic() - began) / 60


def prompts(words: Sequence[str]) -> list[str]:
    """A prompt for each word: large, in the centre, colours and backgrounds in turn."""
    from cascade_train.nano import world

    colours, backgrounds = tuple(world.COLOURS), tuple(world.BACKGROUNDS)
    made = []
    for index, word in enumerate(words):
        colour, background = colours[index % len(colours)], backgrounds[(index * 5 + 3) % len(backgrounds)]
        made.append(f"a large {colour} {word} in the centre on a {background} background")
    return made


def trained_models(output: Path, models: ModelsSpec) -> ModelsSpec:
    """``models`` with the newest checkpoint of the one run under ``output`` laid over them."""
    from cascade_train.models.spec import AppliedRun

    (run,) = (output / "cascade" / "runs").iterdir()
    newest = max((run / "checkpoints").iterdir(), key=lambda folder: folder.name)
    position = json.loads((newest / "checkpoint.json").read_text(encoding="utf-8"))["position"]
    return replace(models, applied=(AppliedRun(position, 1.0, str(newest)),))


def shown(models: ModelsSpec, texts: Sequence[str], wanted: Sequence[str]) -> tuple[float, list[Image.Image]]:
    """The share of ``texts`` whose picture shows what is wanted, and the pictures."""
    import numpy as np
    import shape_judge

    from cascade_train.drawing.paper import to_pictures
    from cascade_train.sampling.pipeline import text_to_image

    pictures = to_pictures(text_to_image(models, texts, seeds=list(SEEDS)[: len(texts)]))
    right = [shape_judge.name(np.asarray(picture)) == want for picture, want in zip(pictures, wanted)]
    return sum(right) / len(right), pictures


def judge_error(models: ModelsSpec) -> tuple[float, float]:
    """The judge's share of errors on real pictures, and on the same pictures encoded and decoded."""
    import numpy as np
    import shape_judge
    import torch

    from cascade_train.drawing.paper import to_pictures
    from cascade_train.sampling.pipeline import reconstruct

    real = shape_judge.real_pictures(160)
    plain = sum(shape_judge.name(picture) != shape for picture, shape in real) / len(real)
    some = real[:64]
    decoded = to_pictures(
        reconstruct(models, torch.stack([torch.from_numpy(p).float() / 255 for p, _ in some]))
    )
    wrong = sum(shape_judge.name(np.asarray(picture)) != shape for picture, (_, shape) in zip(decoded, some))
    return plain, wrong / len(some)


def measure(output: Path, minutes: float, sheet: Path | None) -> dict[str, Any]:
    from cascade_train.drawing.paper import tiled
    from cascade_train.examples import make
    from cascade_train.models import library
    from cascade_train.nano import world

    models = library.models_in(library.nano_folder(), name="nano")
    trained = trained_models(output, models)
    count = len(SEEDS)
    concept, crescents = prompts([make.TOKEN] * count), ["crescent"] * count
    shapes = [world.SHAPES[index % len(world.SHAPES)] for index in range(count)]
    before, _ = shown(models, concept, crescents)
    after, drawn = shown(trained, concept, crescents)
    known_before, _ = shown(models, prompts(shapes), shapes)
    known_after, known_drawn = shown(trained, prompts(shapes), shapes)
    if sheet is not None:
        tiled([*drawn, *known_drawn], columns=16).save(sheet)
    plain, decoded = judge_error(models)
    return {
        "before": round(before, 4),
        "after": round(after, 4),
        "known_shapes": round(known_after / max(known_before, 1e-9), 4),
        "minutes": round(minutes, 2),
        "known_before": round(known_before, 4),
        "known_after": round(known_after, 4),
        "judge_error": round(plain, 4),
        "judge_error_decoded": round(decoded, 4),
    }


def recorded_minutes(output: Path) -> float | None:
    note = output / "minutes.json"
    return json.loads(note.read_text(encoding="utf-8")) if note.is_file() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    parser.add_argument(
        "--output-dir", type=Path, help="keep the training there, and use what is there already"
    )
    parser.add_argument(
        "--sheet", type=Path, help="save the 64 concept and 64 known pictures after training here"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        output = args.output_dir or Path(scratch)
        minutes = recorded_minutes(output)
        if minutes is None:
            minutes = train(output)
            (output / "minutes.json").write_text(json.dumps(minutes), encoding="utf-8")
        result = measure(output, minutes, args.sheet)
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
