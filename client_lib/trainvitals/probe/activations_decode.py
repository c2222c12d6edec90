"""Rows of the activations' ring become layer series: the host's half of the measurement, in plain numpy."""

from __future__ import annotations

import numpy as np

from trainvitals.probe.activations_measure import NUMBERS
from trainvitals.probe.decode import Decoded
from trainvitals.rows import Cells
from trainvitals.wire import BoolArray, FloatArray, IntArray

NO_PLACES = np.zeros(0, np.int64)
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def wanted(rows: FloatArray, every: int) -> FloatArray:
    """Return the rows of each `every`-th step, and those with something that is not finite."""
    numbers = rows[:, 1:].reshape(len(rows), (rows.shape[1] - 1) // NUMBERS, NUMBERS)
    is_bad: BoolArray = np.any(numbers[..., 1:3] > 0, axis=(1, 2))
    found: FloatArray = rows[is_bad | (rows[:, 0] % every == 0)]
    return found


def joined(piece: Decoded, rows: FloatArray, places: IntArray, layers: int) -> Decoded:
    """Return `piece` with the activations of its steps in `rows`; its other steps have none."""
    _, here, there = np.intersect1d(piece.steps, rows[:, 0].astype(np.int64), return_indices=True)
    is_told = places >= 0
    if not len(here) or not is_told.any():
        return piece
    numbers = rows[there, 1:].reshape(len(there), len(places), NUMBERS)[:, is_told]
    found = np.full((len(piece.steps), layers, NUMBERS), np.nan)
    found[np.ix_(here, places[is_told])] = numbers
    is_known = ~np.isnan(found[..., 0])  # none of the numbers that the graph writes is NaN
    columns = _columns(np.where(is_known[..., np.newaxis], found, 0.0), is_known)
    known = {name: _with(piece.layer_columns.get(name), cells) for name, cells in columns.items()}
    return Decoded(piece.steps, piece.columns, {**piece.layer_columns, **known})


def _columns(found: FloatArray, is_known: BoolArray) -> dict[str, Cells]:
    largest, nans, infinities, dead, saturated = np.moveaxis(found, -1, 0)
    largest = np.where(nans > 0, np.nan, np.where(infinities > 0, np.inf, largest))
    counts = nans + infinities
    is_small = counts.max(initial=0.0) < 2**31
    columns: dict[str, Cells] = {
        "layer_activation_absmax": (_narrow(largest), is_known),
        "layer_activation_nonfinite": (counts.astype(np.int32 if is_small else np.int64), is_known),
    }
    for name, shares in (("layer_dead_share", dead), ("layer_saturated_share", saturated)):
        has_share = is_known & (shares >= 0)
        if has_share.any():
            columns[name] = (np.where(has_share, shares, 0.0).astype(np.float32), has_share)
    return columns


def _narrow(values: FloatArray) -> FloatArray:
    """Return float32, which nearly all outputs are at most, unless a value is beyond its range."""
    is_lost = np.isfinite(values) & (np.abs(values) > _LARGEST_FLOAT32)
    return values if is_lost.any() else values.astype(np.float32)


def _with(known: Cells | None, cells: Cells) -> Cells:
    """Return both; of two traces of a step each row is of one."""
    if known is None:
        return cells
    values, present = cells
    before, was_present = known
    has_been = np.ones(before.shape, dtype=bool) if was_present is None else was_present
    return np.where(has_been, before, values), present if present is None else present | has_been
