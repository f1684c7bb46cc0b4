"""How names of files make samples: known endings, keys, which names mean the same, which picture is meant.

Folders, tars and streams all go by these rules. A *key* is the path of a picture without its ending. An
ending is one that is known here; whatever else a dot stands in (a date, a version) belongs to the key.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from cascade_train.data.entry import printable, split_ending
from cascade_train.rasters import EXTENSIONS

TEXTS = frozenset((".txt", ".caption", ".captions", ".cap", ".tags", ".text", ".json"))
"""Endings of captions and metadata beside a picture."""

TABLES = frozenset((".jsonl", ".csv", ".tsv", ".parquet"))

EVERY = "all"
"""In place of an ending: each picture is a sample of its own, whatever key it shares."""

_PICTURES = frozenset(EXTENSIONS)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_COMPANIONS = frozenset(
    (
        *("mask", "masks", "alpha", "matte", "depth", "normal", "normals", "seg", "segmentation", "canny"),
        *("edge", "edges", "pose", "openpose", "cond", "conditioning", "control", "sketch", "lineart"),
        *("thumb", "thumbnail", "preview"),
    )
)
"""What stands before the ending of a picture that accompanies another (``0005.mask.png``, ``0005.png``)."""

_SYSTEM = frozenset(
    (
        *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp", "$recycle.bin"),
        *("recycler", "system volume information", "__macosx", "lost+found", "__pycache__"),
        *("thumbs.db", "ehthumbs.db", "desktop.ini"),
    )
)
"""Folders and files that network disks and operating systems make (casefolded)."""


def is_picture(name: str) -> bool:
    return split_ending(name)[1].lower().lstrip(".") in _PICTURES


def slash_path(name: str) -> str:
    """A path that a tar, a table or a workflow names, with ``/`` between folders and no ``./`` in front."""
    return posixpath.normpath(name.replace("\\", "/")) if name else name


def key_of(name: str) -> str:
    """The key of a picture, as one printable line."""
    name = slash_path(name)
    return printable(split_ending(name)[0] if is_picture(name) else name)


def composed(name: str) -> str:
    """``name`` with accents in one piece: macOS takes them apart (NFD), others write them so (NFC)."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def folded(name: str) -> str:
    """What names that differ in case or in the make of their accents have in common."""
    return composed(name.casefold())


def of_system(part: str) -> bool:
    """Whether a file or folder of this name (without its path) was hidden, or made by an operating system."""
    return part.startswith(".") or part.casefold() in _SYSTEM


def aside(name: str) -> bool:
    """Whether the path ``name`` leads through a hidden folder or one of an operating system, or is such."""
    return any(of_system(part) for part in name.split("/") if part not in (".", "..", ""))


@dataclass(slots=True)
class Group:
    """One sample, by numbers of names: its picture, (ending, text) beside it, pictures that share its key."""

    picture: int
    texts: list[tuple[str, int]] = field(default_factory=list)
    rivals: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Groups:
    """What names make: samples in the order of their pictures, and what is left over."""

    samples: list[Group] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)


