"""The autopsy of steps whose loss is finite and whose gradients are not, or whose update is not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, numbers, report_of, scene_of
from trainvitals.autopsy.examine import examine
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def said(report: Report) -> tuple[Value, ...]:
    return report.found, report.operation, report.gradient_of, report.direction, report.layer, report.line


def layered(call: Value, name: str) -> Value:
    return compiled(dense(keras.layers.Lambda(call, name=name), keras.layers.Dense(1, name="head")))


def before(call: Value, name: str) -> Value:
    """Return a model whose weights get their gradients through `call`."""
    head = keras.layers.Dense(3, name="hidden", use_bias=False)
    return compiled(dense(head, keras.layers.Lambda(call, name=name), keras.layers.Dense(1, name="head")))


def test_the_gradient_of_a_square_root_at_zero() -> None:
    model = before(lambda x: tf.sqrt(tf.square(x)), "distance")  # sqrt
    x = numbers(6, 4)
    x[4] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "SqrtGrad", "Sqrt", "backward", "distance", line_of("sqrt"))
    assert report.inputs[0].min == 0.0
    assert report.samples == (4,)
    assert not report.is_unselected


def test_the_gradient_of_a_power_below_one_at_zero() -> None:
    model = before(lambda x: ops.abs(x) ** 0.5, "power")  # power
    x = numbers(6, 4)
    x[[1, 5]] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "Pow", "Pow", "backward", "power", line_of("power"))
    assert report.samples == (1, 5)


def test_the_gradient_that_comes_through_a_where_which_left_the_element_out() -> None:
    model = before(lambda x: ops.where(x > 0, ops.log(x), 0 * x), "safe_log")  # where
    model.layers[0].kernel.assign(np.ones((4, 3)))
    x = np.abs(numbers(6, 4))
    x[3] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "Reciprocal", "Log", "backward", "safe_log", line_of("where"))
    assert report.is_unselected
    assert report.samples == (3,)


def test_a_where_that_took_the_element_is_not_blamed() -> None:
    model = before(lambda x: ops.where(x > -1, ops.sqrt(ops.abs(x)), 0 * x), "taken")  # taken
    x = numbers(6, 4)
    x[3] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "SqrtGrad", "Sqrt", "backward", "taken", line_of("taken"))
    assert not report.is_unselected


def test_an_infinity_that_vanishes_without_a_where_is_not_blamed_on_one() -> None:
    model = before(lambda x: ops.exp(ops.log(ops.relu(x))), "round_trip")  # round trip
    model.layers[0].kernel.assign(np.ones((4, 3)))
    x = np.abs(numbers(6, 4))
    x[1] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report)[1:] == ("Reciprocal", "Log", "backward", "round_trip", line_of("round trip"))
    assert not report.is_unselected
    assert report.samples == (1,)


def test_a_result_that_a_where_left_out_and_the_gradient_met_all_the_same() -> None:
    model = before(lambda x: ops.where(x < 9, ops.log1p(ops.exp(x)), x), "own_softplus")  # softplus
    model.layers[0].kernel.assign(np.ones((4, 3)))
    x = numbers(6, 4)
    x[4] = 50
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "Exp", "", "forward", "own_softplus", line_of("softplus"))
    assert report.is_unselected
    assert report.samples == (4,)


def test_a_result_that_another_operation_swallowed_is_not_blamed_on_a_where() -> None:
    def call(x: Value) -> Value:
        small = ops.exp(-ops.exp(x))  # swallowed
        return ops.where(x < 9, small + 1, x)

    model = before(call, "swallowing")
    model.layers[0].kernel.assign(np.ones((4, 3)))
    x = numbers(6, 4)
    x[4] = 50
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "Exp", "", "forward", "swallowing", line_of("swallowed"))
    assert not report.is_unselected


def test_a_maximum_that_left_the_element_out_is_not_called_a_where() -> None:
    model = before(lambda x: ops.maximum(-5.0, ops.log(ops.relu(x))), "floored")  # floored
    model.layers[0].kernel.assign(np.ones((4, 3)))
    x = np.abs(numbers(6, 4))
    x[5] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report)[1:] == ("Reciprocal", "Log", "backward", "floored", line_of("floored"))
    assert not report.is_unselected


def test_the_gradient_of_a_quotient_that_a_where_left_out() -> None:
    model = before(lambda x: ops.where(x > 0, 1 / x, 0 * x), "safe_quotient")  # quotient
    model.layers[0].kernel.assign(np.ones((4, 3)))
    x = np.abs(numbers(6, 4)) + 0.1
    x[2] = 0
    report = report_of(model, x, numbers(6, 1))
    assert (report.gradient_of, report.line) == ("RealDiv", line_of("quotient"))
    assert report.is_unselected


def test_the_gradient_of_a_norm_of_zero() -> None:
    model = before(lambda x: ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True)), "length")  # norm
    x = numbers(6, 4)
    x[2] = 0
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "SqrtGrad", "Sqrt", "backward", "length", line_of("norm"))
    assert report.samples == (2,)


def test_a_gradient_of_the_users_own_is_named_by_the_line_inside_of_it() -> None:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def inverse(x: Value) -> Value:
        def gradient(upstream: Value) -> Value:
            return upstream / tf.square(x - x)  # own gradient

        return tf.identity(x), gradient

    report = report_of(before(inverse, "inverse"), numbers(6, 4), numbers(6, 1))
    assert said(report) == ("operation", "RealDiv", "", "backward", "inverse", line_of("own gradient"))


def test_adam_divides_by_zero_in_variables_of_float16() -> None:
    keras.config.set_dtype_policy("float16")
    try:
        model = dense(keras.layers.Dense(2, name="hidden"), keras.layers.Dense(1, name="head"))
        compiled(model, optimizer=keras.optimizers.Adam(1e-3, epsilon=1e-8))
        x = numbers(8, 4)
        report = report_of(model, x, np.asarray(model(x)) + np.float16(1e-3))
    finally:
        keras.config.set_dtype_policy("float32")
    assert said(report) == ("operation", "RealDiv", "", "update", "hidden", 0)
    assert report.inputs[1].min == 0.0  # the square root of v and epsilon: both are nothing in float16
    assert report.inputs[0].dtype == "float16"


def test_a_loss_scale_of_zero_makes_nan_of_good_gradients() -> None:
    inner = keras.optimizers.SGD(0.1)
    scaler = keras.optimizers.LossScaleOptimizer(inner)
    model = compiled(dense(keras.layers.Dense(1, name="head")), optimizer=scaler)
    scaler.dynamic_scale.assign(0.0)
    report = report_of(model, numbers(4, 4), numbers(4, 1))
    assert said(report) == ("operation", "RealDiv", "", "update", "head", 0)
    assert report.inputs[1].max == 0.0


def overflowing_only_when_scaled() -> Value:
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**15)
    layer = keras.layers.Dense(1, name="head", dtype="mixed_float16")
    return compiled(dense(layer), optimizer=scaler)


def test_gradients_that_overflow_for_their_scale_alone_are_a_skip_and_no_finding() -> None:
    report = report_of(overflowing_only_when_scaled(), numbers(4, 4), numbers(4, 1) * 100)
    assert report.found == "nothing"
    assert not report.is_reproduced
    assert "loss scale of 32768" in report.notes[0]


def test_gradients_that_overflow_for_their_scale_are_named_when_asked_for() -> None:
    model = overflowing_only_when_scaled()
    scene = scene_of(model, numbers(4, 4), numbers(4, 1) * 100)
    asked = type(scene)(
        scene.step, model, scene.run, scene.data, scene.state, "before_step", counts_overflow=True
    )
    report = examine(asked)
    assert said(report) == ("operation", "Cast", "Cast", "backward", "", 0)
    assert (report.inputs[0].max or 0) > 65504  # float16 ends there


def test_what_does_not_depend_on_the_scale_is_named_without_it() -> None:
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**15)
    hidden = keras.layers.Dense(3, name="hidden")
    root = keras.layers.Lambda(lambda x: ops.sqrt(ops.abs(x)), name="root")  # scaled sqrt
    model = compiled(dense(hidden, root, keras.layers.Dense(1)), optimizer=scaler)
    x = numbers(4, 4)
    x[0] = 0
    report = report_of(model, x, numbers(4, 1))
    assert said(report) == ("operation", "SqrtGrad", "Sqrt", "backward", "root", line_of("scaled sqrt"))
    assert abs(report.inputs[1].max or 0) < 10  # the gradient that came in, not 32768 times that
    assert report.samples == (0,)
