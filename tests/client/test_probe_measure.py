"""The graph's numbers against numpy, where float32 makes them hard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from training import Array
from trainvitals.probe import measure
from trainvitals.probe.row import NOT_MEASURED
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow

MODES = pytest.mark.parametrize("use_xla", [False, True])


def measured(
    gradients: list[Any], use_xla: bool, loss: float = 1.0
) -> tuple[list[float], Array, list[float]]:
    """Return extras, norms and counts of `gradients`, for a batch with one NaN and weights with two."""
    inputs, labels = [tf.constant([1.0, np.nan])], [tf.constant([1.0])]
    weights = [tf.Variable([np.inf, np.nan, 0.0])]

    @tf.function(jit_compile=use_xla)  # type: ignore[untyped-decorator]
    def run(*tensors: Value) -> Value:
        total, data = tf.constant(loss, tf.float64), (inputs, labels, weights)
        if use_xla:
            return measure.details_in_one_pass(tensors, total, data), True
        halves = measure.half_sums(tensors)
        return measure.details(tensors, halves, total, data), measure.is_suspicious(halves, total)

    numbers, is_suspicious = run(*[tf.constant(one) for one in gradients])
    numbers = numbers.numpy()
    if not is_suspicious:  # then the half sums are all that is kept
        halves = measure.half_sums([tf.constant(one) for one in gradients]).numpy()
        numbers = np.array([NOT_MEASURED] * 3 + list(halves) + [0] * len(gradients))
    count = len(gradients)
    return list(numbers[:3]), np.sqrt(2 * numbers[3 : 3 + count]), list(numbers[3 + count : 3 + 2 * count])


@MODES
@pytest.mark.parametrize("size", [1e-38, 1e-24, 1e-12, 1.0, 1e19, 1e30, 2e37])
def test_norms_are_right_at_every_magnitude(size: float, use_xla: bool) -> None:
    gradient = np.array([[3.0, -4.0], [0.0, 12.0]], np.float32) * np.float32(size)
    extras, norms, counts = measured([gradient], use_xla)
    np.testing.assert_allclose(norms, [np.linalg.norm(gradient.astype(np.float64))], rtol=1e-5)
    assert counts == [0]
    assert extras == [-1, -1, -1]


@MODES
def test_nonfinite_elements_are_counted_and_named_by_the_norm(use_xla: bool) -> None:
    good = np.array([3.0, 4.0], np.float32)
    nan, inf = np.array([np.nan, 1.0, np.nan], np.float32), np.array([-np.inf, 1e30], np.float32)
    extras, norms, counts = measured([good, nan, inf], use_xla)
    assert counts == [0, 2, 1]
    assert norms[0] == pytest.approx(5)
    assert np.isnan(norms[1])
    assert norms[2] == np.inf
    assert extras == [1, 0, 2]


@MODES
def test_a_nonfinite_loss_alone_has_the_batch_looked_at(use_xla: bool) -> None:
    extras, norms, counts = measured([np.array([3.0, 4.0], np.float32)], use_xla, loss=-np.inf)
    assert (extras, counts) == ([1, 0, 2], [0])
    assert norms[0] == pytest.approx(5)


@MODES
def test_half_precision_and_zero_gradients(use_xla: bool) -> None:
    half = np.full(300, 60000.0, np.float16)  # a float16 sum of squares would overflow
    _, norms, counts = measured([half, np.zeros(3, np.float32), np.full(4, 2.0)], use_xla)
    expected = np.array([np.linalg.norm(half.astype(np.float64)), 0.0, 4.0])
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    assert counts == [0, 0, 0]


def test_details_tell_the_largest_value_in_its_own_dtype_and_the_share_of_zeros() -> None:
    half = np.array([0.0, 2.0**-24, -60000.0, 0.0], np.float16)
    bad = np.array([np.nan, -np.inf, 0.0], np.float32)
    gradients = [tf.constant(one) for one in (half, bad, np.array([-np.inf, 1.0]), np.zeros((0, 3)))]
    halves = measure.half_sums(gradients)
    numbers = measure.details(gradients, halves, None, (None, None, None)).numpy()[3 + 8 :]
    np.testing.assert_array_equal(numbers[:4], [np.abs(half).max(), np.nan, np.inf, 0.0])
    np.testing.assert_allclose(numbers[4:], [np.mean(half == 0), 1 / 3, 0.0, 0.0])


@MODES
def test_rows_of_one_index_are_added_up(use_xla: bool) -> None:
    values, indices = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32), np.array([1, 0, 1])

    @tf.function(jit_compile=use_xla)  # type: ignore[untyped-decorator]
    def run(values: Value) -> Value:
        slices = tf.IndexedSlices(values, tf.constant(indices), tf.constant([4, 2]))
        return tf.nn.l2_loss(measure.dense(slices, use_xla))

    whole = np.zeros((4, 2))
    np.add.at(whole, indices, values)
    assert float(run(tf.constant(values))) == pytest.approx(np.square(whole).sum() / 2)
