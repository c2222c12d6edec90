"""Weights: how large they are and how much one step changes them, measured now and then.

The training's graph has no part in it. Before a step the weights are measured and held by reference: its
update then copies what it changes. After the step the difference is measured, and nothing is held any more.
All of this costs time, which a `Budget` bounds.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.budget import DEFAULT_SHARE, Budget
from trainvitals.probe.capture import current
from trainvitals.probe.compiled import MEMORY_SHARE, device_memory, size_of
from trainvitals.probe.decode import Decoded
from trainvitals.probe.kinds import steps_per_execution_of
from trainvitals.probe.layers import Groups
from trainvitals.probe.optimizers import inner_of, optimizers_of
from trainvitals.probe.row import SMALLEST_SAFE_SUM
from trainvitals.probe.snapshots import COPIED_BYTES_PER_S
from trainvitals.probe.types import Model, Tensor
from trainvitals.rows import Cells
from trainvitals.wire import BoolArray, FloatArray, IntArray

_log = logging.getLogger("trainvitals")


MOST_WAITING = 1024  # measurements whose rows were not read yet


@dataclass(frozen=True, slots=True)
class Measured:
    """The weights that `step` began with, by variable; `changes` are the norms of what it did to them."""

    step: int
    groups: Groups
    norms: FloatArray
    counts: IntArray  # of elements that are not finite
    changes: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class _Before:
    measured: Measured
    held: list[Tensor]  # empty where the change is not to be measured
    variables: Sequence[Any]
    seconds: float


class Weights:
    """Measures the weights of one model at a time. Only the training thread may call it."""

    def __init__(self, share: float = DEFAULT_SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.budget = Budget(share, clock)
        self._model: Model = None
        self._before: _Before | None = None
        self._measured: deque[Measured] = deque(maxlen=MOST_WAITING)  # in order of their steps
        self._is_off = False
        self._most_bytes: float | None = None  # what may be held

    def begin(self, model: Model) -> None:
        """Forget all of an earlier `fit`; several replicas hold a weight several times and are left alone."""
        self._model, self._before = model, None
        self._measured.clear()
        self._is_off = model.distribute_strategy.num_replicas_in_sync > 1

    def note_before(
        self, step: int, variables: Sequence[Any], groups: Groups, *, is_wanted: bool = False
    ) -> bool:
        """Measure `variables` if it is time, or `is_wanted`; the coming execution begins with `step`.

        Returns:
            Whether they were measured.
        """
        self._before = None
        if self._is_off or not variables or not (is_wanted or self.budget.is_due):
            return False
        began = self._clock()
        try:
            values = [current(one) for one in variables]
            norms = norms_of(values)
            is_held = steps_per_execution_of(self._model) == 1 and self._may_hold(variables)
            self._before = _Before(
                Measured(step, groups, norms, _counts(values, norms)),
                values if is_held else [],
                variables,
                self._clock() - began,
            )
        except Exception:  # a variable of the user's own kind, or no memory left on the device
            self._give_up()
        return self._before is not None

    def note_after(self, beside_s: float = 0.0) -> float:
        """Measure what the execution has changed; return the seconds that all of it took.

        `beside_s` is what else was measured with it has taken, out of the same budget.
        """
        before, self._before = self._before, None
        if before is None:
            return 0.0
        began = self._clock()
        try:
            self._measured.append(_with_changes(before, self._model))
        except Exception:
            self._give_up()
        copied_s = size_of(before.held) / COPIED_BYTES_PER_S
        seconds = before.seconds + self._clock() - began + copied_s + beside_s
        self.budget.pay(seconds)
        return seconds

    def drop(self) -> None:
        """Let go of what is held: the execution did not end."""
        self._before = None

    def add_to(self, columns: dict[str, Cells], piece: Decoded, groups: Groups) -> dict[str, Cells]:
        """Add what was measured in some of the rows of `piece`; return its layer columns and ours."""
        layer_columns = dict(piece.layer_columns)
        while self._measured and self._measured[0].step <= int(piece.steps[-1]):
            measured = self._measured.popleft()
            row = int(np.searchsorted(piece.steps, measured.step))
            if int(piece.steps[row]) == measured.step and measured.groups is groups:
                _add(measured, piece, row, columns, layer_columns)
        return layer_columns

    def _may_hold(self, variables: Sequence[Any]) -> bool:
        if self._most_bytes is None:
            self._most_bytes = MEMORY_SHARE * device_memory()
        return 2 * size_of(variables) <= self._most_bytes

    def _give_up(self) -> None:
        self._is_off = True
        self._before = None
        self._measured.clear()
        _log.warning("trainvitals cannot measure the weights of this model", exc_info=True)


def norms_of(values: Sequence[Tensor]) -> FloatArray:
    """Return the L2 norm of each value: NaN or Inf only where there is one in it, 0 only where all are 0."""
    return _norms(values, lambda value: value)


def _norms(items: Sequence[Any], value_of: Callable[[Any], Tensor]) -> FloatArray:
    """Return the norms of what `value_of` makes of `items`, of which one at a time is in memory."""
    halves = [tf.cast(tf.nn.l2_loss(_wide(value_of(one))), tf.float64) for one in items]
    found: FloatArray = np.asarray(tf.stack(halves), dtype=np.float64)
    is_safe = np.isnan(found) | (np.isfinite(found) & (found >= SMALLEST_SAFE_SUM))
    norms: FloatArray = np.sqrt(2 * found)
    for place in np.flatnonzero(~is_safe).tolist():
        norms[place] = _careful_norm(value_of(items[place]))
    return norms


def _careful_norm(value: Tensor) -> float:
    """Return a norm whose sum of squares leaves the range of float32, or that is 0 or not finite."""
    values = np.abs(np.asarray(tf.cast(value, tf.float64)))
    largest = float(values.max(initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.square(values / largest).sum()))


def _wide(value: Tensor) -> Tensor:
    """Return at least float32."""
    return tf.cast(value, tf.float32) if int(value.dtype.size) < 4 else value


def _difference(pair: tuple[Tensor, Any]) -> Tensor:
    before, variable = pair
    return _wide(current(variable)) - _wide(before)


def _counts(values: Sequence[Tensor], norms: FloatArray) -> IntArray:
    counts = np.zeros(len(values), dtype=np.int64)
    for place in np.flatnonzero(~np.isfinite(norms)).tolist():
        is_finite = tf.math.is_finite(values[place])
        counts[place] = int(tf.size(is_finite)) - int(tf.math.count_nonzero(is_finite))
    return counts


def _with_changes(before: _Before, model: Model) -> Measured:
    """Return the measurement with the step's changes, unless the step was not to make any."""
    measured = before.measured
    if not before.held:
        return measured
    changes = _norms(list(zip(before.held, before.variables, strict=True)), _difference)
    if not changes.any() and _accumulates(optimizers_of(model)):
        return measured
    return Measured(measured.step, measured.groups, measured.norms, measured.counts, changes)


