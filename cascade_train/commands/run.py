"""``cascade-train run``: execute a workflow without ComfyUI."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
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


def add_places(parser: argparse.ArgumentParser) -> None:
    """Options that say where things lie; shared by the commands that look at files of a workflow."""
    group = parser.add_argument_group("places")
    group.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="where pictures, exports and runs go (./output, or that of --comfyui)",
    )
    group.add_argument(
        "--input-dir",
        type=Path,
        metavar="DIR",
        help="where the workflow's pictures and datasets are (./input, or that of --comfyui)",
    )
    group.add_argument(
        "--models-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder laid out as ComfyUI's models folder (repeatable)",
    )
    group.add_argument(
        "--read",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a further folder that the workflow may read from (repeatable)",
    )
    group.add_argument(
        "--comfyui",
        type=Path,
        metavar="DIR",
        help="use the nodes of the ComfyUI in DIR, its custom nodes and its folders",
    )


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
    for problem in problems:
        print(f"cascade-train: {problem['text']}", file=sys.stderr)
    if len(problems) > 1:
        print(f"cascade-train: {len(problems)} problems; nothing ran", file=sys.stderr)
    return WRONG


def _run(args: argparse.Namespace, display: Any) -> int:
    from cascade_train.graph.check.overrides import find_node
    from cascade_train.graph.file.load import is_api, read_workflow

    if args.processes < 1:
        raise CascadeError(f"--processes {args.processes}", fix="Use 1 or more")
    if args.processes > 1 and not args.dry_run:
        from cascade_train.ranks.processes import together

        if not started_here():  # each process checks the workflow, and the first says what is wrong
            _enough_devices(args.processes, args.device)
            return together(args.processes, same_command, args.words)
    workflow = read_workflow(args.file)
    host, classes = place(args, display)
    prompt, problems = _checked(workflow, classes, host, args)
    if problems:
        return refuse([problem.as_json() for problem in problems], args.json)
    only = [find_node(prompt, name) for name in args.only]
    if args.dry_run:
        from cascade_train.graph.run.plan import plan

        return _print_plan(plan(prompt, classes, host, only=only), args.json)

    from cascade_train.graph.run.execute import run_prompt
    from cascade_train.host.headless import stop_on_signals
    from cascade_train.ranks.processes import joined

    pnginfo = None if is_api(workflow) else {"workflow": workflow}
    _make_output(host.folders.output)
    with stop_on_signals(host, _say_at_once), joined(host):
        report = run_prompt(prompt, classes, host, only=only, extra_pnginfo=pnginfo, listener=display.event)
        if host.world_size > 1 and not report.ok:
            display.end(report, host.folders)
            _leave(report.exit_code)
    display.end(report, host.folders)
    return report.exit_code


def same_command(words: Sequence[str]) -> int:
    """``cascade-train *words`` in this process, one of several that `together` has started."""
    from cascade_train.cli import main

    return main(words)


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


def place(args: argparse.Namespace, display: Any) -> tuple[Any, dict[str, type]]:
    """The host and the node classes that the options ask for."""
    from cascade_train.graph.core.registry import node_classes, pack_nodes
    from cascade_train.host.headless import HeadlessHost, headless_folders

    for option, folders in (
        ("--input-dir", [args.input_dir] if args.input_dir else []),
        ("--models-dir", args.models_dir),
        ("--read", args.read),
    ):
        for folder in folders:
            if not folder.is_dir():
                raise CascadeError(f"{option}: there is no folder '{folder}'")
    device = getattr(args, "device", "auto")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
        raise CascadeError(f"--device: '{device}' is no device", fix="Use auto, cpu, cuda, cuda:1 or mps")
    if args.comfyui:
        from cascade_train.host.comfy_inside import enter_comfyui

        host, others = enter_comfyui(
            args.comfyui,
            output=args.output_dir,
            input_folder=args.input_dir,
            models=args.models_dir,
            read=args.read,
            device=device,
            sink=display,
            before_packs=pack_nodes,
        )
        return host, node_classes(host, others)
    folders_ = headless_folders(args.output_dir or Path("output"), args.input_dir, args.models_dir, args.read)
    host = HeadlessHost(folders_, device, display)
    return host, node_classes(host)


def _checked(
    workflow: dict[str, Any], classes: Mapping[str, type], host: Any, args: argparse.Namespace
) -> tuple[dict[str, Any], list[Any]]:
    """The prompt with ``--set`` applied, and what is wrong with the part of it that will run."""
    from cascade_train.graph.check.overrides import only
    from cascade_train.graph.check.refused import refused
    from cascade_train.graph.check.schema import object_info
    from cascade_train.graph.check.validate import check

    prompt, found = check(workflow, object_info(classes), host, args.settings)
    found += refused(prompt, classes, {problem.node for problem in found})
    if args.only:
        wanted = only(prompt, args.only)
        found = [problem for problem in found if problem.node in wanted]
    return prompt, found


def _print_plan(planned: Sequence[Any], as_json: bool) -> int:
    from cascade_train.graph.run.plan import as_text

    if as_json:
        print(json.dumps({"event": "plan", "nodes": [vars(node) for node in planned]}), flush=True)
    else:
        print(as_text(planned))
    return 0
