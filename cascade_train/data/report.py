"""What a dataset holds and what it left out, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_train.errors import plain

NAMED = 10
"""How many examples a report names."""


@dataclass(frozen=True)
class Count:
    """So many samples for one reason, with the first names."""

    reason: str
    count: int
    names: tuple[str, ...] = ()

    def line(self) -> str:
        more = ", …" if self.count > len(self.names) else ""
        return f"{self.count} {self.reason}" + (f": {', '.join(self.names)}{more}" if self.names else "")


class Tally:
    """Counts by reason while samples go by."""

    def __init__(self, data: Mapping[str, tuple[int, list[str]]] | None = None) -> None:
        known = data or {}
        self._counts: dict[str, int] = {reason: count for reason, (count, _) in known.items()}
        self._names: dict[str, list[str]] = {reason: list(names) for reason, (_, names) in known.items()}

    def data(self) -> dict[str, tuple[int, list[str]]]:
        """(count, names) by reason, as JSON values."""
        return {reason: (count, self._names[reason]) for reason, count in self._counts.items()}

    def merge(self, other: Tally) -> None:
        """Count what ``other`` counted."""
        for reason, (count, names) in other.data().items():
            self.add(reason, "", count)
            self._names[reason] = (self._names[reason] + names)[:NAMED]

    def add(self, reason: str, name: str, count: int = 1) -> None:
        self._counts[reason] = self._counts.get(reason, 0) + count
        names = self._names.setdefault(reason, [])
        if name and len(names) < NAMED:
            names.append(name)

    def __bool__(self) -> bool:
        return bool(self._counts)

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def counts(self) -> tuple[Count, ...]:
        return tuple(
            Count(reason, count, tuple(self._names[reason]))
            for reason, count in sorted(self._counts.items(), key=lambda item: -item[1])
        )


@dataclass
class Tallies:
    """What is counted while samples are chosen."""

    bad: Tally = field(default_factory=Tally)
    dropped: Tally = field(default_factory=Tally)
    uncaptioned: Tally = field(default_factory=Tally)
    captioned: int = 0
    several: int = 0
    empty: int = 0

    def add(self, other: Tallies) -> None:
        """Count what ``other`` counted."""
        self.bad.merge(other.bad)
        self.dropped.merge(other.dropped)
        self.uncaptioned.merge(other.uncaptioned)
        self.captioned += other.captioned
        self.several += other.several
        self.empty += other.empty

    def data(self) -> dict[str, Any]:
        """The counts as JSON values, which `from_data` takes."""
        return {
            "bad": self.bad.data(),
            "dropped": self.dropped.data(),
            "uncaptioned": self.uncaptioned.data(),
            "captioned": self.captioned,
            "several": self.several,
            "empty": self.empty,
        }

    @staticmethod
    def from_data(told: Mapping[str, Any]) -> Tallies:
        tallies = Tallies(Tally(told["bad"]), Tally(told["dropped"]), Tally(told["uncaptioned"]))
        tallies.captioned, tallies.several, tallies.empty = told["captioned"], told["several"], told["empty"]
        return tallies


@dataclass(frozen=True)
class BucketCount:
    """A bucket in pixels, its latent grid, and how many samples it holds."""

    width: int
    height: int
    columns: int
    rows: int
    samples: int

    def line(self) -> str:
        return f"{self.width}×{self.height} px ({self.columns}×{self.rows} latents): {self.samples}"


@dataclass(frozen=True)
class Report:
    """``samples`` can be drawn, ``epoch`` is that times repeats; ``bad`` could not be used, ``dropped`` were
    left out on purpose."""

    samples: int
    epoch: int
    bad: tuple[Count, ...] = ()
    dropped: tuple[Count, ...] = ()
    buckets: tuple[BucketCount, ...] = ()
    captioned: int = 0
    several_captions: int = 0
    empty_captions: int = 0
    warnings: tuple[str, ...] = ()
    streamed: bool = False
    unused: tuple[tuple[str, str], ...] = ()
    """(name, reason) of each file that is neither a sample nor a part of one."""

    @property
    def bad_count(self) -> int:
        return sum(item.count for item in self.bad)

    @property
    def dropped_count(self) -> int:
        return sum(item.count for item in self.dropped)

    def text(self) -> str:
        """The report as lines for a person."""
        if self.streamed and not (self.samples or self.bad or self.dropped):
            lines = ["streamed samples: their number is not known before they are read"]
        else:
            repeated = f", {self.epoch} an epoch with repeats" if self.epoch != self.samples else ""
            lines = [f"{self.samples} sample{'' if self.samples == 1 else 's'}{repeated}"]
        if self.captioned:
            several = f", {self.several_captions} with several" if self.several_captions else ""
            empty = f", {self.empty_captions} empty" if self.empty_captions else ""
            lines.append(f"captions: {self.captioned}{several}{empty}")
        if self.buckets:
            lines += ["buckets:", *(f"  {bucket.line()}" for bucket in self.buckets)]
        for title, counts in (("bad, skipped", self.bad), ("dropped", self.dropped)):
            if counts:
                lines += [
                    f"{title}: {sum(item.count for item in counts)}",
                    *(f"  {item.line()}" for item in counts),
                ]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(map(plain, lines))

    def data(self) -> dict[str, Any]:
        """The report as JSON values; ``bad`` and ``dropped`` are totals, with the reasons beside them."""

        def listed(counts: tuple[Count, ...]) -> list[dict[str, Any]]:
            return [{"reason": c.reason, "count": c.count, "names": list(c.names)} for c in counts]

        return {
            "samples": self.samples,
            "epoch": self.epoch,
            "bad": self.bad_count,
            "dropped": self.dropped_count,
            "bad_files": [{"name": name, "reason": c.reason} for c in self.bad for name in c.names],
            "bad_reasons": listed(self.bad),
            "dropped_reasons": listed(self.dropped),
            "captions": {
                "samples": self.captioned,
                "several": self.several_captions,
                "empty": self.empty_captions,
            },
            "buckets": [
                {"width": b.width, "height": b.height, "latents": [b.columns, b.rows], "samples": b.samples}
                for b in self.buckets
            ],
            "warnings": list(self.warnings),
            "unused": [{"name": name, "reason": reason} for name, reason in self.unused],
            "streamed": self.streamed,
        }
