"""``cascade-train convert-lora``: a LoRA file in the form that another program reads."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write a LoRA of Stable Cascade in another program's form"

FORMS = ("comfyui", "kohya", "peft", "official")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, metavar="IN", help="a LoRA of any known form, or a folder that peft saved"
    )
    parser.add_argument(
        "target", type=Path, metavar="OUT", help="the file to write (peft: a folder, or a file)"
    )
    parser.add_argument(
        "--to",
        choices=FORMS,
        required=True,
        metavar="FORM",
        help="comfyui: all of it loads there; kohya: the same names, DoRA as trainers define it; peft: what "
        "diffusers' layers are called; official: counted layers, as the reference saves them",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="FILE",
        help="the Stage C that it was trained for; needed for sizes that are not official, and for DoRA",
    )
    parser.add_argument(
        "--text",
        type=Path,
        metavar="FILE",
        help="the text encoder that it was trained for, for its layers and an official LoRA's words",
    )
    parser.add_argument(
        "--word",
        action="append",
        default=[],
        metavar="'[NAME] = EXPRESSION'",
        help="a new word of an official LoRA, which does not tell it: as it was trained, in order "
        "(repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    from cascade_train.commands.told import check_target, tell
    from cascade_train.jobs.lora_files import convert

    check_target(args.target, args.source, folder=args.to == "peft")
    written, said = convert(
        args.source, args.target, args.to, stage_c=args.models, text=args.text, words="\n".join(args.word)
    )
    return tell(args, written, said, {"form": args.to})
