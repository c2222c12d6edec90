"""Blocks: cuts a series into pieces of equal length, however its rows come in batches.

What is judged block by block does not depend on how a run was split. Only finite cells count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from trainvitals_server.batch import Batch

MAD_TO_SIGMA = 1.4826
MEDIAN_ERROR = 1.2533  # the standard error of a median is this many times that of a mean


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive values of one series."""

    values: list[float]
    first_step: int
    last_step: int

    @property
    def level(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def noise(self) -> float:
        """The scatter from row to row, as a standard deviation; a trend does not count."""
        return MAD_TO_SIGMA * median(abs(b - a) for a, b in pairwise(self.values)) / math.sqrt(2)


class Blocks(msgspec.Struct):
    """The rows of the block that is being filled."""

    size: int
    values: list[float] = []
    first_step: int = 0

    def cut(self, batch: Batch, name: str) -> Iterator[Block]:
        """Yield the blocks that the finite cells of series `name` complete."""
        series = batch.columns.get(name)
        if series is None:
            return
        usable = series.present & np.isfinite(series.values)
        steps = batch.steps[usable]
        values = series.values[usable].tolist()
        place = 0
        while place < len(values):
            if not self.values:
                self.first_step = int(steps[place])
            stop = min(len(values), place + self.size - len(self.values))
            self.values = [*self.values, *values[place:stop]]
            place = stop
            if len(self.values) >= self.size:
                block = Block(self.values, self.first_step, int(steps[stop - 1]))
                self.values = []
                yield block


class Latest(msgspec.Struct):
    """The latest finite cell of one series."""

    name: str
    value: float | None = None

    def at(self, batch: Batch, step: int) -> float | None:
        """Return the latest value up to and with `step`, one of the rows of `batch`."""
        value = self._last(batch, int(np.searchsorted(batch.steps, step, side="right")))
        return self.value if value is None else value

    def pass_by(self, batch: Batch) -> None:
        """Take the rows of `batch`, once nothing more is asked about them."""
        value = self._last(batch, len(batch))
        self.value = self.value if value is None else value

    def _last(self, batch: Batch, stop: int) -> float | None:
        series = batch.columns.get(self.name)
        if series is None:
            return None
        usable = np.flatnonzero(series.present[:stop] & np.isfinite(series.values[:stop]))
        return float(series.values[usable[-1]]) if len(usable) else None