def grouped(
    names: Sequence[str], ending: str = "", told: Callable[[str], bool] = lambda name: False
) -> Groups:
    """Sort the files called ``names`` into samples.

    Pictures of one key are one sample: that with the ``ending`` a person named, else the first in
    `rasters.EXTENSIONS`. A picture that is ``told`` of by its whole name (by a table), or has a text of its
    whole name (``cat.png.txt``), is a sample of its own. A text goes to the pictures of its stem; where there
    are none, to those whose stem differs in case or in the make of its accents.
    """
    out = Groups()
    pictures: list[int] = []
    texts: list[int] = []
    for number, name in enumerate(names):
        kind = split_ending(name)[1].lower()
        (pictures if kind.lstrip(".") in _PICTURES else texts if kind in TEXTS else out.others).append(number)
    stems = _Stems(names, pictures)
    spoken: set[int] = set()
    beside: dict[int, list[tuple[str, int]]] = {}
    whose = [(*stems.owners(names[number]), number) for number in texts]
    for owners, kind, whole, number in sorted(whose, key=lambda item: item[2]):  # whole names count for more
        if not owners:
            out.orphans.append(number)
        if whole:
            spoken.update(owners)
        for owner in owners:
            beside.setdefault(owner, []).append((kind, number))
    alone = ending == EVERY
    rivals: dict[int, list[int]] = {}
    for numbers in stems.exact.values():
        shared = [n for n in numbers if n not in spoken and not told(names[n])] if len(numbers) > 1 else []
        if len(shared) > 1 and not alone:
            first = min(shared, key=lambda n: (*_rank(names[n], ending), names[n]))
            rivals[first] = [n for n in shared if n != first]
    hidden = {n for numbers in rivals.values() for n in numbers}
    for number in pictures:
        if number in hidden or number in beside or alone or told(names[number]):
            continue
        main = next((n for n in stems.accompanied(names[number]) if n not in hidden), None)
        if main is None:
            continue
        if _rank(names[number], ending) < _rank(names[main], ending):
            beside[number] = beside.get(main, [])  # the person asked for it: it takes the other's place
            rivals[number] = [*rivals.pop(main, []), main]
            hidden.add(main)
        else:
            rivals.setdefault(main, []).append(number)
            hidden.add(number)
    for number in pictures:
        if number not in hidden:
            out.samples.append(Group(number, beside.get(number, []), rivals.get(number, [])))
    return out


def _rank(name: str, ending: str) -> tuple[bool, int, int]:
    """The order in which pictures of one key are preferred; 0 is first."""
    wanted = ending.strip().lower().lstrip(".")
    plain_ending = split_ending(name)[1].lower().lstrip(".")
    asked = bool(wanted) and name.lower().endswith("." + wanted)
    return not asked, int(_companion(name)), EXTENSIONS.index(plain_ending)


def _companion(name: str) -> bool:
    stem = split_ending(name)[0]
    return split_ending(stem)[1].lower().lstrip(".") in _COMPANIONS


class _Stems:
    """The pictures among ``names``, to be found by their stem."""

    def __init__(self, names: Sequence[str], pictures: Iterable[int]) -> None:
        self.exact: dict[str, list[int]] = {}
        self.whole: dict[str, list[int]] = {}
        for number in pictures:
            name = composed(names[number])
            self.exact.setdefault(split_ending(name)[0], []).append(number)
            self.whole.setdefault(name, []).append(number)
        self._folded: tuple[dict[str, list[int]], dict[str, list[int]]] | None = None

    def owners(self, text: str) -> tuple[list[int], str, bool]:
        """(pictures, ending, whether their whole name is meant) that a text file belongs to."""
        name = composed(text)
        found = self._find(name, self.exact, self.whole)
        if not found[0]:
            if self._folded is None:
                self._folded = _merged(self.exact), _merged(self.whole)
            found = self._find(folded(name), *self._folded)
        return found

    @staticmethod
    def _find(
        name: str, stems: dict[str, list[int]], whole: dict[str, list[int]]
    ) -> tuple[list[int], str, bool]:
        stem, kind = split_ending(name)
        while True:
            if stem in whole:
                return whole[stem], kind.lower(), True
            if stem in stems:
                return stems[stem], kind.lower(), False
            inner, more = split_ending(stem)
            if not more or not _WORD.fullmatch(more[1:]):
                return [], kind.lower(), False
            stem, kind = inner, more + kind

    def accompanied(self, name: str) -> list[int]:
        """The pictures of the key that ``name`` (``0005.mask.png``) accompanies."""
        stem = split_ending(split_ending(composed(name))[0])[0]
        return self.exact.get(stem, []) if _companion(name) else []


def _merged(numbers: dict[str, list[int]]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for name, found in numbers.items():
        out.setdefault(folded(name), []).extend(found)
    return out
