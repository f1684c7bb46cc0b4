"""``cascade-train validate``: everything that is wrong with a workflow, without running it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HELP = "check a workflow and name every problem, without running it"

EPILOG = "Exit code: 0 no problem, 2 problems: one a line, with node, input, value and what would be right."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.places import add_places

    parser.epilog = EPILOG
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a UI workflow or API prompt (JSON), or a PNG or WebP that carries one",
    )
    parser.add_argument(
        "--object-info",
        type=Path,
        metavar="FILE",
        help="check against the node classes saved from a ComfyUI's /object_info, and no files",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        dest="settings",
        help="change an input of the node with this title or id first (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: ok, nodes, problems")
    add_places(parser)


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.places import place_or_schemas
    from cascade_train.errors import CascadeError
    from cascade_train.graph.check.checked import Wrong, checked
    from cascade_train.graph.file.load import read_workflow

    try:
        workflow = read_workflow(args.file)
        host, classes = place_or_schemas(args)
        found = checked(workflow, classes, host, settings=args.settings)
    except CascadeError as error:
        if not args.json:
            raise
        print(
            json.dumps(
                {
                    "ok": False,
                    "file": str(args.file),
                    "nodes": 0,
                    "problems": [{"kind": "file", "text": str(error)}],
                }
            )
        )
        return 2
    problems = found.problems if isinstance(found, Wrong) else ()
    if args.json:
        print(
            json.dumps(
                {
                    "ok": not problems,
                    "file": str(args.file),
                    "nodes": len(found.prompt),
                    "problems": [problem.as_json() for problem in problems],
                }
            )
        )
    else:
        _print_lines(args.file, len(found.prompt), problems)
    return 2 if problems else 0


def _print_lines(path: Path, count: int, problems: Sequence[Any]) -> None:
    from cascade_train.graph.check.problems import cut

    told, more = cut(problems)
    for problem in told:
        print(problem)
    if more:
        print(more)
    nodes = f"{count} node{'s' if count != 1 else ''}"
    said = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}" if problems else "no problem"
    print(f"{path}: {nodes}, {said}")
