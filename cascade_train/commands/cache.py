"""``cascade-train cache``: what is kept on disk so that it need not be worked out again, and removing it."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from cascade_train.errors import plain

HELP = "list or remove cached latents, text states, indexes, measures, remote shards and drawn pictures"

_KINDS = ("latents", "text", "images", "index", "measures", "shards", "pictures", "drawn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("ls", help="what is there, of which model, and how large")
    clean = actions.add_parser("prune", help="remove it; anything is worked out again when it is needed")
    clean.add_argument(
        "--kind", action="append", default=[], choices=_KINDS, help="only this kind (repeatable)"
    )
    clean.add_argument("--older-than", type=float, metavar="DAYS", help="only what was not used for so long")
    clean.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    for action in (show, clean):
        action.add_argument(
            "--output-dir",
            type=Path,
            metavar="DIR",
            help="the output folder whose cache is meant (default ./output)",
        )
        action.add_argument("--json", action="store_true", help="print one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    from cascade_train.data.caches import listing, prune_caches
    from cascade_train.host.headless import headless_folders

    cache = headless_folders(args.output_dir or Path("output")).cache
    if args.action == "ls":
        found, word = listing(cache), "in"
    else:
        age = None if args.older_than is None else args.older_than * 86400
        found = prune_caches(cache, kinds=tuple(args.kind), older_than=age, dry_run=args.dry_run)
        word = "would be removed from" if args.dry_run else "removed from"
    now = time.time()
    for kept in found:
        days = max(0.0, (now - kept.used) / 86400)
        print(
            f"{kept.bytes / 1e6:10.1f} MB  {kept.files:6} files  {days:5.1f} days ago  {kept.kind:9} "
            f"{plain(kept.about)}"
        )
    total = sum(kept.bytes for kept in found)
    print(f"{total / 1e6:.1f} MB {word} {cache}")
    if args.json:
        print(
            json.dumps(
                {
                    "cache": str(cache),
                    "bytes": total,
                    "items": [
                        {
                            "kind": kept.kind,
                            "path": str(kept.path),
                            "about": kept.about,
                            "bytes": kept.bytes,
                            "files": kept.files,
                            "used": round(kept.used, 3),
                        }
                        for kept in found
                    ],
                },
                ensure_ascii=False,
            )
        )
    return 0
