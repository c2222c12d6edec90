"""Blocks: cuts a series into pieces of equal length, however its rows come in batches.

What is judged block by block does not depend on how a run was split. Only finite cells count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from trainvitals.wire import FloatArray, IntArray
from trainvitals_server.batch import Batch

LOSS_BLOCK = 32  # rows of the loss that patterns of a run which does not learn are judged by
MAD_TO_SIGMA = 1.4826
MEDIAN_ERROR = 1.2533  # the standard error of a median is this many times that of a mean


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive values of one series, and what every detector asks about them.

    `level` is their median, `swing` that of the moves from row to row, `turns` the share of rows after which
    the series turns round.
    """

    values: list[float]
    first_step: int
    last_step: int
    level: float
    swing: float
    turns: float

    @property
    def noise(self) -> float:
        """The scatter from row to row, as a standard deviation; a trend does not count."""
        return MAD_TO_SIGMA * self.swing / math.sqrt(2)


class Blocks(msgspec.Struct):
    """The rows of the block that is being filled; `size` is at least 3."""

    size: int
    values: list[float] = []
    first_step: int = 0

    def cut(self, batch: Batch, name: str) -> list[Block]:
        """Return the blocks that the finite cells of series `name` complete."""
        steps, cells = self._take(batch, name)
        return _blocks(steps.reshape(-1, self.size), cells.reshape(-1, self.size)) if len(cells) else []

    def skip(self, batch: Batch, name: str) -> int:
        """Take the rows of `batch` where no block can be news; return how many they complete."""
        return len(self._take(batch, name)[1]) // self.size

    def _take(self, batch: Batch, name: str) -> tuple[IntArray, FloatArray]:
        """Return the rows of whole blocks and keep the rest."""
        series = batch.columns.get(name)
        if series is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        usable = series.present & np.isfinite(series.values)
        steps, cells = batch.steps[usable], series.values[usable]
        if self.values:
            steps = np.concatenate((np.full(len(self.values), self.first_step), steps))
            cells = np.concatenate((self.values, cells))
        whole = len(cells) // self.size * self.size
        self.values = cells[whole:].tolist()
        if self.values:
            self.first_step = int(steps[whole])
        return steps[:whole], cells[:whole]


def _blocks(steps: IntArray, cells: FloatArray) -> list[Block]:
    """Return one block a row.

    All at once: the very numbers that each would have by itself, at a fraction of the cost.
    """
    with np.errstate(over="ignore"):  # moves between the ends of the number format
        moves = cells[:, 1:] - cells[:, :-1]
        levels, swings = _medians(cells), _medians(np.abs(moves))
    ups, downs = moves > 0, moves < 0
    turned = (ups[:, 1:] & downs[:, :-1]) | (downs[:, 1:] & ups[:, :-1])
    turns: list[float] = (turned.sum(axis=1) / turned.shape[1]).tolist()
    columns = (cells.tolist(), steps[:, 0].tolist(), steps[:, -1].tolist(), levels, swings, turns)
    return [Block(*parts) for parts in zip(*columns, strict=True)]


def _medians(cells: FloatArray) -> list[float]:
    """Return the median of each row."""
    ordered = np.sort(cells, axis=1)
    half = cells.shape[1] // 2
    middle = ordered[:, half] if cells.shape[1] % 2 else (ordered[:, half - 1] + ordered[:, half]) / 2
    medians: list[float] = middle.tolist()
    return medians


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
        if stop and series.present[stop - 1] and math.isfinite(last := float(series.values[stop - 1])):
            return last  # as nearly always
        usable = np.flatnonzero(series.present[:stop] & np.isfinite(series.values[:stop]))
        return float(series.values[usable[-1]]) if len(usable) else None
