"""Batch: rows of one stream as numpy columns, the only thing a detector eats.

Values stay what they were; a missing cell is `present == False`, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from trainvitals.wire import BoolArray, FloatArray, IntArray, Layer, MalformedFrame, Steps

STEP_BYTES = 8  # of a step where a frame names them all


@dataclass(frozen=True, slots=True)
class Series:
    """One column over the rows of a batch: float64 `[rows]` or `[rows, layers]`, and what is present."""

    values: FloatArray
    present: BoolArray

    def slice(self, start: int, stop: int) -> Series:
        """Return the rows start .. stop - 1."""
        return Series(self.values[start:stop], self.present[start:stop])


class Readable(Protocol):
    """Rows that become a batch when somebody wants to see them, which most rows never are."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of the layer columns."""

    @property
    def columns(self) -> Mapping[str, object]:
        """The columns, in whatever form, by name."""

    @property
    def layer_columns(self) -> Mapping[str, object]:
        """The layer columns, in whatever form, by name."""

    def __len__(self) -> int:
        """How many rows there are."""

    def read(self) -> Batch:
        """Return the batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in increasing order of step. `layers` names the second axis of every layer series."""

    steps: IntArray
    columns: Mapping[str, Series] = field(default_factory=dict)
    layer_columns: Mapping[str, Series] = field(default_factory=dict)
    layers: tuple[Layer, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def read(self) -> Batch:
        """Return itself."""
        return self

    def slice(self, start: int, stop: int) -> Batch:
        """Return the rows start .. stop - 1 as a batch of their own."""
        return Batch(
            self.steps[start:stop],
            {name: series.slice(start, stop) for name, series in self.columns.items()},
            {name: series.slice(start, stop) for name, series in self.layer_columns.items()},
            self.layers,
        )


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The rows of a frame that `check_layers` let pass, still in its bytes."""

    frame: Steps
    layers: tuple[Layer, ...]

    def __len__(self) -> int:
        return self.frame.count

    @property
    def columns(self) -> Mapping[str, object]:
        """The columns as they came."""
        return self.frame.columns

    @property
    def layer_columns(self) -> Mapping[str, object]:
        """The layer columns as they came."""
        return self.frame.layer_columns

    def read(self) -> Batch:
        """Return the batch."""
        return from_frame(self.frame, self.layers)


def last_step(frame: Steps) -> int:
    """Return the step of a checked frame's last row."""
    if frame.steps is None:
        return frame.first_step + frame.count - 1
    return int.from_bytes(frame.steps[-STEP_BYTES:], "little", signed=True)


def check_layers(frame: Steps, layers: tuple[Layer, ...]) -> None:
    """Compare the layer columns of a frame with its layout, without making arrays of them.

    Raises:
        MalformedFrame: if one does not fit.
    """
    for name, column in frame.layer_columns.items():
        if not layers:
            raise MalformedFrame(f"layer column {name!r} without a layout")
        column.check(frame.count * len(layers))


def from_frame(frame: Steps, layers: tuple[Layer, ...]) -> Batch:
    """Return the rows of a `Steps` frame.

    Raises:
        MalformedFrame: if a layer column does not fit `layers`.
    """
    columns = {}
    for name, column in frame.columns.items():
        values, present = column.unpack(frame.count)
        columns[name] = Series(values.astype(np.float64, copy=False), present)
    layer_columns = {}
    for name, column in frame.layer_columns.items():
        if not layers:
            raise MalformedFrame(f"layer column {name!r} without a layout")
        values, present = column.unpack(frame.count * len(layers))
        shape = (frame.count, len(layers))
        values = values.astype(np.float64, copy=False)
        layer_columns[name] = Series(values.reshape(shape), present.reshape(shape))
    return Batch(frame.step_numbers(), columns, layer_columns, layers)
