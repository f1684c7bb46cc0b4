"""What commands that write a file say of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade_train.errors import CascadeError


def check_target(target: Path, *sources: Path) -> None:
    """Refuse to write over a file that is read.

    Raises:
        CascadeError: ``target`` is one of ``sources``, or its folder is a file.
    """
    if any(target.resolve() == source.resolve() for source in sources):
        raise CascadeError(
            "the file to write is one that is read", where=str(target), fix="Give another name"
        )
    if target.parent.exists() and not target.parent.is_dir():
        raise CascadeError(f"{target.parent.name} is a file", where=str(target), fix="Give another folder")


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
