"""``cascade-train runs``: the trainings on this machine, what each holds, and making room."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError, plain

HELP = "list trainings, show one, check their files, or delete checkpoints that are no branch's last"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(output_dir=None, json=False)  # alone, the command lists
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    ls = actions.add_parser("ls", help="every run: name, label, last step, loss, size, who trains it")
    show = actions.add_parser("show", help="one run: its settings and checkpoints")
    check = actions.add_parser(
        "check", help="read runs whole and compare each file with the digest that was written with it"
    )
    check.add_argument(
        "run", metavar="RUN", nargs="?", help="the run's name, its first letters, or its label (default: all)"
    )
    prune = actions.add_parser(
        "prune",
        help="delete checkpoints that later ones were reached from; a graph that names one trains it again",
    )
    for action in (show, prune):
        action.add_argument("run", metavar="RUN", help="the run's name, its first letters, or its label")
    prune.add_argument(
        "--keep-step",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="keep checkpoints at this step too (repeatable)",
    )
    prune.add_argument("--dry-run", action="store_true", help="say what would go, and delete nothing")
    for action in (ls, show, check, prune):
        action.add_argument(
            "--output-dir",
            type=Path,
            metavar="DIR",
            default=None,
            help="the output folder whose runs are meant (default ./output)",
        )
        action.add_argument("--json", action="store_true", help="print one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    from cascade_train.host.headless import headless_folders
    from cascade_train.training import folders

    root = headless_folders(args.output_dir or Path("output")).runs
    if args.action in (None, "ls"):
        found = []
        for each in folders.run_folders(root):
            try:
                found.append(folders.run_summary(each))
            except (CascadeError, OSError) as error:  # of a later version, say; the others can be listed
                print(f"cascade-train: {each.name[:12]}: {error}", file=sys.stderr)
        _table(found, root)
        return _told(args, {"runs": found})
    if args.action == "check":
        return _check(args, [folders.find(root, args.run)] if args.run else folders.run_folders(root), root)
    folder = folders.find(root, args.run)
    if args.action == "show":
        return _show(args, folders.run_summary(folder), folders.described(folder))
    gone = folders.prune_run(folder, args.keep_step, dry_run=args.dry_run)
    for item in gone:
        print(f"{item['bytes'] / 1e6:10.1f} MB  step {item['step']}  {item['name']}")
    word = "would be deleted" if args.dry_run else "deleted"
    print(f"{sum(item['bytes'] for item in gone) / 1e6:.1f} MB {word} from {folder}")
    return _told(args, {"run": folder.name, "deleted": gone})


def _table(found: list[dict[str, Any]], root: Path) -> None:
    if not found:
        print(f"no runs in {root}")
    for each in found:
        loss = "-" if each["loss"] is None else f"{each['loss']:.4f}"
        holder = f"  trained by {each['trained_by']}" if each["trained_by"] else ""
        print(
            f"{each['name'][:12]}  step {each['step']:>7}  loss {loss:>7}  {each['bytes'] / 1e6:9.1f} MB  "
            f"{plain(each['target']):12} {plain(str(each['label']))}{plain(holder)}"
        )
        for line in each["problems"]:
            print(f"cascade-train: {each['name'][:12]}: {line}", file=sys.stderr)


def _check(args: argparse.Namespace, chosen: list[Path], root: Path) -> int:
    """0 when every file is what was written, 1 when one is not."""
    from cascade_train.training.checking import check_run

    def telling(name: str) -> None:
        if sys.stderr.isatty():
            print(f"reading {name} …", file=sys.stderr)

    out: list[dict[str, Any]] = []
    for folder in chosen:
        try:
            found = check_run(folder, telling)
            findings = [vars(each) for each in found.findings]
            count, without = found.checkpoints, found.without
        except CascadeError as error:
            findings, count, without = [{"file": "", "what": str(error), "costs": ""}], 0, 0
        old = f", {without} of them from before digests were kept" if without else ""
        word = "damaged" if findings else "ok"
        print(f"{folder.name[:12]}  {word:7}  {count} checkpoints{old}")
        for each in findings:
            print(f"    {each['file']}: {each['what']}")
            if each["costs"]:
                print(f"        {each['costs']}")
        out.append({"name": folder.name, "ok": not findings, "checkpoints": count, "findings": findings})
    if not chosen:
        print(f"no runs in {root}")
    _told(args, {"ok": all(each["ok"] for each in out), "runs": out})
    return 0 if all(each["ok"] for each in out) else 1


def _show(args: argparse.Namespace, about: dict[str, Any], spec: dict[str, Any]) -> int:
    _table([about], Path())
    print(f"folder {about['folder']}")
    print(json.dumps(spec, indent=2, ensure_ascii=False))
    for saved in about["checkpoints"]:
        way = " + ".join(
            f"{block['steps']}"
            if block["learning_rate"] is None
            else f"{block['steps']} at {block['learning_rate']:g}"
            for block in saved["blocks"]
        )
        print(f"{saved['bytes'] / 1e6:10.1f} MB  step {saved['step']:>7}  {saved['kind']:9}  {way}")
    return _told(args, {**about, "spec": spec})


def _told(args: argparse.Namespace, value: dict[str, Any]) -> int:
    if args.json:
        print(json.dumps(value, ensure_ascii=False))
    return 0
