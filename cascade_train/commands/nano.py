"""``cascade-train nano``: make the bundled nano models anew, or draw with them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

HELP = "make the bundled nano models from nothing, or draw pictures with them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = actions.add_parser(
        "make",
        help="train every stage, then score the models and draw a contact sheet",
        description="Train nano from nothing: hours on two CPU cores, at most 4 GB of memory. Stop it "
        "whenever you like; the same command continues.",
    )
    make.add_argument(
        "--output",
        type=Path,
        default=Path("nano"),
        metavar="DIR",
        help="where runs, parts and the finished models go (default: nano)",
    )
    make.add_argument(
        "--quick",
        action="store_true",
        help="a tiny version of every stage, in minutes: shows that each one learns",
    )
    make.add_argument(
        "--jobs",
        type=int,
        default=2,
        metavar="N",
        help="stages that train at once, one thread each (default: 2)",
    )
    make.add_argument("--seed", type=int, default=0, help="seed of everything (default: 0)")
    make.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    sample = actions.add_parser("sample", help="draw pictures from captions")
    sample.add_argument(
        "captions", nargs="+", metavar="CAPTION", help="such as 'a large red star on a navy background'"
    )
    sample.add_argument(
        "--output",
        type=Path,
        default=Path("nano-samples.png"),
        metavar="FILE",
        help="the picture to write, all samples side by side (default: nano-samples.png)",
    )
    sample.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="models made by `nano make` (DIR/nano), in place of the bundled ones",
    )
    sample.add_argument("--seed", type=int, default=0, help="seed of the first picture (default: 0)")
    sample.add_argument("--count", type=int, default=1, metavar="N", help="pictures a caption (default: 1)")


def run(args: argparse.Namespace) -> int:
    return _make(args) if args.action == "make" else _sample(args)


def _make(args: argparse.Namespace) -> int:
    from cascade_train.errors import CascadeError
    from cascade_train.files import write_json, write_with
    from cascade_train.migrations import stamped
    from cascade_train.models import library
    from cascade_train.nano import scores as scoring
    from cascade_train.nano.make import make
    from cascade_train.nano.recipe import recipe

    if args.jobs < 1:
        raise CascadeError(f"--jobs {args.jobs}", fix="Use 1 or more")
    out = sys.stderr if args.json else sys.stdout

    def tell(line: str) -> None:
        print(line, file=out, flush=True)

    began = time.monotonic()
    made = make(args.output, recipe(args.quick, args.seed), jobs=args.jobs, tell=tell)
    models = library.models_in(made.folder, name="nano, just made")
    tell("scoring …")
    few = args.quick
    result = scoring.score(
        models, captions=8 if few else scoring.CAPTIONS, pictures=8 if few else scoring.RECONSTRUCTED
    )
    sheet = scoring.contact_sheet(models, 8 if few else 48)
    write_with(made.folder / "samples.png", lambda beside: sheet.save(beside, format="PNG"))
    numbers = result.as_json()
    write_json(made.folder / "scores.json", stamped("nano scores", {**numbers, "seconds": made.seconds}))
    for name, value in numbers.items():
        tell(f"{name:<12} {value}")
    missed = result.missed()
    if missed and not few:
        tell("below its goal: " + ", ".join(missed))
    tell(f"models, scores and contact sheet: {made.folder}")
    if args.json:
        print(
            json.dumps(
                {
                    "folder": str(made.folder),
                    "scores": numbers,
                    "missed": missed,
                    "seconds": made.seconds,
                    "took": round(time.monotonic() - began, 1),
                }
            )
        )
    return 0 if few or not missed else 1


def _sample(args: argparse.Namespace) -> int:
    from cascade_train.drawing.paper import tiled, to_pictures
    from cascade_train.files import write_with
    from cascade_train.models import library
    from cascade_train.sampling.pipeline import text_to_image

    if args.models is not None:
        models = library.models_in(args.models, name=str(args.models))
    else:
        models = library.models_in(library.nano_folder(), name=library.NANO)
    captions = [caption for caption in args.captions for _ in range(max(args.count, 1))]
    seeds = [args.seed + number for number in range(len(captions))]
    drawn = to_pictures(text_to_image(models, captions, seeds=seeds, preview=False))
    strip = tiled(drawn, len(drawn))
    write_with(args.output, lambda beside: strip.save(beside, format="PNG"))
    print(args.output)
    return 0
