"""The autopsy in the ways in which people write models."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, numbers, report_of, spoilt
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def said(report: Report) -> tuple[Value, ...]:
    return report.found, report.operation, report.direction, report.layer, report.line


class Root(keras.layers.Layer):  # type: ignore[misc]
    """Not finite for what is negative."""

    def call(self, x: Value) -> Value:
        return ops.sqrt(x)  # root


def test_a_layer_that_is_used_twice_in_a_functional_model() -> None:
    first, second = keras.Input((4,)), keras.Input((4,))
    root = Root(name="root")
    joined = keras.layers.Concatenate()([root(first), root(second)])
    model = compiled(keras.Model([first, second], keras.layers.Dense(1)(joined)))
    report = report_of(model, [np.abs(numbers(5, 4)), spoilt(5, 4, sample=2)], numbers(5, 1))
    assert said(report) == ("operation", "Sqrt", "forward", "root", line_of("root"))
    assert report.samples == (2,)


def test_an_operation_that_is_a_node_of_a_functional_model_is_named_like_a_layer() -> None:
    x = keras.Input((4,))
    model = compiled(keras.Model(x, keras.layers.Dense(1)(ops.sqrt(x))))
    report = report_of(model, spoilt(5, 4, sample=4), numbers(5, 1))
    assert (report.operation, report.line, report.samples) == ("Sqrt", 0, (4,))
    assert report.layer.startswith("sqrt")


def test_a_subclassed_model_with_a_step_of_its_own_and_inner_functions() -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = keras.Sequential([keras.layers.Dense(3, name="wide"), Root(name="root")], name="body")
            self.head = keras.layers.Dense(1, name="head")

        def call(self, x: Value) -> Value:
            return self.head(self.body(x))

        @tf.function  # type: ignore[untyped-decorator]
        def train_step(self, data: Value) -> Value:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Own()
    model(numbers(2, 4))
    report = report_of(compiled(model), numbers(5, 4), numbers(5, 1))
    assert said(report) == ("operation", "Sqrt", "forward", "body/root", line_of("root"))


def test_what_a_model_does_in_its_own_call_is_the_models_and_not_the_losss() -> None:
    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(name="net")
            self.wide = keras.layers.Dense(3, name="wide", use_bias=False)
            self.head = keras.layers.Dense(1, name="head")

        def call(self, x: Value) -> Value:
            h = self.wide(x)
            return self.head(h / ops.norm(h, axis=-1, keepdims=True))  # own call

    x = numbers(6, 4)
    x[3] = 0
    model = compiled(Net())
    model(x)
    report = report_of(model, x, numbers(6, 1))
    assert said(report) == ("operation", "RealDiv", "forward", "net", line_of("own call"))
    assert report.samples == (3,)


def test_a_cond_and_a_loop_of_tensorflow_and_of_keras() -> None:
    class Branched(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Value) -> Value:
            total = tf.cond(tf.reduce_all(x > -9), lambda: x, lambda: -x)
            total = tf.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t * 1.5), [0, total])[1]
            return ops.while_loop(
                lambda i, _: i < 2,
                lambda i, t: (i + 1, ops.log(t)),  # log in a loop
                (0, total),
            )[1]

    x = np.full((4, 4), 2.0, "float32")
    x[3] = 0.1  # the log of it is negative, and has none
    report = report_of(compiled(dense(Branched(name="branched"), keras.layers.Dense(1))), x, numbers(4, 1))
    assert said(report) == ("operation", "Log", "forward", "branched", line_of("log in a loop"))
    assert report.samples == (3,)


@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM, keras.layers.SimpleRNN])
def test_a_recurrent_layer_of_keras_is_named(kind: Value) -> None:
    layer = kind(4, activation="relu", name="recurrent", recurrent_initializer="ones")
    model = keras.Sequential([keras.Input((5, 3)), layer, keras.layers.Dense(1)])
    model.layers[0].cell.recurrent_kernel.assign(model.layers[0].cell.recurrent_kernel * 1e38)
    report = report_of(compiled(model), np.abs(numbers(6, 5, 3)) * 10, numbers(6, 1))
    assert (report.found, report.operation, report.line) == ("operation", "MatMul", 0)
    assert report.layer.split("/")[0] == "recurrent"


def test_an_attention_of_keras_is_named_by_the_layer_inside_of_it() -> None:
    x = keras.Input((5, 4))
    attention = keras.layers.MultiHeadAttention(2, 3, name="attention")
    model = compiled(keras.Model(x, keras.layers.Dense(1)(attention(x, x))))
    attention.query_dense.kernel.assign(np.full(attention.query_dense.kernel.shape, 3e38))
    report = report_of(model, np.abs(numbers(3, 5, 4)) + 1, numbers(3, 5, 1))
    assert (report.found, report.direction) == ("operation", "forward")
    assert report.layer == "attention/query"


def test_statistics_of_a_batch_norm_are_those_from_before_the_step() -> None:
    norm = keras.layers.BatchNormalization(name="norm", momentum=0.0)
    model = compiled(dense(norm, Root(name="root"), keras.layers.Dense(1)))
    report = report_of(model, numbers(8, 4), numbers(8, 1))
    assert said(report) == ("operation", "Sqrt", "forward", "root", line_of("root"))
    assert report.batch_size == 8
    assert report.n_bad_samples > 0


@pytest.mark.parametrize("start", [0.0, np.inf])
def test_a_statistic_that_the_step_spoils_is_traced_and_one_that_was_so_is_left_alone(start: float) -> None:
    class Tracked(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Value) -> None:
            fixed = keras.initializers.Constant(start)
            self.least = self.add_weight(shape=(), initializer=fixed, trainable=False, name="least")

        def call(self, x: Value) -> Value:
            self.least.assign(ops.log(ops.min(x)) if start == 0 else self.least)  # statistic
            return x

    x = np.abs(numbers(5, 4))
    x[3, 1] = 0
    report = report_of(compiled(dense(Tracked(name="tracked"), keras.layers.Dense(1))), x, numbers(5, 1))
    if start == 0:
        assert said(report) == ("operation", "Log", "forward", "tracked", line_of("statistic"))
        assert report.samples == (3,)
    else:
        assert report.found == "nothing"


def test_the_sparse_gradient_of_an_embedding() -> None:
    power = keras.layers.Lambda(lambda x: ops.abs(x) ** 0.5, name="power")  # power
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(6, 3, name="words"), power])
    compiled(model)
    model.layers[0].embeddings.assign(np.vstack([np.zeros((1, 3)), np.ones((5, 3))]))
    report = report_of(model, np.array([[1, 2], [0, 3], [4, 5]]), numbers(3, 2, 3))
    assert (report.operation, report.gradient_of, report.direction) == ("Pow", "Pow", "backward")
    assert report.line == line_of("power")
    assert report.samples == (1,)


def test_gradients_that_are_accumulated_over_steps_are_those_of_this_step() -> None:
    power = keras.layers.Lambda(lambda x: ops.abs(x) ** 0.5, name="power")  # accumulated
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    model = compiled(dense(keras.layers.Dense(3, name="hidden"), power), optimizer=optimizer)
    x = numbers(5, 4)
    x[0] = 0
    report = report_of(model, x, numbers(5, 3))
    assert said(report) == ("operation", "Pow", "backward", "power", line_of("accumulated"))
