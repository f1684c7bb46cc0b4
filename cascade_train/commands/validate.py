"""``cascade-train validate``: everything that is wrong with a workflow, without running it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HELP = "check a workflow and name every problem, without running it"

EPILOG = "Exit code: 0 no problem, 2 problems: one a line, with node, input, value and what would be right."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.run import add_places

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
    from cascade_train.commands.schemas import classes_and_schemas
    from cascade_train.errors import CascadeError
    from cascade_train.graph.check.refused import refused
    from cascade_train.graph.check.validate import check
    from cascade_train.graph.file.load import read_workflow

    try:
        workflow = read_workflow(args.file)
        host, classes, info = classes_and_schemas(args)
        prompt, found = check(workflow, info, host, args.settings)
        if classes:
            found += refused(prompt, classes, {problem.node for problem in found})
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
    if args.json:
        print(
            json.dumps(
                {
                    "ok": not found,
                    "file": str(args.file),
                    "nodes": len(prompt),
                    "problems": [problem.as_json() for problem in found],
                }
            )
        )
    else:
        _tell(args.file, prompt, found)
    return 2 if found else 0


def _tell(path: Path, prompt: dict[str, Any], found: list[Any]) -> None:
    for problem in found:
        print(problem)
    nodes = f"{len(prompt)} node{'s' if len(prompt) != 1 else ''}"
    count = f"{len(found)} problem{'s' if len(found) != 1 else ''}" if found else "no problem"
    print(f"{path}: {nodes}, {count}")
