"""``cascade-train dataset``: look at a dataset before training on it, and pack a folder into shards."""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade_train.errors import CascadeError, plain

if TYPE_CHECKING:
    from cascade_train.data.dataset import OpenDataset
    from cascade_train.data.listing import Listed
    from cascade_train.data.report import Report
    from cascade_train.host.progress import Progress

HELP = "look at a dataset, or pack a folder of pictures into WebDataset shards"

_CHUNK = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from cascade_train.commands.places import add_trust

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    look = actions.add_parser(
        "inspect", help="count samples, buckets, captions, and what cannot be used and why"
    )
    look.add_argument(
        "path",
        metavar="PATH",
        help="a folder of pictures, a tar, a folder of tars, a range such as "
        "set/{000..031}.tar, a .yml list, or a URL (s3://, gs://, hf://, https://)",
    )
    look.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="EXPRESSION",
        help="leave out samples that do not pass, such as 'width >= 512' (repeatable)",
    )
    look.add_argument(
        "--captions",
        default="beside",
        metavar="FROM",
        choices=("beside", "metadata", "file name", "folder name"),
        help="where captions come from: beside (default), metadata, 'file name', 'folder name'",
    )
    look.add_argument(
        "--field", default="caption", metavar="NAME", help="the metadata field with the caption"
    )
    look.add_argument(
        "--size", type=int, default=0, metavar="PIXELS", help="bucket size; 0 is the models' own"
    )
    look.add_argument(
        "--ratios",
        default="",
        metavar="LIST",
        help="aspect ratios, such as '1/1, 3/4'; default: those of the reference",
    )
    look.add_argument("--nano", action="store_true", help="buckets for the bundled nano models (64 pixels)")
    look.add_argument(
        "--batch-size", type=int, default=4, metavar="N", help="to tell which buckets are smaller"
    )
    look.add_argument(
        "--duplicates",
        default="keep",
        choices=("keep", "remove", "remove near"),
        help="also look for equal, or nearly equal, pictures",
    )
    look.add_argument(
        "--decode",
        action="store_true",
        help="decode every picture, which finds damage in the middle of files",
    )
    look.add_argument(
        "--limit",
        type=int,
        default=10_000,
        metavar="N",
        help="of remote shards, which are copied to be read, look at the first N samples "
        "(default 10000; 0: at all)",
    )
    look.add_argument(
        "--list",
        action="store_true",
        dest="listed",
        help="print a line for each sample (key, upright width and height, bucket, captions) and name every "
        "file that is none; with --json one object a line, before the summary",
    )
    look.add_argument("--preview", type=Path, metavar="FILE", help="save a grid of cropped pictures")
    look.add_argument("--flat", action="store_true", help="do not look into the folders inside")
    box = actions.add_parser(
        "pack", help="write the pictures of a folder, with captions and metadata, to tar shards"
    )
    box.add_argument("path", metavar="FOLDER", help="a folder of pictures")
    box.add_argument(
        "out",
        type=Path,
        metavar="OUT.tar",
        help="the tar to write; several shards become OUT-00000.tar, OUT-00001.tar, …",
    )
    box.add_argument(
        "--shard-size",
        type=float,
        default=1024.0,
        metavar="MB",
        help="largest shard in megabytes (default 1024; 0: one shard, however large)",
    )
    box.add_argument("--flat", action="store_true", help="do not look into the folders inside")
    for action in (look, box):
        add_trust(action)
        action.add_argument(
            "--ending",
            default="",
            metavar="ENDING",
            help="where several pictures share a name, use the one that ends so, such as png; 'all' uses "
            "each (default: jpg, webp, avif and heic before png, tiff, bmp and gif)",
        )
        action.add_argument(
            "--output-dir",
            type=Path,
            metavar="DIR",
            help="the output folder whose cache keeps the index (default ./output)",
        )
        action.add_argument("--json", action="store_true", help="print one JSON object on the last line")


def run(args: argparse.Namespace) -> int:
    try:
        return _inspect(args) if args.action == "inspect" else _pack(args)
    except CascadeError as error:
        if args.json:
            print(json.dumps({"samples": 0, "bad": 0, "dropped": 0, "bad_files": [], "error": str(error)}))
        raise


