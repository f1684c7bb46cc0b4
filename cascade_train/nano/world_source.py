"""nano's procedural world as a source of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from cascade_train.data.entry import Entry
from cascade_train.data.readers import Reader, opens
from cascade_train.data.spec import CaptionSpec, Source
from cascade_train.host.progress import Progress
from cascade_train.nano.canvas import SIDE
from cascade_train.nano.world import SCENES, render, scene


@dataclass(frozen=True)
class WorldSource(Source):
    """Pictures drawn by nano's procedural world: samples 0 … count−1 of ``kind`` under ``seed``."""

    kind: str
    seed: int
    count: int


class WorldReader(Reader):
    """The world, drawn when asked for."""

    own_captions: ClassVar[bool] = True
    remembered = False

    def __init__(self, source: WorldSource) -> None:
        self.source = source
        self.label = f"world {source.kind}"

    @property
    def content(self) -> str:
        return f"{self.source.kind} {self.source.seed}"

    def __len__(self) -> int:
        return self.source.count

    def rows(self) -> Iterator[Entry]:
        return (self.row(row) for row in range(self.source.count))

    def row(self, row: int) -> Entry:
        return Entry(f"{row}", crc=row, width=SIDE, height=SIDE, row=row)

    def read(self, entry: Entry) -> bytes:
        return self._draw(entry)[0].tobytes()

    def pixels(
        self, entry: Entry, background: tuple[int, int, int], need: tuple[int, int] | None
    ) -> np.ndarray:
        return self._draw(entry)[0]

    def captions(self, entry: Entry, spec: CaptionSpec) -> tuple[str, ...]:
        if self.source.kind not in SCENES:
            return (self._draw(entry)[1],)
        return (scene(self.source.kind, self.source.seed, entry.row)[1],)

    def load(
        self,
        entry: Entry,
        background: tuple[int, int, int],
        need: tuple[int, int] | None,
        spec: CaptionSpec,
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        pixels, caption = self._draw(entry)
        return pixels, (caption,)

    def _draw(self, entry: Entry) -> tuple[np.ndarray, str]:
        return render(self.source.kind, self.source.seed, entry.row)


@opens(WorldSource)
def _open_world(source: WorldSource, cache: Path, progress: Progress) -> Reader:
    return WorldReader(source)
