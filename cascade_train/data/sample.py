"""A sample as filters see it: what is known of it, and what can be found out about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from cascade_train.data.entry import WRITTEN, Entry
from cascade_train.data.measures import Measure
from cascade_train.errors import CascadeError

if TYPE_CHECKING:
    import numpy as np


class Unusable(Exception):
    """A sample that is bad, whatever filters say; the message is a short reason."""


class Origin(Protocol):
    """Where a sample's bytes and pixels come from: a source opened for reading, or the bytes themselves."""

    @property
    def remembered(self) -> bool:
        """Whether what is found out about its pictures is worth keeping on disk."""
        ...

    def read(self, entry: Entry) -> bytes: ...

    def known(self, entries: Sequence[Entry]) -> list[str]:
        """What `whole` gives of each, as far as it is known without reading; else ""."""
        ...

    def whole(self, entry: Entry) -> str:
        """Names the whole content of a picture; OSError when it has to be read for that and cannot be."""
        ...

    def later(self, entry: Entry) -> Callable[[], bytes] | None:
        """What reads the sample when others have gone by; None where its bytes are gone by then."""
        ...

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray: ...


Captions = Callable[[Entry], "tuple[str, ...] | None"]
"""A sample's captions by the dataset's rule; None where it has none and none may be made up."""


class Sample:
    """What a filter may ask of one sample. ``values`` are what was measured of it, by the measure's key."""

    def __init__(self, entry: Entry, origin: Origin, captions: Captions) -> None:
        self.entry = entry
        self.origin = origin
        self.values: dict[str, float] = {}
        self._captions = captions

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Its own width, height, aspect, file_size and file_name, else its metadata, else the text files
        beside it by their ending (``txt``)."""
        entry = self.entry
        fields: dict[str, Any] = {kind[1:]: text.strip() for kind, text in entry.caption_files().items()}
        fields.update((key, value) for key, value in entry.metadata().items() if value is not None)
        fields.pop(WRITTEN, None)
        fields.update(
            width=entry.width,
            height=entry.height,
            aspect=entry.width / max(entry.height, 1),
            file_size=entry.size,
            file_name=entry.name,
        )
        return fields

    @cached_property
    def captions(self) -> tuple[str, ...] | None:
        """All its captions before one is drawn and varied; None where it has none.

        Raises:
            Unusable: the person's caption expression fails for this sample.
            CascadeError: the caption rule is wrong for any sample.
        """
        try:
            return self._captions(self.entry)
        except CascadeError:
            raise
        except Exception as error:  # whatever the person's expression does with this sample's values
            raise Unusable(f"caption expression: {error}") from error

    def measure(self, measure: Measure) -> float:
        """The result of a measure that the filter named in its ``measures``."""
        if measure.key not in self.values:
            raise LookupError(f"a filter that asks for {measure.name} names it in its measures")
        return self.values[measure.key]

    def data(self) -> bytes:
        """The picture file's bytes; OSError when they can no longer be read."""
        return self.origin.read(self.entry)
