"""Batch: rows of one stream as numpy columns, the only thing a detector eats.

Values stay what they were; a missing cell is `present == False`, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from trainvitals.wire import BoolArray, FloatArray, IntArray, Layer, MalformedFrame, Steps


@dataclass(frozen=True, slots=True)
class Series:
    """One column over the rows of a batch: float64 `[rows]` or `[rows, layers]`, and what is present."""

    values: FloatArray
    present: BoolArray

    def slice(self, start: int, stop: int) -> Series:
        """Return the rows start .. stop - 1."""
        return Series(self.values[start:stop], self.present[start:stop])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in increasing order of step. `layers` names the second axis of every layer series."""

    steps: IntArray
    columns: Mapping[str, Series] = field(default_factory=dict)
    layer_columns: Mapping[str, Series] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def slice(self, start: int, stop: int) -> Batch:
        """Return the rows start .. stop - 1 as a batch of their own."""
        return Batch(
            self.steps[start:stop],
            {name: series.slice(start, stop) for name, series in self.columns.items()},
            {name: series.slice(start, stop) for name, series in self.layer_columns.items()},
            self.layers,
        )


def from_frame(frame: Steps, layers: tuple[Layer, ...]) -> Batch:
    """Return the rows of a `Steps` frame.

    Raises:
        MalformedFrame: if a layer column does not fit `layers`.
    """
    columns = {}
    for name, column in frame.columns.items():
        values, present = column.unpack(frame.count)
        columns[name] = Series(values.astype(np.float64), present)
    layer_columns = {}
    for name, column in frame.layer_columns.items():
        if not layers:
            raise MalformedFrame(f"layer column {name!r} without a layout")
        values, present = column.unpack(frame.count * len(layers))
        shape = (frame.count, len(layers))
        layer_columns[name] = Series(values.astype(np.float64).reshape(shape), present.reshape(shape))
    return Batch(frame.step_numbers(), columns, layer_columns, layers)
