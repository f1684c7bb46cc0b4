"""Which tars a person means: paths, lists, brace ranges, globs, ``.yml`` lists, ``file:`` and remote URLs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

from cascade_train.data.hosts import check_url
from cascade_train.errors import CascadeError
from cascade_train.host.base import slashed

if TYPE_CHECKING:
    from cascade_train.host.base import Folders

REMOTE = ("s3", "gs", "gcs", "hf", "http", "https", "az", "abfs")
"""Schemes read through fsspec."""

MOST_SHARDS = 100_000
MOST_LETTERS = 1 << 25
"""All names together, in characters."""
MOST_LISTS = 100
LIST_BYTES = 4 << 20
"""Largest ``.yml`` list, in bytes."""
_DEEPEST, _WIDEST = 20, 18
"""Lists inside lists; digits of a number in a range."""
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$", re.ASCII)


def expand_braces(text: str, most: int = MOST_SHARDS) -> list[str]:
    """``a{00..02}.tar`` → a00, a01, a02; ``{x,y}`` → both; several multiply.

    Raises:
        CascadeError: a range that runs backwards, or more than ``most`` names, told before they are made.
    """
    shown = text if len(text) <= 80 else text[:79] + "…"
    pieces = _BRACES.split(text)
    choices: list[Sequence[str]] = []
    total, longest = 1, 0
    for number, piece in enumerate(pieces):
        options: Sequence[str] = (piece,)
        if number % 2:
            span = _RANGE.match(piece)
            if span:
                options = _numbers(span[1], span[2], most, shown)
            else:
                options = piece.split(",") if "," in piece else ("{" + piece + "}",)
        choices.append(options)
        total *= len(options)
        longest += max(map(len, options))
        if total > most or total * longest > MOST_LETTERS:
            raise CascadeError(f"the braces name more than {most} shards, or too long names", where=shown)
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(first: str, last: str, most: int, shown: str) -> list[str]:
    """The numbers from ``first`` to ``last``, padded with zeros as they are."""
    if max(len(first), len(last)) > _WIDEST:
        raise CascadeError(f"a number of more than {_WIDEST} digits in a range", where=shown)
    low, high = int(first), int(last)
    if high < low:
        raise CascadeError(f"the range {{{first}..{last}}} runs backwards", where=shown)
    if high - low >= most:
        raise CascadeError(f"the range names more than {most} shards", where=shown)
    width = len(first) if first.startswith("0") or len(first) == len(last) else 0
    return [str(value).zfill(width) for value in range(low, high + 1)]


def expand(text: str, folders: Folders) -> list[Path | str]:
    """The shards that ``text`` (one entry a line) names: local tars as paths, remote ones as URLs.

    Raises:
        CascadeError: an entry that starts a program, a scheme that is not known, a remote address that is
            none or leads to a host that is not allowed (`hosts`), a file that is missing or may not be read,
            a glob that matches nothing, too many entries, or no entry at all.
    """
    found = _Expansion(folders)
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith("#"):
            found.add(entry)
    if not found.shards:
        raise CascadeError(
            "no tar is named", fix="Give a path, a range such as shards/{0000..0007}.tar, or a URL"
        )
    return found.shards


class _Expansion:
    """The shards that entries name, in order; limits hold for all entries together."""

    def __init__(self, folders: Folders) -> None:
        self.shards: list[Path | str] = []
        self._folders = folders
        self._lists = self._letters = 0

    def add(self, entry: str, beside: Path | None = None, depth: int = 0) -> None:
        """Add what ``entry`` names; relative paths are looked up in the folder ``beside`` first."""
        if entry.lower().startswith("pipe:") or entry.startswith("|") or entry.rstrip().endswith("|"):
            raise CascadeError(
                f"'{entry}' would start a program, which a dataset never does",
                fix="Name the tar itself: a path, or an s3://, gs://, hf:// or http(s):// URL",
            )
        scheme = _SCHEME.match(entry)
        kind = scheme[1].lower() if scheme else ""
        if kind in REMOTE:
            if "://" not in entry:
                raise CascadeError(f"'{entry}' is no remote address", fix=f"Write {kind}://…")
            for url in self._named(entry):
                check_url(url, self._folders.allowed_hosts)
                self._take(url)
            return
        if kind == "file":
            entry = _file_path(entry)
        elif kind and "://" in entry:
            raise CascadeError(
                f"'{entry}' has a scheme that is not known", fix=f"Known: file, {', '.join(REMOTE)}"
            )
        for name in self._named(entry):
            self._local(name, beside, depth)

    def _named(self, entry: str) -> list[str]:
        names = expand_braces(entry)
        self._letters += sum(map(len, names))
        if self._letters > MOST_LETTERS:
            raise CascadeError("the names of the shards are too long together")
        return names

    def _take(self, shard: Path | str) -> None:
        self.shards.append(shard)
        if len(self.shards) > MOST_SHARDS:
            raise CascadeError(f"more than {MOST_SHARDS} shards are named")

    def _local(self, name: str, beside: Path | None, depth: int) -> None:
        name = slashed(name)
        if beside is not None and not Path(name).is_absolute() and not name.startswith("bundled/"):
            near = beside / name
            if near.exists() or any(c in name for c in "*?["):
                name = str(near)
        if any(c in name for c in "*?[") and not Path(name).exists():
            for tar in _glob(name, self._folders):
                self._take(tar)
            return
        path = self._folders.resolve_read(name, "tar")
        if path.is_dir():
            tars = sorted(path.glob("*.tar"))
            if not tars:
                raise CascadeError(
                    "the folder holds no tar",
                    where=str(path),
                    fix="For pictures in a folder use Image Folder",
                )
            for tar in tars:
                self._take(self._folders.resolve_read(str(tar), "tar"))
        elif path.suffix.lower() in (".yml", ".yaml"):
            self._listed(path, depth)
        else:
            self._take(path)

    def _listed(self, path: Path, depth: int) -> None:
        if depth >= 3:
            raise CascadeError("lists of tars name each other too deeply", where=str(path))
        self._lists += 1
        if self._lists > MOST_LISTS:
            raise CascadeError(f"more than {MOST_LISTS} lists of tars are named", where=str(path))
        for entry in listed(path):
            self.add(entry.strip(), path.parent, depth + 1)


def _file_path(url: str) -> str:
    rest = url[len("file:") :]
    if not rest.startswith("//"):
        return rest
    return url2pathname("/" + rest[2:].partition("/")[2])


def _glob(pattern: str, folders: Folders) -> Iterator[Path]:
    whole = Path(pattern)
    parts = whole.parts
    if parts.count("**") > 1:
        raise CascadeError(f"'{pattern}' holds more than one **", fix="Name the folders in between")
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


def listed(path: Path) -> list[str]:
    """The texts in a YAML list of tars, however they are nested in lists and under keys.

    The file is read as a stream of events and nothing is built from it, so that nothing can multiply: what
    stands in it twice by an alias is refused, and so are tags.

    Raises:
        CascadeError: it is no such list, is too large, or names nothing.
    """
    import yaml

    where = str(path)
    if path.stat().st_size > LIST_BYTES:
        raise CascadeError(
            f"the list of tars is larger than {LIST_BYTES >> 20} MiB", where=where, fix="Use a range {0..9}"
        )
    found: list[str] = []
    try:
        text = path.read_text(encoding="utf-8")
        plain = yaml.SafeLoader("")
        keys: list[
            bool | None
        ] = []  # of each list and mapping around: whether a key comes next, None in lists
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
                raise ValueError(f"{_line(event)}aliases and tags have no place in it")
            if isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                keys.pop()
            is_key = bool(keys and keys[-1])
            if isinstance(event, yaml.NodeEvent) and keys and keys[-1] is not None:
                keys[-1] = not keys[-1]
            if isinstance(event, yaml.CollectionStartEvent):
                keys.append(True if isinstance(event, yaml.MappingStartEvent) else None)
                if len(keys) > _DEEPEST:
                    raise ValueError(f"{_line(event)}lists are nested too deeply")
            elif isinstance(event, yaml.ScalarEvent) and not is_key:
                kind = plain.resolve(yaml.ScalarNode, event.value, event.implicit)
                if kind == "tag:yaml.org,2002:str":
                    found.append(event.value)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise CascadeError("the list of tars is no valid YAML", where=where, fix=why) from error
    if not found:
        raise CascadeError(
            "the list of tars is empty", where=where, fix="Write one '- path/or/url.tar' a line"
        )
    return found


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}: " if event.start_mark else ""
