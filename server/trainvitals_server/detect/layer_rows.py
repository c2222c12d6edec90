"""Layer rows: the layers' gradient norms in blocks of rows, however they come. Finds nothing by itself.

Needs the layer series `layer_grad_norm`; takes `loss` along. A cell that is missing or not finite is NaN
here: what is not finite is `overflow`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from trainvitals.wire import FloatArray
from trainvitals_server.batch import Batch

BLOCK = 16  # rows judged together: short enough to be soon, long enough for a median


@dataclass(frozen=True, slots=True)
class LayerBlock:
    """`norms` is `[rows, layers]`, in the model's order. `is_fresh`: the layers are others than before."""

    names: list[str]
    steps: list[int]
    norms: FloatArray
    losses: FloatArray
    is_fresh: bool

    @property
    def last_step(self) -> int:
        """The row that completed it."""
        return self.steps[-1]


class LayerRows(msgspec.Struct):
    """Collects rows until a block is full."""

    names: list[str] = []
    steps: list[int] = []
    cells: bytes = b""  # a row is the loss, then the layers
    is_fresh: bool = True

    def take(self, batch: Batch) -> Iterator[LayerBlock]:
        """Yield each block that the rows of `batch` complete."""
        series = batch.layer_columns.get("layer_grad_norm")
        if series is None or not batch.layers:
            return
        self._expect([layer.name for layer in batch.layers])
        rows = np.flatnonzero(series.present.any(axis=1))
        usable = series.present[rows] & np.isfinite(series.values[rows])
        norms = np.where(usable, series.values[rows], np.nan)
        cells = np.column_stack([_losses(batch)[rows], norms])
        place = 0
        while place < len(rows):
            stop = place + BLOCK - len(self.steps)
            self.steps = [*self.steps, *batch.steps[rows[place:stop]].tolist()]
            self.cells += cells[place:stop].tobytes()
            place = stop
            if len(self.steps) == BLOCK:
                yield self._block()

    def _expect(self, names: list[str]) -> None:
        if names != self.names:
            self.names, self.steps, self.cells, self.is_fresh = names, [], b"", True

    def _block(self) -> LayerBlock:
        cells = np.frombuffer(self.cells).reshape(BLOCK, -1)
        block = LayerBlock(self.names, self.steps, cells[:, 1:], cells[:, 0], self.is_fresh)
        self.steps, self.cells, self.is_fresh = [], b"", False
        return block


def column_medians(values: FloatArray) -> FloatArray:
    """Return the median of what is known in each column, NaN where nothing is."""
    ordered = np.sort(values, axis=0)  # NaN goes last
    known = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    low, high = ordered[np.maximum(known - 1, 0) // 2, columns], ordered[known // 2 % len(values), columns]
    return np.where(known > 0, low + (high - low) / 2, np.nan)


def _losses(batch: Batch) -> FloatArray:
    series = batch.columns.get("loss")
    if series is None:
        return np.full(len(batch), np.nan)
    return np.where(series.present & np.isfinite(series.values), series.values, np.nan)
