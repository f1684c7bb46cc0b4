"""Write every file that is made from others again: ``python start.py refresh``.

Says what it changed. Nothing is written where something would be taken away from what people have: nodes,
inputs, outputs and choices of saved workflows, names of runs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAKERS = ("contract", "pages", "workflows", "requirements")
"""Modules beside this one whose ``files()`` gives texts by path; a ValueError says what must not be."""


WRITERS = ("tests/training/names.py",)
"""Modules that look after a made file of their own: ``write()`` brings their ``FILE`` up to date."""


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


def written(writer: Path) -> list[str]:
    """What the ``write()`` of a module changed; ValueError where it must not."""
    spec = importlib.util.spec_from_file_location(writer.stem, writer)
    if not writer.is_file() or spec is None or spec.loader is None:
        return []
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    before = module.FILE.read_bytes() if module.FILE.is_file() else b""
    module.write()
    return [module.FILE.relative_to(ROOT).as_posix()] if module.FILE.read_bytes() != before else []


def main(argv: list[str] | None = None) -> int:
    """Write what has changed; 1 when something must not be written, or with ``--check`` is out of date."""
    parser = argparse.ArgumentParser(prog="start.py refresh", description=__doc__)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only say which made files are out of date (not the names of runs)",
    )
    args = parser.parse_args(argv)
    try:
        files = made()
        changed = [] if args.check else [name for each in WRITERS for name in written(ROOT / each)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    changed += stale(files)
    for name in changed:
        print(name)
        if not args.check and name in files:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(files[name], encoding="utf-8", newline="\n")
    if not changed:
        print(f"all {len(files)} made files are up to date")
    return 1 if args.check and changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
