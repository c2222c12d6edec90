"""The autopsy of steps whose loss is not finite: what the forward pass did."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, numbers, report_of
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def said(report: Report) -> tuple[Value, ...]:
    return report.found, report.operation, report.direction, report.layer, report.line


def test_log_of_zero_in_a_loss_of_the_users() -> None:
    def entropy(y: Value, p: Value) -> Value:
        return -ops.mean(
            y * ops.log(p)  # log of zero
        )

    x = numbers(8, 4)
    x[[2, 5]] = 1e6  # the sigmoid of these is 1 or 0
    model = compiled(dense(keras.layers.Dense(1, activation="sigmoid", name="head")), entropy)
    model.set_weights([-np.ones((4, 1)), np.zeros(1)])
    report = report_of(model, x, np.ones((8, 1), "float32"))
    assert said(report) == ("operation", "Log", "forward", "", line_of("log of zero"))
    assert report.file == __file__
    assert report.function == "entropy"
    assert report.code == "y * ops.log(p)  # log of zero"
    assert report.inputs[0].min == 0.0
    assert report.inputs[0].shape == (8, 1)
    assert report.output is not None
    assert (report.output.n_neginf, report.n_bad) == (2, 2)
    assert (report.samples, report.n_bad_samples, report.batch_size) == ((2, 5), 2, 8)
    assert report.is_reproduced
    assert report.computed_from == ()  # the weights have part in it


def test_log_of_a_negative_number_in_a_layer_of_the_users() -> None:
    class LogScale(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Value) -> Value:
            return tf.math.log(x)  # log of negative

    x = np.abs(numbers(6, 4)) + 0.1
    x[4, 1] = -2.5
    report = report_of(compiled(dense(LogScale(name="log_scale"), keras.layers.Dense(1))), x, numbers(6, 1))
    assert said(report) == ("operation", "Log", "forward", "log_scale", line_of("log of negative"))
    assert report.inputs[0].min == -2.5
    assert report.computed_from == ("x",)
    assert report.output is not None
    assert report.output.n_nan == 1
    assert report.samples == (4,)


def test_division_by_zero_in_a_nested_layer() -> None:
    class Share(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Value) -> Value:
            return x / ops.sum(x, axis=-1, keepdims=True)  # division

    class Encoder(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="encoder")
            self.share = Share(name="share")

        def call(self, x: Value) -> Value:
            return self.share(x)

    x = np.abs(numbers(5, 4))
    x[3] = 0
    report = report_of(compiled(dense(Encoder(), keras.layers.Dense(1))), x, numbers(5, 1))
    assert said(report) == ("operation", "RealDiv", "forward", "encoder/share", line_of("division"))
    assert [operand.min for operand in report.inputs] == [0.0, 0.0]
    assert report.samples == (3,)


def test_a_softmax_written_by_hand_overflows_in_its_exponential() -> None:
    layer = keras.layers.Lambda(
        lambda z: ops.exp(z) / ops.sum(ops.exp(z), axis=-1, keepdims=True),  # exp
        name="by_hand",
    )
    x = numbers(4, 4)
    x[1, 2] = 89.0
    report = report_of(compiled(dense(layer)), x, numbers(4, 4))
    assert said(report) == ("operation", "Exp", "forward", "by_hand", line_of("exp"))
    assert report.inputs[0].max == 89.0
    assert report.samples == (1,)


def test_zero_times_infinity_is_traced_to_the_infinity() -> None:
    def loss(y: Value, p: Value) -> Value:
        weight = 1 / y  # one by zero
        return ops.mean(weight * (p - p))

    y = np.ones((4, 1), "float32")
    y[2] = 0
    report = report_of(compiled(dense(keras.layers.Dense(1)), loss), numbers(4, 4), y)
    assert said(report) == ("operation", "RealDiv", "forward", "", line_of("one by zero"))
    assert report.samples == (2,)


def test_a_harmless_mask_of_infinity_is_not_named_beside_a_real_failure() -> None:
    class Attention(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Value) -> Value:
            visible = tf.linalg.band_part(tf.ones((4, 4)), -1, 0)
            score = tf.where(visible > 0, x[:, :, None] * x[:, None, :], -np.inf)
            score += tf.math.log(visible)  # harmless too: no row is empty
            return tf.einsum("bij,bj->bi", tf.nn.softmax(score), x)

    root = keras.layers.Lambda(lambda z: ops.sqrt(z - ops.min(z) - 1e-3), name="root")  # sqrt of negative
    report = report_of(
        compiled(dense(Attention(), root, keras.layers.Dense(1))), numbers(6, 4), numbers(6, 1)
    )
    assert said(report) == ("operation", "Sqrt", "forward", "root", line_of("sqrt of negative"))
    assert report.n_bad == 1
    assert len(report.samples) == 1


def test_a_mask_that_was_made_before_a_nan_joined_it_is_not_named() -> None:
    class Masked(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Value) -> Value:
            mask = tf.math.log(tf.constant([1.0, 1.0, 1.0, 0.0]))  # first of all, and harmless
            score = tf.math.reciprocal(tf.sqrt(x))  # sqrt before the sum
            return tf.nn.softmax(score + mask)

    x = np.abs(numbers(6, 4)) + 0.1
    x[5, 0] = -1
    report = report_of(compiled(dense(Masked(name="masked"))), x, numbers(6, 4))
    assert said(report) == ("operation", "Sqrt", "forward", "masked", line_of("sqrt before the sum"))


def test_a_row_of_nothing_but_infinite_mask_is_named_where_it_turns_into_nan() -> None:
    class Masked(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Value) -> Value:
            return ops.softmax(tf.where(x > 0, x, tf.constant(-np.inf)))  # softmax of nothing

    x = np.abs(numbers(6, 4)) + 0.1
    x[0, 0] = -1  # masked in part, which does no harm
    x[4] = -1
    report = report_of(compiled(dense(Masked(name="masked"))), x, numbers(6, 4))
    assert said(report) == ("operation", "Softmax", "forward", "masked", line_of("softmax of nothing"))
    assert report.samples == (4,)


def test_the_log_of_zero_that_where_leaves_out_is_not_named_for_a_failure_elsewhere() -> None:
    def loss(y: Value, p: Value) -> Value:
        safe = tf.where(y > 0, tf.math.log(y), 0.0)
        return tf.reduce_mean(safe + tf.exp(tf.square(p)))  # exp of a square

    y = np.array([[0.0], [1.0], [2.0], [0.0]], "float32")
    x = numbers(4, 4)
    x[1] = 50
    model = compiled(dense(keras.layers.Dense(1)), loss)
    model.set_weights([np.ones((4, 1)), np.zeros(1)])
    report = report_of(model, x, y)
    assert said(report) == ("operation", "Exp", "forward", "", line_of("exp of a square"))
    assert report.samples == (1,)


def test_an_overflow_inside_a_layer_of_keras_names_the_layer_without_a_line() -> None:
    model = compiled(dense(keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1)))
    model.layers[0].kernel.assign(np.full((4, 3), 1e38))
    report = report_of(model, np.abs(numbers(4, 4)) * 10, numbers(4, 1))
    assert said(report) == ("operation", "MatMul", "forward", "hidden", 0)
    assert report.inputs[1].max == pytest.approx(1e38)
    assert (report.file, report.code) == ("", "")


def test_a_loss_of_keras_names_its_operation_without_a_layer() -> None:
    model = compiled(dense(keras.layers.Dense(1)))
    x = numbers(4, 4)
    x[2] *= 1e30
    report = report_of(model, x, numbers(4, 1))
    assert said(report) == ("operation", "Square", "forward", "", 0)
    assert report.samples == (2,)