def _host(args: argparse.Namespace) -> Any:
    """A host that shows progress on standard error and may read what the person names."""
    from cascade_train.commands.terminal import Terminal
    from cascade_train.data.hosts import host_of
    from cascade_train.host.headless import HeadlessHost, headless_folders

    here = Path.cwd()
    folders = headless_folders(
        args.output_dir or Path("output"),
        here,
        (),
        [
            Path(args.path).expanduser().resolve()
            if Path(args.path).expanduser().is_dir()
            else Path(here.anchor)
        ],
        follow_links=args.follow_links,
        allowed_hosts=[*args.allow_host, host_of(args.path)],  # what a person types is the person's own word
    )
    named = Path(args.path).expanduser()
    if named.is_absolute() and named.anchor != here.anchor:
        folders = replace(folders, extra_read=(*folders.extra_read, Path(named.anchor)))
    return HeadlessHost(folders, "cpu", Terminal(sys.stderr))


def _is_tars(text: str) -> bool:
    path = Path(text)
    if path.is_dir():
        return any(path.glob("*.tar")) and not _has_pictures(path)
    return True


def _has_pictures(folder: Path) -> bool:
    from cascade_train.data.names import is_picture

    return any(is_picture(path.name) for path in folder.iterdir())


def _inspect(args: argparse.Namespace) -> int:
    from cascade_train.data.buckets import parse_ratio
    from cascade_train.data.dataset import open_dataset
    from cascade_train.data.entry import printable
    from cascade_train.data.filters.expression import expression_filters
    from cascade_train.data.filters.near_duplicates import duplicate_filters
    from cascade_train.data.sources import folder_dataset, tars_dataset
    from cascade_train.data.spec import REFERENCE_RATIOS, BucketSpec, CaptionSpec

    host = _host(args)
    path = args.path if "://" in args.path else str(_named(args.path))
    if _is_tars(path) and (Path(path).exists() or any(c in path for c in "{*?[:")):
        dataset = tars_dataset(path, shuffle=1, host=host, ending=args.ending)
    else:
        dataset = folder_dataset(path, recursive=not args.flat, host=host, ending=args.ending)
    ratios = tuple(item.strip() for item in args.ratios.split(",") if item.strip()) or REFERENCE_RATIOS
    for ratio in ratios:
        parse_ratio(ratio)
    dataset = dataset.with_filters(
        *expression_filters("\n".join(args.filter)), *duplicate_filters(args.duplicates)
    )
    dataset = replace(
        dataset.with_captions(CaptionSpec(source=args.captions, field=args.field)),
        buckets=BucketSpec(size=args.size, ratios=ratios),
        max_bad=1.0,
    )
    multiple, side = (8, 64) if args.nano else (32, 768)
    host.sink.warn = lambda text: None  # the report says it all
    opened = open_dataset(dataset, multiple=multiple, native_side=side, host=host, strict=False)
    lines: list[Listed] = []
    report = _report(opened, args, host.progress, lines)
    stray = _beside_tars(Path(path)) if "://" not in path and Path(path).is_dir() and _is_tars(path) else []
    report = replace(report, unused=(*stray, *report.unused))
    host.sink._clear()
    notes = opened.notes(args.batch_size) if report.samples else ()
    long, said = _too_long(opened, args.nano, lines, host) if report.samples else (None, "")
    notes = (*notes, said) if said else notes
    if args.preview and report.samples:
        from cascade_train.jobs.prepare import samples_grid

        if dataset.streamed:  # a stream stops at a sample without caption
            spec = replace(dataset.captions, fallback="empty")
            opened = open_dataset(dataset.with_captions(spec), multiple=multiple, native_side=side, host=host)
        args.preview.parent.mkdir(parents=True, exist_ok=True)
        samples_grid(opened, min(24, report.samples)).save(args.preview)
    for sample in lines if args.listed else ():
        print(json.dumps(sample.data(), ensure_ascii=False) if args.json else sample.line())
    if not (args.listed and args.json):
        print(report.text())
        for name, reason in report.unused if args.listed else ():
            print(f"not used: {printable(name)} ({reason})")
        for note in notes:
            print(f"note: {plain(note)}")
    if args.json:
        print(
            json.dumps(
                {
                    "path": args.path,
                    **report.data(),
                    "too_long": long,
                    "notes": list(notes),
                    "digest": dataset.digest,
                },
                ensure_ascii=False,
            )
        )
    return 0


