"""Samples that are the same picture: byte for byte, or nearly."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cascade_train.data.index import shown
from cascade_train.data.pixels import BadImage
from cascade_train.data.readers import WorldReader
from cascade_train.data.report import Tally

if TYPE_CHECKING:
    from cascade_train.data.select import Part
    from cascade_train.data.spec import Dataset

Tell = Callable[[int, int, str], None]


def difference_hash(pixels: np.ndarray) -> int:
    """64 bits of an RGB picture (H, W, 3): whether each cell of a 9×8 reduction is brighter than its right
    neighbour (Krawetz, "Kind of Like That", 2013)."""
    import cv2

    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(gray, (9, 8), interpolation=cv2.INTER_AREA)
    bits = (small[:, :-1] > small[:, 1:]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def drop_duplicates(parts: list[Part], dataset: Dataset, dropped: Tally, tell: Tell | None = None) -> None:
    """Keep the first of every group of equal (or nearly equal) pictures in ``parts``; count the others."""
    keep = [np.ones(len(part.rows), dtype=bool) for part in parts]
    _same_bytes(parts, keep, dropped, tell)
    if dataset.duplicates == "remove near":
        _nearly_same(parts, keep, dropped, dataset.near_distance, tell)
    for part, mask in zip(parts, keep):
        part.keep(mask)


def _name(part: Part, at: int) -> str:
    return shown(part.reader.row(int(part.rows[at])).name)


def _same_bytes(parts: list[Part], keep: list[np.ndarray], dropped: Tally, tell: Tell | None) -> None:
    groups: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for number, part in enumerate(parts):
        if isinstance(part.reader, WorldReader):
            continue
        wanted = {int(row): at for at, row in enumerate(part.rows)}
        for entry in part.reader.rows():
            at = wanted.get(entry.row)
            if at is not None:
                groups[entry.size, entry.crc].append((number, at))
    done = 0
    for group in groups.values():
        if len(group) < 2:
            continue
        seen: dict[bytes, bool] = {}
        for number, at in group:
            part = parts[number]
            done += 1
            if tell and done % 256 == 0:
                tell(done, 0, f"comparing {done} pictures")
            try:
                digest = hashlib.sha256(part.reader.read(part.reader.row(int(part.rows[at])))).digest()
            except OSError:
                continue
            if digest in seen:
                keep[number][at] = False
                dropped.add("duplicate", _name(part, at))
            seen[digest] = True


def _nearly_same(
    parts: list[Part], keep: list[np.ndarray], dropped: Tally, distance: int, tell: Tell | None
) -> None:
    # Two hashes at most `distance` bits apart agree in one of distance + 1 bands of bits.
    bands = max(1, min(distance + 1, 16))
    edges = [64 * band // bands for band in range(bands + 1)]
    known: dict[tuple[int, int], list[int]] = defaultdict(list)
    total, done = sum(int(mask.sum()) for mask in keep), 0
    for number, part in enumerate(parts):
        for at in np.flatnonzero(keep[number]):
            done += 1
            if tell and done % 64 == 0:
                tell(done, total, f"comparing {done} of {total} pictures")
            entry = part.reader.row(int(part.rows[at]))
            try:
                value = difference_hash(part.reader.pixels(entry, (255, 255, 255), (72, 64)))
            except (BadImage, OSError):
                continue
            keys = [
                (band, (value >> edges[band]) & ((1 << (edges[band + 1] - edges[band])) - 1))
                for band in range(bands)
            ]
            if any((value ^ other).bit_count() <= distance for key in keys for other in known[key]):
                keep[number][at] = False
                dropped.add("near duplicate", _name(part, int(at)))
                continue
            for key in keys:
                known[key].append(value)
