"""What is computed inside the training graph: how large the gradients are, and what is not finite.

Only operations: no variables of its own, no state, nothing read back. The sums of squares run in every step;
everything that costs a second pass over memory is for the steps in which a number is suspicious.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from trainvitals.probe.row import EXTRAS, NOT_MEASURED, SMALLEST_SAFE_SUM
from trainvitals.probe.types import Tensor

SHIFT = 80  # powers of two that bring any float32, squared and summed, into its range
Data: TypeAlias = Sequence[Sequence[Tensor] | None]  # inputs, labels, weights; None: out of reach


def half_sum(gradient: Tensor) -> Tensor:
    """Return half the sum of squares: float32, or float64 of a float64 gradient."""
    return tf.nn.l2_loss(_wide(gradient))


def half_sums(gradients: Sequence[Tensor]) -> Tensor:
    """Return the half sum of each gradient, `[n]`."""
    return stacked([half_sum(gradient) for gradient in gradients])


def stacked(halves: Sequence[Tensor]) -> Tensor:
    """Return half sums as one tensor `[n]`: float32, or float64 where one of them is."""
    return tf.stack(halves if _same_dtype(halves) else [_f64(half) for half in halves])


def is_suspicious(halves: Tensor, loss: Tensor | None) -> Tensor:
    """Return whether a number is not finite, or too small for its half sum to be exact."""
    return tf.logical_not(is_usual(halves, loss))


def is_usual(
    halves: Tensor,
    loss: Tensor | None,
    smallest: Tensor | float = SMALLEST_SAFE_SUM,
    is_measured: Tensor | None = None,
) -> Tensor:
    """Return whether all numbers are finite, and large enough for their half sums to be exact.

    Half sums that add up to less than `smallest` are not: with infinity none is usual. Those that are not
    measured are, if the loss is.
    """
    total = tf.reduce_sum(halves)
    watched = total if loss is None else total + tf.cast(loss, total.dtype)
    is_large = total >= (smallest if isinstance(smallest, float) else tf.cast(smallest, total.dtype))
    if is_measured is not None:
        is_large = tf.logical_or(is_large, tf.logical_not(is_measured))
    return tf.logical_and(tf.math.is_finite(watched), is_large)


def is_alive(gradients: Sequence[Tensor], loss: Tensor | None) -> Tensor:
    """Return whether an element is not 0, or the loss not finite: else a small half sum is no news."""
    signs = [tf.reduce_any(tf.not_equal(gradient, tf.zeros((), gradient.dtype))) for gradient in gradients]
    if loss is not None:
        signs.append(tf.logical_not(tf.math.is_finite(loss)))
    return tf.reduce_any(tf.stack(signs))


def details(
    gradients: Sequence[Tensor],
    halves: Tensor,
    loss: Tensor | None,
    data: Data,
    others: Sequence[Tensor] = (),
) -> Tensor:
    """Return float64 `[3 + 4n]`: the extras, n half sums of squares, n counts of non-finite elements.

    Then come the n largest absolute values, NaN where an element is, and n shares of elements that are 0.
    The half sums are exact enough at every magnitude: where float32 cannot hold one, it is computed again,
    scaled. The extras count what is not finite in inputs, labels and weights, and are `NOT_MEASURED` unless
    the loss, a gradient or one of the half sums of `others` is not finite.
    """
    facts = tf.stack([_facts_function(gradient.dtype)(gradient) for gradient in gradients], axis=1)
    bad, rescaled, largest, zeros = tf.unstack(facts)
    exact = tf.where(tf.equal(bad, 0.0), rescaled, _f64(halves))
    is_bad = _is_bad(bad, loss)
    if others:
        is_bad = tf.logical_or(is_bad, _overflows(others))
    return tf.concat([_extras(is_bad, data), exact, bad, largest, zeros], 0)


@functools.cache
def _facts_function(dtype: tf.DType) -> Callable[[Tensor], Tensor]:
    """Return a function for gradients of any shape: traced once, where a model has hundreds of them."""
    specs = [tf.TensorSpec(None, dtype)]
    facts: Callable[[Tensor], Tensor] = tf.function(_facts, input_signature=specs, autograph=False)
    return facts


def _facts(gradient: Tensor) -> Tensor:
    return tf.stack(
        [
            _count_nonfinite(gradient),
            _rescaled_half_sum(gradient),
            _largest(gradient),
            _zero_share(gradient),
        ]
    )


def has_bad(details: Tensor, count: int, others: Sequence[Tensor] = ()) -> Tensor:
    """Return whether one of `count` gradients with these details is bad, or one with half sums `others`."""
    here = tf.reduce_sum(details[len(EXTRAS) + count : len(EXTRAS) + 2 * count]) > 0.0
    return tf.logical_or(here, _overflows(others)) if others else here


def _overflows(halves: Sequence[Tensor]) -> Tensor:
    return tf.logical_not(tf.math.is_finite(tf.reduce_sum(stacked(halves))))


def has_nonfinite(gradients: Sequence[Any]) -> Tensor:
    """Return `[1]`: 1.0 where an element of the gradients is not finite, else 0.0."""
    bad = tf.add_n([_count_nonfinite(getattr(one, "values", one)) for one in gradients])
    return _f64(bad > 0.0)[tf.newaxis]


def details_in_one_pass(gradients: Sequence[Tensor], loss: Tensor | None, data: Data) -> Tensor:
    """Return the same as `details` for XLA, in every step, up to the counts.

    It does without a branch that takes the gradients: with one, XLA rounds the user's own step otherwise.
    XLA fuses these reductions with what makes the gradient, so that they cost no pass over memory on a GPU.
    """
    bad = tf.stack([_count_nonfinite(gradient) for gradient in gradients])
    halves = tf.stack([_f64(half_sum(gradient)) for gradient in gradients])
    huge = tf.stack([_shifted_half_sum(gradient, -SHIFT) for gradient in gradients])
    tiny = tf.stack([_shifted_half_sum(gradient, SHIFT) for gradient in gradients])
    is_finite = tf.equal(bad, 0.0)
    is_huge = tf.logical_and(is_finite, tf.logical_not(tf.math.is_finite(halves)))
    is_tiny = tf.logical_and(is_finite, halves < SMALLEST_SAFE_SUM)
    halves = tf.where(is_huge, huge, tf.where(is_tiny, tiny, halves))
    return tf.concat([_extras(_is_bad(bad, loss), data), halves, bad], 0)


def _is_bad(counts: Tensor, loss: Tensor | None) -> Tensor:
    has_bad = tf.reduce_sum(counts) > 0.0
    return has_bad if loss is None else tf.logical_or(has_bad, tf.logical_not(tf.math.is_finite(loss)))


def _extras(is_bad: Tensor, data: Data) -> Tensor:
    return tf.cond(
        is_bad,
        lambda: tf.stack([_count_all(tensors) for tensors in data]),
        lambda: tf.constant([NOT_MEASURED] * len(EXTRAS), tf.float64),
    )


def dense(gradient: Tensor, use_xla: bool) -> Tensor:
    """Return a tensor with the norm of `gradient`: rows of IndexedSlices that share an index are added up."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    if use_xla:  # no tf.unique there: its result has no static shape
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])
    unique, places = tf.unique(tf.reshape(gradient.indices, [-1]))
    return tf.math.unsorted_segment_sum(gradient.values, places, tf.size(unique))


