"""Which tars a person means: paths, lists, brace ranges, globs, ``.yml`` lists, ``file:`` and remote URLs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

from cascade_train.errors import CascadeError
from cascade_train.host.base import slashed

if TYPE_CHECKING:
    from cascade_train.host.base import Folders

REMOTE = ("s3", "gs", "gcs", "hf", "http", "https", "az", "abfs")
"""Schemes read through fsspec."""

MOST_SHARDS = 100_000
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")


def expand_braces(text: str) -> list[str]:
    """``a{00..02}.tar`` → a00, a01, a02; ``{x,y}`` → both; several multiply.

    Raises:
        CascadeError: a range that runs backwards, or more than 100 000 names.
    """
    pieces = _BRACES.split(text)
    choices: list[list[str]] = []
    total = 1
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            choices.append([piece])
            continue
        span = _RANGE.match(piece)
        if span:
            first, last = int(span[1]), int(span[2])
            if last < first:
                raise CascadeError(f"the range {{{piece}}} runs backwards", where=text)
            total *= last - first + 1
            if total > MOST_SHARDS:
                raise CascadeError(f"the range names more than {MOST_SHARDS} shards", where=text)
            width = len(span[1]) if span[1].startswith("0") or len(span[1]) == len(span[2]) else 0
            choices.append([str(value).zfill(width) for value in range(first, last + 1)])
        elif "," in piece:
            choices.append(piece.split(","))
            total *= len(choices[-1])
        else:
            choices.append(["{" + piece + "}"])
    return ["".join(parts) for parts in itertools.product(*choices)]


def expand(text: str, folders: Folders) -> list[Path | str]:
    """The shards that ``text`` (one entry a line) names: local tars as paths, remote ones as URLs.

    Raises:
        CascadeError: an entry that starts a program, a scheme that is not known, a file that is missing or
            may not be read, a glob that matches nothing, or no entry at all.
    """
    out: list[Path | str] = []
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith("#"):
            out.extend(_expand_entry(entry, folders, None, 0))
    if not out:
        raise CascadeError(
            "no tar is named", fix="Give a path, a range such as shards/{0000..0007}.tar, or a URL"
        )
    if len(out) > MOST_SHARDS:
        raise CascadeError(f"more than {MOST_SHARDS} shards are named")
    return out


def _expand_entry(entry: str, folders: Folders, beside: Path | None, depth: int) -> Iterator[Path | str]:
    if entry.lower().startswith("pipe:") or entry.startswith("|") or entry.rstrip().endswith("|"):
        raise CascadeError(
            f"'{entry}' would start a program, which a dataset never does",
            fix="Name the tar itself: a path, or an s3://, gs://, hf:// or http(s):// URL",
        )
    scheme = _SCHEME.match(entry)
    kind = scheme[1].lower() if scheme else ""
    if kind in REMOTE:
        yield from expand_braces(entry)
        return
    if kind == "file":
        entry = _file_path(entry)
    elif kind and "://" in entry:
        raise CascadeError(
            f"'{entry}' has a scheme that is not known", fix=f"Known: file, {', '.join(REMOTE)}"
        )
    for name in expand_braces(entry):
        yield from _local(name, folders, beside, depth)


def _file_path(url: str) -> str:
    rest = url[len("file:") :]
    if not rest.startswith("//"):
        return rest
    return url2pathname("/" + rest[2:].partition("/")[2])


def _local(name: str, folders: Folders, beside: Path | None, depth: int) -> Iterator[Path | str]:
    name = slashed(name)
    if beside is not None and not Path(name).is_absolute() and not name.startswith("bundled/"):
        near = beside / name
        if near.exists() or any(c in name for c in "*?["):
            name = str(near)
    if any(c in name for c in "*?[") and not Path(name).exists():
        yield from _glob(name, folders)
        return
    path = folders.resolve_read(name, "tar")
    if path.is_dir():
        tars = sorted(path.glob("*.tar"))
        if not tars:
            raise CascadeError(
                "the folder holds no tar", where=str(path), fix="For pictures in a folder use Image Folder"
            )
        yield from (folders.resolve_read(str(tar), "tar") for tar in tars)
    elif path.suffix.lower() in (".yml", ".yaml"):
        yield from _listed(path, folders, depth)
    else:
        yield path


def _glob(pattern: str, folders: Folders) -> Iterator[Path]:
    whole = Path(pattern)
    parts = whole.parts
    fixed = next(number for number, part in enumerate(parts) if any(c in part for c in "*?["))
    base_text = str(Path(*parts[:fixed])) if fixed else ""
    roots = (
        [folders.resolve_read(base_text, "tar folder")]
        if base_text
        else [root for root in folders.readable_roots() if root.is_dir()]
    )
    for root in roots:
        found = sorted(path for path in root.glob(str(Path(*parts[fixed:]))) if path.is_file())
        if found:
            yield from (folders.resolve_read(str(path), "tar") for path in found)
            return
    raise CascadeError(f"'{pattern}' matches no file", fix=f"Looked in {', '.join(map(str, roots[:3]))}")


def _listed(path: Path, folders: Folders, depth: int) -> Iterator[Path | str]:
    import yaml

    if depth >= 3:
        raise CascadeError("lists of tars name each other too deeply", where=str(path))
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CascadeError("the list of tars is no valid YAML", where=str(path), fix=str(error)) from error
    entries = list(_strings(content))
    if not entries:
        raise CascadeError(
            "the list of tars is empty", where=str(path), fix="Write one '- path/or/url.tar' a line"
        )
    for entry in entries:
        yield from _expand_entry(entry.strip(), folders, path.parent, depth + 1)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
