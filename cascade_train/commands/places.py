"""Where a command works: the options for its folders, and the host and node classes that they give."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    from cascade_train.graph.check.classes import Classes


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
    add_trust(group)
    group.add_argument(
        "--comfyui",
        type=Path,
        metavar="DIR",
        help="use the nodes of the ComfyUI in DIR, its custom nodes and its folders",
    )


def add_trust(group: Any) -> None:
    """Options that let a workflow go where it may not by itself."""
    group.add_argument(
        "--follow-links",
        action="store_true",
        help="follow links in these folders that lead out of them (else they are counted and left alone)",
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a host of this machine or a private network that remote shards may come from (repeatable)",
    )


def place(args: argparse.Namespace, display: Any) -> tuple[Any, Classes]:
    """The host and the node classes that the options ask for.

    Raises:
        CascadeError: a folder or device of the options is none.
    """
    from cascade_train.graph.check.classes import Classes
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
            follow_links=args.follow_links,
            allowed_hosts=args.allow_host,
        )
        return host, Classes(node_classes(host, others))
    folders_ = headless_folders(
        args.output_dir or Path("output"),
        args.input_dir,
        args.models_dir,
        args.read,
        follow_links=args.follow_links,
        allowed_hosts=args.allow_host,
    )
    host = HeadlessHost(folders_, device, display)
    return host, Classes(node_classes(host))


def place_or_schemas(args: argparse.Namespace) -> tuple[Any, Classes]:
    """As `place`, quietly; with ``--object-info`` (no host, and) the classes by their schemas alone.

    Raises:
        CascadeError: a file or folder of the options is not there.
    """
    from cascade_train.graph.check.classes import Classes
    from cascade_train.graph.check.schema import read_object_info
    from cascade_train.host.headless import Quiet

    if args.object_info is not None:
        return None, Classes.from_schemas(read_object_info(args.object_info))
    return place(args, Quiet())
