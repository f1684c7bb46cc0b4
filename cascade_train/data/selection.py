"""All that can be drawn from a dataset, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cascade_train.data.readers import Reader
from cascade_train.data.report import Report
from cascade_train.data.spec import Dataset


@dataclass(frozen=True)
class Rows:
    """Which rows of one source are left (int64), their sizes in pixels (int64), and a number of each sample's
    own (uint64) from which its chances follow."""

    rows: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    chances: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass
class SourceRows:
    """A source, the dataset that describes its captions, what is left of it, and how often an epoch sees
    each of its samples."""

    reader: Reader
    dataset: Dataset
    left: Rows
    times: float = 1.0


@dataclass(frozen=True)
class Selection:
    """All that can be drawn: sample i is row ``row_of[i]`` of ``parts[part_of[i]]``, in ``bucket_of[i]``.

    An epoch sees it ``whole[i]`` times, and once more in a ``fraction[i]`` of the epochs.
    """

    parts: tuple[SourceRows, ...]
    part_of: np.ndarray
    row_of: np.ndarray
    bucket_of: np.ndarray
    widths: np.ndarray
    heights: np.ndarray
    chances: np.ndarray
    sizes: tuple[tuple[int, int], ...]
    whole: np.ndarray
    fraction: np.ndarray
    report: Report
