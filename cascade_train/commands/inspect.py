"""``cascade-train inspect``: a workflow drawn as text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "draw a workflow as text: nodes, values and wires"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a UI workflow or API prompt (JSON), or a PNG or WebP that carries one",
    )
    parser.add_argument("--values", action="store_true", help="show every value in full, also long ones")
    parser.add_argument(
        "--object-info",
        type=Path,
        metavar="FILE",
        help="the node classes, saved from a ComfyUI's /object_info",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object: what the file is, and its nodes"
    )
    from cascade_train.commands.places import add_places

    add_places(parser)


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.places import place_or_schemas
    from cascade_train.graph.check.problems import one_line
    from cascade_train.graph.file.load import read_workflow
    from cascade_train.graph.show.drawing import draw_graph
    from cascade_train.graph.show.summary import heading, summary_of

    workflow = read_workflow(args.file)
    info = place_or_schemas(args)[1].schemas
    found = summary_of(workflow, info)
    if args.json:
        print(json.dumps({"file": str(args.file), **found.as_json()}))
        return 0
    print(f"{args.file}: {heading(found)}")
    print()
    for line in draw_graph(found.nodes, width=None if args.values else 100):
        print(line)
    for kind, inner in found.groups:
        holds = ", ".join(one_line(name) for name in inner) or "nothing that the file tells"
        print(f"group node: {one_line(kind)} holds {holds}; to run it, convert it to nodes in ComfyUI")
    for key, title, why in found.left_out:
        print(f"{why}: {one_line(title)} ({one_line(key)})")
    for note in found.notes:
        print(f"note: {one_line(note, 10_000 if args.values else 100)}")
    return 0
