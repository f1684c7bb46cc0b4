"""Files that are neither a sample nor a part of one, counted by reason and named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cascade_train.data.entry import printable, split_ending
from cascade_train.data.names import Groups

HIDDEN = "hidden, or made by an operating system"
ORPHAN = "text without a picture"
OTHER = "neither a picture nor a text that belongs to one"
RIVAL = "another picture of the same name is used"

MOST = 10_000
"""Names kept for each source."""
_TOLD = 10


@dataclass
class Unused:
    """``names`` are the first of each reason, ``endings`` how many others there are of each ending."""

    counts: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    names: list[tuple[str, str]] = field(default_factory=list)

    def add(self, reason: str, name: str, ending: str | None = None) -> None:
        self.counts[reason] += 1
        if ending is not None:
            self.endings[ending or "without ending"] += 1
        if len(self.names) < MOST:
            self.names.append((name, reason))

    def add_left(self, groups: Groups, names: Sequence[str]) -> None:
        """Add what `names.grouped` has left over of the files called ``names``, but for texts alone, which a
        folder passes over and a tar takes for bad samples."""
        for number in groups.others:
            self.add(OTHER, printable(names[number]), split_ending(names[number])[1].lower())
        for group in groups.samples:
            for number in group.rivals:
                self.add(RIVAL, printable(names[number]))

    def data(self) -> dict[str, Any]:
        """As JSON values, which `from_data` takes."""
        return {"counts": dict(self.counts), "endings": dict(self.endings), "names": self.names}

    @staticmethod
    def from_data(told: Mapping[str, Any]) -> Unused:
        names = [(str(name), str(reason)) for name, reason in told.get("names", ())]
        return Unused(Counter(told.get("counts", {})), Counter(told.get("endings", {})), names)

    def without(self, reason: str) -> Unused:
        """All of it but what is not used for ``reason``."""
        kept = [(name, why) for name, why in self.names if why != reason]
        return Unused(Counter({why: n for why, n in self.counts.items() if why != reason}), Counter(), kept)

    def of(self, reason: str) -> tuple[str, ...]:
        """The first names of ``reason``."""
        return tuple(name for name, why in self.names if why == reason)[:_TOLD]


def warnings(found: Iterable[tuple[str, Unused]]) -> Iterator[str]:
    """What a person may want to mend in sources (label, what is not used), a line for each reason."""
    sources = [(label, unused) for label, unused in found if unused.counts]
    line = _line(RIVAL, sources)
    if line is not None:
        yield (
            f"{line[0]} pictures in {line[1]} share the name of another, which is used ('ending' names which "
            f"to use): {line[2]}"
        )
    line = _line(ORPHAN, sources)
    if line is not None:
        yield f"{line[0]} text files without a picture in {line[1]}: {line[2]}"
    line = _line(OTHER, sources)
    if line is not None:
        endings: Counter[str] = sum((unused.endings for _, unused in sources), Counter())
        counts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
        yield f"other files in {line[1]} are left alone: {counts} ({line[2]})"


def _line(reason: str, sources: list[tuple[str, Unused]]) -> tuple[int, str, str] | None:
    """(count, where, names) of what is not used for ``reason``."""
    those = [(label, unused) for label, unused in sources if unused.counts[reason]]
    if not those:
        return None
    count = sum(unused.counts[reason] for _, unused in those)
    names = [
        name if len(those) == 1 else f"{label}/{name}"
        for label, unused in those
        for name in unused.of(reason)
    ][:_TOLD]
    where = those[0][0] if len(those) == 1 else f"{len(those)} sources"
    return count, where, ", ".join(names) + (", …" if count > len(names) else "")
