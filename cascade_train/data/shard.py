"""What a tar holds, by its headers alone: samples, and what is left over. Indexes and streams read it so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from cascade_train.data.entry import printable, split_ending
from cascade_train.data.members import CUT, CUT_BEHIND, DAMAGED, Member, members, read_member
from cascade_train.data.names import TEXTS, Group, aside, grouped, slash_path
from cascade_train.data.said import TEXT_LIMIT, Said
from cascade_train.data.unused import HIDDEN, OTHER, Unused
from cascade_train.host.progress import Progress, silent


@dataclass(slots=True)
class ShardSample:
    """A sample of a tar: its picture, (ending, text) beside it, and why it cannot be used.

    Without a picture it is texts alone, which is bad. ``picture.name`` has ``/`` between folders.
    """

    picture: Member | None
    texts: list[tuple[str, Member]] = field(default_factory=list)
    bad: str = ""

    @property
    def name(self) -> str:
        return (self.picture or self.texts[0][1]).name


@dataclass
class Shard:
    """Samples in the order of the tar, what is not used, and what is wrong with the tar as a whole."""

    samples: list[ShardSample]
    unused: Unused
    troubles: list[str]


def read_shard(path: Path, ending: str = "", progress: Progress = silent) -> Shard:
    """The samples in the tar at ``path``; of pictures that share a key the one with ``ending``.

    Raises:
        CascadeError: it is empty, compressed, or no tar.
        OSError: it cannot be read.
    """
    unused = Unused()
    troubles: list[str] = []
    found: dict[str, Member] = {}
    for member in members(path, progress):
        if not member.name:
            troubles.append(member.bad)
            continue
        name = slash_path(member.name)
        kind = split_ending(name)[1].lower()
        if aside(name):
            unused.add(HIDDEN, printable(name))
        elif kind in TEXTS and member.size > TEXT_LIMIT and not member.bad:
            unused.add(OTHER, printable(name), kind)
        else:
            bad = "the same name twice" if name in found else member.bad
            found[name] = replace(member, name=_shown(member.name), bad=bad)
    names, files = list(found), list(found.values())
    groups = grouped(names, ending)
    if any(files[number].bad == CUT for number in groups.others):
        troubles.append(CUT_BEHIND)
    unused.add_left(groups, names)
    samples = [(group.picture, _sample(group, files)) for group in groups.samples]
    samples += _partnerless(groups.orphans, names, files)
    samples.sort(key=lambda item: item[0])
    whole = [sample for _, sample in samples]
    if (
        troubles and troubles[-1] != DAMAGED and whole and not whole[-1].texts
    ):  # what lay beside it is behind the cut
        whole[-1].bad = whole[-1].bad or CUT
    return Shard(whole, unused, troubles)


def _shown(name: str) -> str:
    return name.replace("\\", "/")


def _sample(group: Group, files: list[Member]) -> ShardSample:
    picture = files[group.picture]
    return ShardSample(picture, [(kind, files[number]) for kind, number in group.texts], picture.bad)


def _partnerless(
    orphans: Iterable[int], names: list[str], files: list[Member]
) -> list[tuple[int, ShardSample]]:
    """Texts without a picture, those of one stem together."""
    by_stem: dict[str, tuple[int, ShardSample]] = {}
    for number in orphans:
        stem, kind = split_ending(names[number])
        _, sample = by_stem.setdefault(stem, (number, ShardSample(None)))
        sample.texts.append((kind.lower(), files[number]))
        sample.bad = sample.bad or files[number].bad or "no picture in this sample"
    return list(by_stem.values())


def said(path: Path, sample: ShardSample) -> Said:
    """What the texts of ``sample``, in the tar at ``path``, say."""
    out = Said(bad=sample.bad)
    for kind, member in sample.texts:
        if member.bad:
            out.bad = out.bad or member.bad
            continue
        try:
            out.say(kind, read_member(path, member.offset, member.size))
        except OSError:
            out.bad = out.bad or f"{kind} cannot be read"
    return out
