"""How large the elements of a layer's gradient are, in the steps with details: the host's half, in numpy.

Both series are about the numbers that the device held: with the loss scale, not divided by it. In float16
that is what overflows, and what is flushed to zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals import wire
from trainvitals.probe.layers import Groups
from trainvitals.probe.row import NOT_MEASURED
from trainvitals.rows import Cells
from trainvitals.wire import BoolArray, FloatArray, IntArray

HALF = "float16"


class GradientSizes:
    """Gathers the sizes of variables into those of their layers, `[rows, layers]`."""

    def __init__(self, rows: int, groups: Groups) -> None:
        shape = (rows, len(groups.layers))
        self._groups = groups
        self._largest = np.zeros(shape)
        self._zeros, self._elements = np.zeros(shape), np.zeros(shape)
        self._is_known, self._is_lost = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)

    def add(self, sizes: FloatArray, ran: BoolArray, places: IntArray, elements: IntArray) -> None:
        """Add the largest values and the shares of zeros of the variables at `places`, `[rows, 2n]`."""
        count = len(places)
        rows = np.flatnonzero(ran)
        largest, shares = sizes[rows, :count], sizes[rows, count:]
        order, layers, starts = layers_of(places, self._groups)
        if not len(layers) or not len(rows):
            return
        cells = np.ix_(rows, layers)
        is_lost = np.logical_or.reduceat(largest[:, order] == NOT_MEASURED, starts, axis=1)
        self._is_known[cells] = True
        self._is_lost[cells] |= is_lost
        found = np.maximum.reduceat(largest[:, order], starts, axis=1)  # NaN is larger than all
        self._largest[cells] = np.maximum(self._largest[cells], found)
        self._zeros[cells] += np.add.reduceat((shares * elements)[:, order], starts, axis=1)
        self._elements[cells] += np.add.reduceat(elements[order], starts)

    def columns(self) -> dict[str, Cells]:
        """Return the layer columns, none where nothing was written."""
        is_known = self._is_known & ~self._is_lost
        if not is_known.any():
            return {}
        largest = narrowed(np.where(is_known, self._largest, 0.0))
        columns: dict[str, Cells] = {"layer_grad_absmax": (largest, is_known)}
        is_half = np.array([computes_in_half(layer) for layer in self._groups.layers], dtype=bool)
        has_share = is_known & is_half & (self._elements > 0)
        if has_share.any():
            shares = np.where(has_share, self._zeros, 0.0) / np.maximum(self._elements, 1.0)
            columns["layer_grad_zero_share"] = (shares.astype(np.float32), has_share)
        return columns


def layers_of(places: IntArray, groups: Groups) -> tuple[IntArray, IntArray, IntArray]:
    """Return variables in the order of their layers, these layers, and where each one's variables begin."""
    layers = groups.layer_of[places]
    order = np.argsort(layers, kind="stable")
    order = order[np.searchsorted(layers[order], 0) :]  # a variable of no layer has -1
    found, starts = np.unique(layers[order], return_index=True)
    return order, found, starts


def computes_in_half(layer: wire.Layer) -> bool:
    """Return whether a layer's gradient comes out of float16, whatever it is stored as."""
    return HALF in (layer.compute_dtype, *layer.dtype.split(", "))


def narrowed(values: FloatArray) -> npt.NDArray[Any]:
    """Return float32 (that is what most gradients are), unless a value would leave its range."""
    with np.errstate(all="ignore"):
        narrow = values.astype(np.float32)
        is_lost = np.isfinite(values) & (values != 0) & (~np.isfinite(narrow) | (np.abs(narrow) < 1.2e-38))
    return values if is_lost.any() else narrow
