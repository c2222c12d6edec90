"""Which inputs that are not finite explain an output that is not finite."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from trainvitals.autopsy.elementwise import explaining
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow

NAN, INF = np.nan, np.inf


def explained(kind: str, operation: Value, *arrays: Value) -> list[int]:
    """Return the places of the inputs that explain what `operation` makes of them."""
    inputs = [tf.constant(array) for array in arrays]
    floats = [one for one in inputs if one.dtype.is_floating]
    bad = [one for one in floats if not np.isfinite(one.numpy()).all()]
    found = explaining(kind, inputs, bad, operation(*inputs))
    return [place for place, one in enumerate(inputs) if any(one is other for other in found)]


def test_a_nan_explains_a_nan_and_not_the_infinity_beside_it() -> None:
    assert explained("AddV2", tf.add, [0.0, NAN, 1.0], [-INF, -INF, 0.0]) == [0]


def test_an_infinity_explains_where_there_is_no_nan() -> None:
    assert explained("AddV2", tf.add, [0.0, 1.0], [-INF, 0.0]) == [1]
    assert explained("AddV2", tf.add, [INF, 1.0], [-INF, 0.0]) == [0, 1]  # their sum is a NaN


def test_what_a_finite_element_was_made_of_explains_nothing() -> None:
    assert explained("RealDiv", tf.divide, [1.0, INF], [INF, 1.0]) == [0]  # one by Infinity is zero
    assert explained("Minimum", tf.minimum, [INF, 1.0], [2.0, -INF]) == [1]


def test_elements_are_compared_as_they_are_spread() -> None:
    column, table = [[0.0], [NAN]], [[1.0, -INF], [1.0, 1.0]]
    assert explained("Mul", tf.multiply, column, table) == [0]
    assert explained("Sub", tf.subtract, [[INF, 0.0]], [[1.0, 1.0], [1.0, 2.0]]) == [0]


def test_the_side_that_was_not_selected_explains_nothing() -> None:
    chosen = [True, False, False]
    assert explained("SelectV2", tf.where, chosen, [NAN, NAN, 0.0], [-INF, 1.0, 2.0]) == [1]
    assert explained("SelectV2", tf.where, chosen, [1.0, NAN, NAN], [NAN, 1.0, INF]) == [2]
    assert explained("SelectV2", tf.where, chosen, [INF, NAN, NAN], [NAN, 1.0, INF]) == [1, 2]


def test_the_older_select_takes_whole_rows() -> None:
    sides = [[1.0, NAN], [2.0, 2.0]], [[INF, INF], [3.0, 4.0]]
    assert explained(
        "Select", lambda c, x, y: tf.raw_ops.Select(condition=c, x=x, y=y), [True, False], *sides
    ) == [1]


def test_a_product_of_matrices_with_a_nan_is_explained_by_that() -> None:
    assert explained("MatMul", tf.matmul, [[INF, 1.0], [0.0, 0.0]], [[NAN, 0.0], [0.0, 0.0]]) == [1]
    assert explained("MatMul", tf.matmul, [[INF, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]) == [0]
