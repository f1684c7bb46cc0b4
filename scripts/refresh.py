"""Write every file that is made from others again: ``python start.py refresh``.

Says what it changed. Nothing is written where something would be taken away from what people have: nodes,
inputs, outputs and choices of saved workflows.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAKERS = ("contract", "pages", "workflows", "requirements")
"""Modules beside this one whose ``files()`` gives texts by path; a ValueError says what must not be."""


def made() -> dict[str, str]:
    """All made files: their texts by path in the repository."""
    out: dict[str, str] = {}
    for maker in MAKERS:
        out.update(importlib.import_module(f"scripts.{maker}").files())
    return out


def stale(files: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Those of ``files`` that lie otherwise on disk, or not at all."""
    return [
        name
        for name, text in files.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text
    ]


def main(argv: list[str] | None = None) -> int:
    """Write what has changed; 1 when something must not be written, or with ``--check`` is out of date."""
    parser = argparse.ArgumentParser(prog="start.py refresh", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    args = parser.parse_args(argv)
    try:
        files = made()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    changed = stale(files)
    for name in changed:
        print(name)
        if not args.check:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(files[name], encoding="utf-8", newline="\n")
    if not changed:
        print(f"all {len(files)} made files are up to date")
    return 1 if args.check and changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
