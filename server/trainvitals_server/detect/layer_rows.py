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
    """`norms` is `[rows, layers]`, in the model's order. `is_fresh`: the layers are others than before.

    `middles` are the layers' medians of what is known, and `positive_middles` of what of it is above 0.
    """

    names: list[str]
    steps: list[int]
    norms: FloatArray
    losses: FloatArray
    is_fresh: bool
    middles: FloatArray
    positive_middles: FloatArray

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
        learning = [place for place, layer in enumerate(batch.layers) if layer.has_gradient]
        self._expect([batch.layers[place].name for place in learning])
        rows = np.flatnonzero(series.present.any(axis=1))
        values, present = series.values[rows], series.present[rows]
        if len(learning) < len(batch.layers):
            values, present = values[:, learning], present[:, learning]
        norms = np.where(present & np.isfinite(values), values, np.nan)
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
        norms, is_fresh = cells[:, 1:], self.is_fresh
        middles = column_medians(norms)
        positive = middles if norms.min() > 0 else column_medians(np.where(norms > 0, norms, np.nan))
        block = LayerBlock(self.names, self.steps, norms, cells[:, 0], is_fresh, middles, positive)
        self.steps, self.cells, self.is_fresh = [], b"", False
        return block


def column_medians(values: FloatArray) -> FloatArray:
    """Return the median of what is known in each column, NaN where nothing is."""
    ordered = np.sort(values, axis=0)  # NaN goes last
    if not np.isnan(ordered[-1]).any():  # the usual case, at a third of the cost
        low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
        usual: FloatArray = low + (high - low) / 2
        return usual
    known = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    low, high = ordered[np.maximum(known - 1, 0) // 2, columns], ordered[known // 2 % len(values), columns]
    return np.where(known > 0, low + (high - low) / 2, np.nan)


def _losses(batch: Batch) -> FloatArray:
    series = batch.columns.get("loss")
    if series is None:
        return np.full(len(batch), np.nan)
    return np.where(series.present & np.isfinite(series.values), series.values, np.nan)
