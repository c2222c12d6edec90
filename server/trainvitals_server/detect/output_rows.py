"""Output rows: what the layers gave out in the steps in which that was measured. Finds nothing by itself.

Needs `layer_activation_absmax`; takes the layers' shares of dead units and of saturated outputs along, and
`loss`. What is not measured is NaN here, and so is a loss that is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from trainvitals.wire import FloatArray, Layer
from trainvitals_server.batch import Batch, Series


class Watched(msgspec.Struct, frozen=True, array_like=True):
    """A layer, as far as its outputs are judged by it."""

    name: str
    activation: str
    is_half: bool
    has_gradient: bool


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One step: a number for each layer, in the order of their outputs."""

    step: int
    loss: float
    sizes: FloatArray  # the largest absolute value; Inf where one is not finite
    dead: FloatArray
    saturated: FloatArray


def watched(layers: Sequence[Layer]) -> list[Watched]:
    """Return the layers of a batch."""
    return [Watched(one.name, one.activation, one.compute_dtype == "float16", one.has_gradient)
            for one in layers]  # fmt: skip


def output_rows(batch: Batch) -> Iterator[OutputRow]:
    """Yield the rows of `batch` in which outputs were measured."""
    sizes = batch.layer_columns.get("layer_activation_absmax")
    if sizes is None or not batch.layers:
        return
    known = _known(sizes)
    dead, saturated = (
        _known(batch.layer_columns.get(name), known.shape)
        for name in ("layer_dead_share", "layer_saturated_share")
    )
    loss = _known(batch.columns.get("loss"), known.shape[:1])
    for row in np.flatnonzero(sizes.present.any(axis=1)).tolist():
        is_bad = sizes.present[row] & ~np.isfinite(sizes.values[row])
        step, size = int(batch.steps[row]), np.where(is_bad, np.inf, known[row])
        yield OutputRow(step, float(loss[row]), size, dead[row], saturated[row])


def _known(series: Series | None, shape: tuple[int, ...] = ()) -> FloatArray:
    if series is None:
        return np.full(shape, np.nan)
    return np.where(series.present & np.isfinite(series.values), series.values, np.nan)