def _accumulates(optimizers: Iterable[Any]) -> bool:
    return any(getattr(inner_of(one), "gradient_accumulation_steps", None) for one in optimizers)


def _add(
    measured: Measured, piece: Decoded, row: int, columns: dict[str, Cells], layer_columns: dict[str, Cells]
) -> None:
    """Add what was measured of the step in `row` to the columns of `piece`."""
    at_row = np.arange(len(piece.steps)) == row
    columns["weight_nonfinite"] = _filled(columns.get("weight_nonfinite"), measured.counts.sum(), at_row)
    _, had_gradient = piece.layer_columns.get("layer_grad_norm", (None, None))
    with np.errstate(all="ignore"):
        own = _layer_columns(measured, at_row, None if had_gradient is None else had_gradient[row])
    for name, cells in own.items():
        layer_columns[name] = _joined(layer_columns[name], cells) if name in layer_columns else cells


def _joined(before: Cells, cells: Cells) -> Cells:
    """Return the cells of both; no row has any of both."""
    (known, was_present), (values, present) = before, cells
    if present is None or was_present is None:
        return cells
    return np.where(present, values, known), present | was_present


def _filled(known: Cells | None, count: int, at_row: BoolArray) -> Cells:
    """Return the counts with that of one row, which the step itself may have counted already."""
    if known is None:
        return np.where(at_row, count, 0), at_row
    values, present = known
    if present is None:
        return known
    return np.where(at_row & ~present, count, values), present | at_row


def _layer_columns(measured: Measured, at_row: BoolArray, had_gradient: BoolArray | None) -> dict[str, Cells]:
    norms, is_known = _by_layer(measured.norms, measured.groups)
    columns = {"layer_weight_norm": _cells(norms, at_row, is_known)}
    if measured.changes is not None:
        changes, _ = _by_layer(measured.changes, measured.groups)
        has_ratio = is_known & (norms != 0)
        if had_gradient is not None:
            has_ratio &= had_gradient
        columns["layer_update_ratio"] = _cells(changes / np.where(has_ratio, norms, 1.0), at_row, has_ratio)
    return columns


def _by_layer(norms: FloatArray, groups: Groups) -> tuple[FloatArray, BoolArray]:
    """Return the norm of each layer, and which layers have one."""
    found, has_layer = np.zeros(len(groups.layers)), np.zeros(len(groups.layers), dtype=bool)
    for norm, layer in zip(norms, groups.layer_of, strict=True):
        if layer >= 0:
            found[layer] = np.nan if np.isnan(norm + found[layer]) else np.hypot(found[layer], norm)
            has_layer[layer] = True
    return found, has_layer


def _cells(values: FloatArray, at_row: BoolArray, is_known: BoolArray) -> Cells:
    return np.where(at_row[:, np.newaxis], values, 0.0), at_row[:, np.newaxis] & is_known