def is_measurable(tensor: object) -> bool:
    """Return True for what can hold a NaN: real floating point tensors."""
    dtype = getattr(tensor, "dtype", None)
    return dtype is not None and tf.as_dtype(dtype).is_floating and getattr(tensor, "shape", None) is not None


def as_scalar(value: Tensor) -> Tensor:
    """Return `whole` as float64."""
    return _f64(whole(value))


def whole(loss: Tensor) -> Tensor:
    """Return a loss as one number: one that has a value for each sample is optimised as their sum."""
    tensor = tf.convert_to_tensor(loss)
    return tensor if tensor.shape.rank == 0 else tf.reduce_sum(tensor)


def _f64(value: Tensor) -> Tensor:
    return tf.cast(value, tf.float64)


def _same_dtype(tensors: Sequence[Tensor]) -> bool:
    return len({tensor.dtype for tensor in tensors}) == 1


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)


def _rescaled_half_sum(gradient: Tensor) -> Tensor:
    wide = _wide(gradient)
    largest = tf.maximum(tf.reduce_max(tf.abs(wide)), tf.zeros((), wide.dtype))  # -Inf, where it is empty
    scaled = wide / tf.where(largest > 0, largest, tf.ones_like(largest))
    return tf.square(_f64(largest)) * _f64(tf.nn.l2_loss(scaled))


def _shifted_half_sum(gradient: Tensor, shift: int) -> Tensor:
    wide = _wide(gradient)
    return _f64(tf.nn.l2_loss(wide * tf.constant(2.0**shift, wide.dtype))) * 2.0 ** (-2 * shift)


def _count_nonfinite(tensor: Tensor) -> Tensor:
    return _f64(tf.math.count_nonzero(tf.logical_not(tf.math.is_finite(tensor))))


def _largest(gradient: Tensor) -> Tensor:
    """Return the largest absolute value, 0 where there is no element; NaN is larger than all."""
    is_nan = tf.math.is_nan(gradient)
    zero = tf.zeros((), gradient.dtype)
    largest = tf.maximum(tf.reduce_max(tf.abs(tf.where(is_nan, zero, gradient))), zero)
    return tf.where(tf.reduce_any(is_nan), tf.constant(np.nan, tf.float64), _f64(largest))


def _zero_share(gradient: Tensor) -> Tensor:
    count = tf.size(gradient, out_type=tf.int64)
    return _f64(count - tf.math.count_nonzero(gradient)) / _f64(tf.maximum(count, 1))


def _count_all(tensors: Sequence[Tensor] | None) -> Tensor:
    if tensors is None:
        return tf.constant(NOT_MEASURED, tf.float64)
    counts = [_count_nonfinite(tf.convert_to_tensor(tensor)) for tensor in tensors]
    return tf.add_n(counts) if counts else tf.constant(0.0, tf.float64)
