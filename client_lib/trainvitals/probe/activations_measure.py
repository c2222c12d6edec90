"""What is computed of the outputs of layers, within the graph: five numbers of each, see `activations_row`.

Only operations: no variables, no state, nothing read back.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from trainvitals.probe.activations_rules import Rule
from trainvitals.probe.row import NOT_MEASURED
from trainvitals.probe.types import Tensor

NUMBERS = 5  # largest absolute value that is a number, count of NaN, of infinities, share dead, saturated
MARGIN = 0.01  # so near to its limit an output is saturated: tanh passes a fiftieth of a gradient there


def numbers_of(outputs: Sequence[Tensor], rule: Rule) -> Tensor:
    """Return `[NUMBERS]` of one layer: where it has several outputs, the worst of them."""
    rows = [tf.stack(_numbers(output, rule)) for output in outputs]
    return rows[0] if len(rows) == 1 else tf.reduce_max(tf.stack(rows), 0)


def _numbers(output: Tensor, rule: Rule) -> list[Tensor]:
    wide = tf.cast(output, tf.float32) if output.dtype.size < 4 else output
    is_nan = tf.math.is_nan(wide)
    sizes = tf.abs(tf.where(is_nan, tf.zeros((), wide.dtype), wide))
    largest = tf.reduce_max(sizes)
    return [
        _f64(tf.maximum(largest, tf.zeros((), wide.dtype))),  # -Inf, where there is no element
        _f64(tf.math.count_nonzero(is_nan)),
        _f64(tf.math.count_nonzero(tf.math.is_inf(wide))),
        _dead_share(wide, rule),
        _saturated_share(wide, rule),
    ]


def _dead_share(output: Tensor, rule: Rule) -> Tensor:
    rank = output.shape.rank
    if rule.channels is None or rank is None or rank < 2:
        return tf.constant(NOT_MEASURED, tf.float64)
    zero = tf.zeros((), output.dtype)
    is_silent = output <= zero if rule.is_one_sided else tf.equal(output, zero)
    axes = [axis for axis in range(rank) if axis != rule.channels % rank]
    return _share(tf.reduce_all(is_silent, axes))


def _saturated_share(output: Tensor, rule: Rule) -> Tensor:
    low, high = rule.limits
    is_at_end = None
    if high is not None:
        is_at_end = output >= tf.constant(high - MARGIN, output.dtype)
    if low is not None:
        is_low = output <= tf.constant(low + MARGIN, output.dtype)
        is_at_end = is_low if is_at_end is None else tf.logical_or(is_at_end, is_low)
    return tf.constant(NOT_MEASURED, tf.float64) if is_at_end is None else _share(is_at_end)


def _share(flags: Tensor) -> Tensor:
    count = tf.maximum(tf.size(flags), 1)
    return _f64(tf.math.count_nonzero(flags)) / _f64(count)


def _f64(value: Tensor) -> Tensor:
    return tf.cast(value, tf.float64)
