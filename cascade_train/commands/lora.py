"""``cascade-train lora``: what a LoRA file is, and making others of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from cascade_train.errors import plain

HELP = "describe a LoRA, merge one into a model, extract one from two models, or change its rank"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser("info", help="form, layers, ranks, alphas and words of a LoRA, from its header")
    info.add_argument("file", type=Path, metavar="FILE", help="a LoRA of any known form")
    merge = actions.add_parser("merge", help="write a Stage C with a LoRA merged into its weights")
    merge.add_argument("model", type=Path, metavar="MODEL", help="a Stage C, or a checkpoint that holds one")
    merge.add_argument("lora", type=Path, metavar="LORA", help="a LoRA of any known form")
    merge.add_argument("target", type=Path, metavar="OUT", help="the file to write")
    merge.add_argument(
        "--strength", type=float, default=1.0, metavar="S", help="how strongly (default 1, as trained)"
    )
    extract = actions.add_parser("extract", help="write the difference of two Stages C as a LoRA")
    extract.add_argument("base", type=Path, metavar="BASE", help="the Stage C that training began from")
    extract.add_argument("tuned", type=Path, metavar="TUNED", help="the trained one")
    extract.add_argument("target", type=Path, metavar="OUT", help="the LoRA to write, for ComfyUI")
    extract.add_argument(
        "--layers",
        default="",
        metavar="PARTS",
        help="only layers with one of these in their names, such as attn,channelwise (default: all)",
    )
    resize = actions.add_parser("resize", help="write a LoRA with another rank")
    resize.add_argument("source", type=Path, metavar="IN", help="a LoRA of any known form")
    resize.add_argument("target", type=Path, metavar="OUT", help="the LoRA to write")
    for action in (extract, resize):
        action.add_argument(
            "--rank", type=int, required=True, metavar="N", help="the largest rank of a layer"
        )
    for action in (info, resize):
        action.add_argument(
            "--models", type=Path, metavar="FILE", help="the Stage C it was trained for, if of another size"
        )
    for action in (info, merge, extract, resize):
        action.add_argument("--json", action="store_true", help="print one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.told import check_target, tell
    from cascade_train.jobs import lora_files, lora_info

    if args.action == "info":
        return _info(args, lora_info.described(args.file, args.models))
    if args.action == "merge":
        check_target(args.target, args.model, args.lora)
        said = lora_files.merge(args.model, args.lora, args.target, args.strength)
        return tell(args, [args.target], said, {"strength": args.strength})
    if args.action == "extract":
        check_target(args.target, args.base, args.tuned)
        made = lora_files.extract(args.base, args.tuned, args.target, args.rank, layers=args.layers)
    else:
        check_target(args.target, args.source)
        made = lora_files.resize(args.source, args.target, args.rank, stage_c=args.models)
    print(f"rank {made.rank}, {made.kept.share:.2%} of the change's energy kept")
    return tell(args, made.files, made.said, {"rank": made.rank, "kept": made.kept.share})


def _info(args: argparse.Namespace, about: dict[str, Any]) -> int:
    print(f"{plain(about['file'])}: {about['kind']} in the form of {about['form']}, for {about['for']}")
    for part, found in about["layers"].items():
        listed = ", ".join(f"{count} {kind}" for kind, count in found.items())
        print(f"{part:10} {sum(found.values())} layers: {listed}")
    for name in ("ranks", "alphas"):
        shown = ", ".join(f"{value} ({count} layers)" for value, count in about[name].items())
        if shown:
            print(f"{name:10} {shown}")
    if about["words"]:
        count = about["words"]
        print(f"words      {count if isinstance(count, int) else ', '.join(map(plain, count))}")
    if about["unused"]:
        print(f"unused     {len(about['unused'])}: {plain(', '.join(about['unused'][:5]))}")
    for key, value in sorted(about["metadata"].items()):
        print(f"metadata   {plain(key)}: {plain(str(value))[:120]}")
    if args.json:
        print(json.dumps(about, ensure_ascii=False))
    return 0