def _too_long(opened: OpenDataset, nano: bool, lines: list[Listed], host: Any) -> tuple[int | None, str]:
    """How many captions the text encoder does not read to their end (None: not counted), and a line of it."""
    from cascade_train.models.captions import too_long
    from cascade_train.models.clip import load_tokenizer
    from cascade_train.models.library import nano_folder
    from cascade_train.training.too_long import in_dataset

    try:
        tokenizer = load_tokenizer(nano_folder() / "text" if nano else Path(__file__))
    except CascadeError:
        how = "pip install 'cascade-train[clip]'"
        return None, f"captions longer than CLIP's 77 tokens are not counted: there is no tokenizer ({how})"
    if opened.dataset.streamed:
        found = too_long(tokenizer, [caption for line in lines for caption in line.captions], "cut")
    else:
        found = in_dataset(tokenizer, opened, "cut", host)
        host.sink._clear()
    return found.count, found.line("cut")


def _named(text: str) -> Path:
    """The path that a person typed, with ``/`` or ``\\`` between folders."""
    from cascade_train.host.base import slashed

    path = Path(text).expanduser()
    return path if path.exists() else Path(slashed(text)).expanduser()


def _beside_tars(folder: Path) -> list[tuple[str, str]]:
    """(name, reason) of what lies in a folder of tars and is none, but for their indexes."""
    from cascade_train.data.unused import OTHER

    return [
        (path.name, OTHER)
        for path in sorted(folder.iterdir())
        if path.suffix != ".tar" and not path.name.endswith(".tar.index")
    ]


def _report(opened: Any, args: argparse.Namespace, progress: Progress, lines: list[Listed]) -> Report:
    """What there is; with ``--list`` samples are added to ``lines``, and every file that is none is named."""
    from cascade_train.data.listing import listed, survey_listed, unlisted

    if opened.dataset.streamed:
        most = max(0, args.limit)
        # captions are looked at for their length where their number is bounded
        return survey_listed(opened, lines if args.listed or most else None, most, args.decode, progress)
    damaged: dict[int, tuple[str, str]] = {}
    report = _decoded(opened, progress, damaged) if args.decode else opened.report
    if args.listed:
        lines += listed(opened, damaged)
        report = replace(report, unused=(*report.unused, *unlisted(opened), *damaged.values()))
    return report


def _decoded(opened: OpenDataset, progress: Progress, damaged: dict[int, tuple[str, str]]) -> Report:
    """The report after decoding every picture; those that cannot be are added to ``damaged``."""
    from cascade_train.data.report import Tally

    found = Tally()

    def look(sample: int) -> tuple[str, str]:
        return opened.key(sample), opened.trouble(sample)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for first in range(0, len(opened), _CHUNK):
            numbers = range(first, min(first + _CHUNK, len(opened)))
            for sample, (key, trouble) in zip(numbers, pool.map(look, numbers)):
                if trouble:
                    found.add(trouble, key)
                    damaged[sample] = key, trouble
            progress(numbers[-1] + 1, len(opened), f"decoded {numbers[-1] + 1} of {len(opened)} pictures")
    report = opened.report
    return replace(
        report,
        samples=report.samples - found.total,
        epoch=report.epoch - found.total,
        bad=(*report.bad, *found.counts()),
    )


def _pack(args: argparse.Namespace) -> int:
    from cascade_train.data.folder import index_folder
    from cascade_train.data.pack import pack
    from cascade_train.data.readers import FolderReader
    from cascade_train.data.sources import picture_ending
    from cascade_train.host.progress import progress_of

    host = _host(args)
    root = _named(args.path)
    progress = progress_of(host)
    ending, links = picture_ending(args.ending), host.folders.link_roots()
    index = index_folder(root, not args.flat, host.folders.cache / "index", progress, ending, links)
    reader = FolderReader(root, index)
    done = pack(reader, args.out.expanduser(), shard_bytes=int(args.shard_size * 1e6), progress=progress)
    host.sink._clear()
    for shard in done.shards:
        print(f"{shard}  {shard.stat().st_size / 1e6:.1f} MB")
    print(f"{done.samples} samples in {len(done.shards)} shard{'s' if len(done.shards) != 1 else ''}")
    for count in done.bad:
        print(f"left out: {count.line()}")
    if args.json:
        print(
            json.dumps(
                {
                    "shards": [str(shard) for shard in done.shards],
                    "samples": done.samples,
                    "bad": sum(count.count for count in done.bad),
                    "dropped": 0,
                    "bad_files": [{"name": name, "reason": c.reason} for c in done.bad for name in c.names],
                },
                ensure_ascii=False,
            )
        )
    return 0
