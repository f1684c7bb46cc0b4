"""What commands that write a file say of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError


def check_target(target: Path, *sources: Path, folder: bool = False) -> None:
    """Refuse a file that cannot be written, or that is read; ``folder``: a name with no ending is one.

    Raises:
        CascadeError: ``target`` is one of ``sources``, has another ending, or cannot be made.
    """
    from cascade_train.formats.names import check_place

    if any(target.resolve() == source.resolve() for source in sources):
        raise CascadeError(
            "the file to write is one that is read", where=str(target), fix="Give another name"
        )
    if folder and not target.suffix:
        return
    if target.suffix != ".safetensors":
        raise CascadeError(
            f"the name '{target.name}' does not end in .safetensors",
            where=str(target),
            fix=f"Call it {target.name}.safetensors",
        )
    check_place(target)


def tell(
    args: argparse.Namespace, written: Sequence[Path], said: Sequence[str], also: Mapping[str, Any]
) -> int:
    """Print each file with its size, and with ``--json`` an object of ``written``, ``said`` and ``also``."""
    for line in said:
        print(f"cascade-train: {line}", file=sys.stderr)
    for path in written:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files if each.is_file())
        print(f"{size / 1e6:10.1f} MB  {path}")
    if args.json:
        print(json.dumps({"written": [str(path) for path in written], "said": list(said), **also}))
    return 0
