"""What every filter of samples is: a frozen dataclass that says which samples a dataset keeps.

A filter is part of the dataset's digest. A new one is a module beside this one with a subclass of `Filter`;
nothing else in the data room need know it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from cascade_train.data.measures import Measure
from cascade_train.data.sample import Sample

Judge = Callable[[Sample], bool]
"""Whether a sample is kept; it may raise `Dropped` with a reason of its own."""


class Dropped(Exception):
    """A sample that a filter leaves out; the message is the reason, which the report counts by."""


class Filter:
    """Subclasses are frozen dataclasses and have `keep`, or `judge` where they look at more than one sample.

    Filters apply in order, each to what those before it keep, to files and to streams alike.
    """

    on_streams: ClassVar[str] = ""
    """What is different where shards are streamed, one line for the person; "" for nothing."""

    remembers: ClassVar[bool] = False
    """Whether what `judge` says of a sample depends on the samples before it."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What has to be measured of a picture before `keep` is asked: it is decoded once for all of it."""
        return ()

    @property
    def reason(self) -> str:
        """Why samples are left out, as the report says it."""
        return f"not {self}"

    def keep(self, sample: Sample) -> bool:
        """Whether ``sample`` is kept.

        Raises:
            Dropped: it is not, for another reason than `reason`.
            Unusable, OSError: it is bad.
        """
        raise NotImplementedError(f"{type(self).__name__} says neither keep nor judge")

    def judge(self) -> Judge:
        """What judges the samples of one way through the dataset, in order; made anew for each."""
        return self.keep
