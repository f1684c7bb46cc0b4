"""``cascade-train run``: execute a workflow without ComfyUI."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError
from cascade_train.host.place import rank, started_here

HELP = "run a workflow (UI or API JSON, or a picture that carries one)"

EPILOG = """\
examples:
  cascade-train run teach_a_concept.json
  cascade-train run my.json --set "Train Steps.steps=500" --set 12.seed=3 --output-dir results
  cascade-train run my.json --only "Validate" --dry-run

Exit code: 0 every output ran, 1 something failed, 2 the workflow or an option is wrong and nothing ran,
130 stopped. Ctrl-C stops at the next step; running the same command again continues from there.
"""

WRONG = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.places import add_places

    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE", help="the workflow")
    add_places(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        dest="settings",
        help="change an input of the node with this title or id (repeatable)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NODE",
        help="run only the node with this title or id, and what it needs (repeatable)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto, cpu, cuda, cuda:1 or mps (auto: CUDA, else MPS, else CPU)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="work with N processes, a GPU each, which train one run (default: 1)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would run and what is there already, and run nothing",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object an event, the report last")
    parser.add_argument("--traceback", action="store_true", help="show where unexpected errors came from")


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.terminal import Display, JsonLines, Silent, Terminal

    display: Display = JsonLines() if args.json else Terminal(traces=args.traceback)
    if rank() != 0:
        display = Silent()
    try:
        return _run(args, display)
    except CascadeError as error:
        return refuse([{"kind": "file", "text": str(error)}], args.json)
    except Exception as error:
        if args.json:  # whoever reads the events finds a report at their end, whatever happened
            problem = {"kind": "unexpected", "text": f"{type(error).__name__}: {error}"}
            print(
                json.dumps(
                    {"event": "report", "ok": False, "interrupted": False, "problems": [problem], "nodes": []}
                ),
                flush=True,
            )
        raise


def refuse(problems: Sequence[Mapping[str, Any]], as_json: bool) -> int:
    """Say why nothing ran (``text`` of each problem); 2."""
    if rank() != 0:
        return WRONG  # the first process says the same
    if as_json:
        print(
            json.dumps(
                {
                    "event": "report",
                    "ok": False,
                    "interrupted": False,
                    "problems": list(problems),
                    "nodes": [],
                }
            ),
            flush=True,
        )
    from cascade_train.graph.check.problems import cut

    told, more = cut(problems)
    for problem in told:
        print(f"cascade-train: {problem['text']}", file=sys.stderr)
    if more:
        print(f"cascade-train: {more}", file=sys.stderr)
    if len(problems) > 1:
        print(f"cascade-train: {len(problems)} problems; nothing ran", file=sys.stderr)
    return WRONG


def _run(args: argparse.Namespace, display: Any) -> int:
    from cascade_train.commands.places import place
    from cascade_train.graph.check.checked import Wrong, checked
    from cascade_train.graph.file.load import is_api, read_workflow

    if args.processes < 1:
        raise CascadeError(f"--processes {args.processes}", fix="Use 1 or more")
    if args.processes > 1 and not args.dry_run:
        from cascade_train.ranks.processes import together

        if not started_here():  # each process checks the workflow, and the first says what is wrong
            _enough_devices(args.processes, args.device)
            return together(args.processes, args.same_command, args.words)
    workflow = read_workflow(args.file)
    host, classes = place(args, display)
    found = checked(workflow, classes, host, settings=args.settings, only=args.only)
    if isinstance(found, Wrong):
        return refuse([problem.as_json() for problem in found.problems], args.json)
    if args.dry_run:
        from cascade_train.commands.counting import planned

        return _print_plan(*planned(found, host, guess=False), args.json)

    from cascade_train.graph.run.loop import execute
    from cascade_train.host.signals import stop_on_signals
    from cascade_train.ranks.processes import joined

    pnginfo = None if is_api(workflow) else {"workflow": workflow}
    _make_output(host.folders.output)
    with stop_on_signals(host, _say_at_once, _ended(args.json)), joined(host):
        report = execute(found, host, extra_pnginfo=pnginfo, listener=display.event)
        if host.world_size > 1 and not report.ok:
            display.end(report, host.folders)
            _leave(report.exit_code)
    display.end(report, host.folders)
    return report.exit_code


def _enough_devices(processes: int, device: str) -> None:
    """CascadeError where processes would have to share a GPU, which NCCL cannot."""
    if device.startswith("cpu"):
        return
    import torch

    count = torch.cuda.device_count()
    if not count and device == "auto" and not torch.backends.mps.is_available():
        return
    if ":" in device:
        raise CascadeError(
            f"--processes {processes}: --device {device} is one device",
            fix=f"Use --device {device.partition(':')[0]}, which gives each its own",
        )
    if count < processes:
        raise CascadeError(
            f"--processes {processes}: torch finds {count} CUDA device(s)",
            fix=f"Use --processes {max(1, count)}, or --device cpu",
        )


def _leave(code: int) -> None:
    """End this process at once: the others may wait for it in the middle of a step, and its end ends them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _make_output(folder: Path) -> None:
    """Make the output folder; CascadeError when it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CascadeError(
            f"--output-dir: '{folder}' cannot be made ({error.strerror or error})",
            fix="Name a folder that can be written to",
        ) from None
    if not os.access(folder, os.W_OK):
        raise CascadeError(f"--output-dir: '{folder}' cannot be written to", fix="Name another folder")


def _say_at_once(text: str) -> None:
    """Written past the buffers: a signal may arrive while they are being written."""
    os.write(2, f"\n{text}\n".encode())


def _ended(as_json: bool) -> Callable[[], None]:
    """What is said when a stop ends the process where it is."""

    def gone() -> None:
        if as_json:
            report = {"event": "report", "ok": False, "interrupted": True, "problems": [], "nodes": []}
            os.write(1, f"{json.dumps(report)}\n".encode())
        else:
            _say_at_once("Stopped.")

    return gone


def _print_plan(nodes: Sequence[Any], memory: Any, as_json: bool) -> int:
    from cascade_train.graph.run.plan import as_text
    from cascade_train.jobs.memory import graph_line

    if as_json:
        peak = memory.peak()
        told = {"event": "plan", "nodes": [vars(node) for node in nodes], "memory": peak.total if peak else 0}
        print(json.dumps(told), flush=True)
    else:
        print("\n".join(filter(None, (as_text(nodes), graph_line(memory)))))
    return 0
