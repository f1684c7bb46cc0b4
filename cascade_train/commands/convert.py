"""``cascade-train convert``: the API prompt of a saved workflow."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cascade_train.errors import CascadeError

HELP = "print the API prompt that ComfyUI would queue for a workflow"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.places import add_places

    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a UI workflow (JSON), or a PNG or WebP that carries one"
    )
    parser.add_argument(
        "--object-info",
        type=Path,
        metavar="FILE",
        help="the node classes, saved from a ComfyUI's /object_info, in place of those here",
    )
    parser.add_argument(
        "--draw",
        type=int,
        metavar="SEED",
        help="draw one of each {a|b} in prompts with this seed (they stay as they are)",
    )
    add_places(parser)


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.places import place_or_schemas
    from cascade_train.graph.file.convert import to_prompt, unknown_classes
    from cascade_train.graph.file.load import read_workflow

    workflow = read_workflow(args.file)
    info = place_or_schemas(args)[1].schemas
    unknown = unknown_classes(workflow, info)
    if unknown:
        listed = "; ".join(
            f"{name} at {where}" + (f" from {pack}" if pack else "") for name, pack, where in unknown
        )
        raise CascadeError(
            f"{len(unknown)} node classes are not known here: {listed}",
            where=str(args.file),
            fix="Give their ComfyUI with --comfyui DIR, or its saved /object_info with --object-info",
        )
    try:
        text = json.dumps(to_prompt(workflow, info, draw=args.draw), indent=2, allow_nan=False)
    except ValueError:
        raise CascadeError(
            "an input is not a number (NaN or infinite), which no API prompt can carry",
            where=str(args.file),
            fix="Set it to a number",
        ) from None
    print(text)
    return 0
