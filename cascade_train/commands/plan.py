"""``cascade-train plan``: what a workflow needs of memory, before anything is paid for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascade_train.jobs.memory import Plan
    from cascade_train.jobs.savings import Option

HELP = "count the memory that a workflow needs, and say what would make it fit"

EPILOG = """\
examples:
  cascade-train plan my.json --memory 24
  cascade-train plan my.json --memory 12 --set "Training Run.batch_size=1"

No weights are loaded: the files' headers suffice. What is counted once is remembered.

Exit code: 0 it fits (or no --memory was given), 1 it does not, 2 the workflow or an option is wrong.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.places import add_places

    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE", help="the workflow")
    parser.add_argument("--memory", type=float, metavar="GB", help="the memory of the GPU that it is for")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        dest="settings",
        help="change an input of the node with this title or id first (repeatable)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NODE",
        help="only the node with this title or id, and what it needs (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes")
    add_places(parser)


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.places import place
    from cascade_train.commands.run import refuse
    from cascade_train.errors import CascadeError
    from cascade_train.graph.check.checked import Wrong, checked
    from cascade_train.graph.file.load import read_workflow
    from cascade_train.host.headless import Quiet

    if args.memory is not None and not args.memory > 0:
        raise CascadeError(f"--memory {args.memory}", fix="Give the GPU's memory in GB, such as 24")
    workflow = read_workflow(args.file)
    host, classes = place(args, Quiet())
    found = checked(workflow, classes, host, settings=args.settings, only=args.only)
    if isinstance(found, Wrong):
        return refuse([problem.as_json() for problem in found.problems], args.json)
    from cascade_train.commands.counting import planned

    plan = planned(found, host)[1]
    said = described(plan, args.memory)
    if args.json:
        print(json.dumps(said))
    else:
        print("\n".join(as_lines(plan, said)))
    return 1 if said.get("over") else 0


def described(plan: Plan, memory: float | None) -> dict[str, Any]:
    """The plan as plain data, in bytes."""
    from cascade_train.jobs.memory import usable
    from cascade_train.jobs.savings import OPTIONS

    peak = plan.peak()
    said: dict[str, Any] = {
        "peak": peak.total if peak else 0,
        "nodes": [
            {
                "node": node.node_id,
                "title": node.title,
                "peak": node.needs.peak.total,
                "phases": [{**vars(phase), "total": phase.total} for phase in node.needs.phases],
            }
            for node in plan.nodes
        ],
        "unknown": plan.unknown,
        "options": [
            {"option": option.name, "peak": there.total, "costs": option.costs}
            for option in OPTIONS
            if (there := plan.peak(option.way)) is not None and peak is not None and there.total != peak.total
        ],
    }
    said["in_use"] = list(map(_told, plan.in_use()))
    if memory is not None:
        limit = usable(memory)
        said["memory"], said["usable"] = memory, limit
        over = plan.first_over(limit)
        if over is not None:
            cure, one = plan.cure(limit), plan.alone(limit)
            said["over"] = {"node": over.node_id, "title": over.title, "peak": over.needs.peak.total}
            said["cure"] = list(map(_told, cure))
            said["cured"] = plan.with_all(cure).total if cure else None
            if one is not None and cure != (one,):
                said["alone"] = {**_told(one), "peak": plan.total(one.way)}
    return said


def _told(option: Option) -> dict[str, Any]:
    return {"option": option.name, "costs": option.costs}


COLUMNS = ("weights", "gradients", "optimizer", "average", "activations", "kept", "total")


def as_lines(plan: Plan, said: dict[str, Any]) -> list[str]:
    """The plan as a table for people, in MB."""
    from cascade_train.graph.check.problems import one_line
    from cascade_train.jobs.memory import gigabytes, graph_line

    if not plan.nodes:
        return ["Nothing in this graph needs a network's memory."]
    shown = [
        name for name in COLUMNS if any(phase[name] for node in said["nodes"] for phase in node["phases"])
    ]
    rows = [["MB", *shown]]
    for node in said["nodes"]:
        rows.append([f"{one_line(node['title'], 40)} (#{one_line(node['node'], 12)})", *[""] * len(shown)])
        for phase in node["phases"]:
            numbers = [f"{phase[name] / 1e6:,.0f}" if phase[name] else "·" for name in shown]
            rows.append([f"  {phase['name']}", *numbers])
    widths = [max(len(row[column]) for row in rows) for column in range(len(shown) + 1)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))]
        ).rstrip()
        for row in rows
    ]
    lines += ["", graph_line(plan)]
    if said["unknown"]:
        lines.append(
            f"Not counted, known only when others have run: {', '.join(map(one_line, said['unknown']))}"
        )
    if said["options"]:
        lines += ["", "With another choice the whole would need at most:"]
        lines += [
            f"  {gigabytes(each['peak']):>8}  {each['option']} (costs: {each['costs']})"
            for each in said["options"]
        ]
    if "memory" in said:
        lines += ["", *_verdict(said)]
    return lines


def _verdict(said: dict[str, Any]) -> list[str]:
    from cascade_train.graph.check.problems import one_line
    from cascade_train.jobs.memory import gigabytes

    room = f"{said['memory']:g} GB ({gigabytes(said['usable'])} for tensors, the driver takes the rest)"
    over = said.get("over")
    if over is None:
        had = [f"  {each['option']} (costs: {each['costs']})" for each in said["in_use"]]
        return [f"It fits in {room}" + (", with what it has already:" if had else "."), *had]
    lines = [
        f"It does not fit in {room}: {one_line(over['title'])} (#{one_line(over['node'])}) is the first that "
        f"needs more, {gigabytes(over['peak'])}."
    ]
    if not said["cure"]:
        return [*lines, "None of these choices makes it fit; a smaller model or smaller pictures would."]
    lines.append(f"It fits, with {gigabytes(said['cured'])}, with:")
    lines += [f"  {each['option']} (costs: {each['costs']})" for each in said["cure"]]
    if one := said.get("alone"):
        lines.append(
            f"Or, with {gigabytes(one['peak'])}, with one alone: {one['option']} (costs: {one['costs']})"
        )
    return lines
