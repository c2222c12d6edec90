"""The autopsy in the ways in which people write models and training steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, loop_report, numbers, report_of
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def said(report: Report) -> tuple[Value, ...]:
    return report.found, report.operation, report.direction, report.layer, report.line


class Root(keras.layers.Layer):  # type: ignore[misc]
    """Not finite for what is negative."""

    def call(self, x: Value) -> Value:
        return ops.sqrt(x)  # root


def spoilt(*shape: int, sample: int) -> Value:
    """Return an all positive batch but for one sample."""
    x = np.abs(numbers(*shape)) + 0.1
    x[sample] = -x[sample]
    return x


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


def test_a_ragged_batch_is_not_divided_and_its_bad_rows_are_told() -> None:
    def run(batch: Value) -> Value:
        sums = tf.reduce_sum(batch[0], axis=1)
        return tf.reduce_mean(tf.math.log(sums * batch[1]))  # ragged

    words = tf.ragged.constant([[1.0, 2.0], [3.0], [1.0, 1.0, 1.0]])
    report = loop_report(run, (words, np.array([1, -1, 1], "float32")), [])
    assert said(report) == ("operation", "Log", "forward", "", line_of("ragged"))
    assert report.samples == (1,)
    assert "cannot be divided" in report.notes[0]


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


def test_the_second_network_of_a_loop_with_two_optimizers() -> None:
    generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, name="g")], name="generator")
    critic = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name="d"), Root(name="r")], name="critic"
    )
    optimizers = (keras.optimizers.Adam(), keras.optimizers.Adam())
    for model, optimizer in zip((generator, critic), optimizers, strict=True):
        optimizer.build(model.trainable_variables)

    def run(batch: Value) -> Value:
        real, noise = batch
        with tf.GradientTape(persistent=True) as tape:
            made = generator(noise)
            first = tf.reduce_mean(tf.square(made))
            second = tf.reduce_mean(critic(real) - critic(made))
        for model, loss, optimizer in ((generator, first, optimizers[0]), (critic, second, optimizers[1])):
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return first, second

    variables = [*generator.variables, *critic.variables]
    report = loop_report(run, (numbers(4, 4), numbers(4, 2)), variables, optimizers)
    assert said(report) == ("operation", "Sqrt", "forward", "critic/r", line_of("root"))


def test_a_loop_of_plain_variables_whose_gradients_are_clipped_by_hand() -> None:
    weight = tf.Variable(numbers(4, 1))

    def run(batch: Value) -> Value:
        x, y = batch
        with tf.GradientTape() as tape:
            error = tf.matmul(x, weight) - y
            loss = tf.reduce_mean(error * error)
        (gradient,) = tape.gradient(loss, [weight])
        small = gradient / tf.norm(gradient - gradient)  # clipped
        weight.assign_sub(0.1 * small)
        return loss

    report = loop_report(run, (numbers(5, 4), numbers(5, 1)), [weight])
    assert said(report) == ("operation", "RealDiv", "update", "Variable:0", line_of("clipped"))
    assert report.inputs[1].max == 0.0


def test_a_plain_variable_that_the_step_itself_spoilt_is_followed_to_its_writer() -> None:
    weight = tf.Variable(np.ones((4, 1), "float32"))

    def run(batch: Value) -> Value:
        weight.assign(weight / (weight - weight))  # normalised
        return tf.reduce_mean(tf.matmul(batch[0], weight))

    report = loop_report(run, (numbers(5, 4),), [weight])
    assert said(report) == ("operation", "RealDiv", "forward", "", line_of("normalised"))


def test_of_two_bad_variables_the_one_that_was_read_is_named() -> None:
    spare = tf.Variable(np.full((4, 1), np.inf, "float32"), name="spare")
    weight = tf.Variable(np.full((4, 1), np.nan, "float32"), name="weight")
    report = loop_report(lambda batch: tf.reduce_mean(batch[0] @ weight), (numbers(5, 4),), [spare, weight])
    assert (report.found, report.layer, report.n_bad) == ("weight", "weight:0", 4)


def test_rows_that_are_not_the_samples_are_found_out() -> None:
    table = tf.Variable([[1.0], [1.0], [0.0], [1.0], [1.0], [1.0]])  # as many rows as samples

    def run(batch: Value) -> Value:
        return tf.reduce_mean(tf.gather(tf.math.log(table), batch[0]))  # log of a table

    report = loop_report(run, (np.array([0, 1, 3, 5, 2, 4]),), [table])
    assert (report.operation, report.line) == ("Log", line_of("log of a table"))
    assert report.samples == (4,)  # which looks up the third row


def test_a_loop_that_only_returns_its_loss() -> None:
    def run(batch: Value) -> Value:
        return tf.reduce_mean(tf.math.log(batch[0])), "and more"  # only a loss

    report = loop_report(run, (spoilt(6, 4, sample=5),), [])
    assert said(report) == ("operation", "Log", "forward", "", line_of("only a loss"))
    assert report.samples == (5,)


def test_a_loop_that_only_returns_a_finite_loss_is_differentiated_for_it() -> None:
    weight = tf.Variable(np.ones((4, 1), "float32"))

    def run(batch: Value) -> Value:
        return tf.reduce_mean(tf.sqrt(tf.matmul(batch[0], weight)))  # root of a loop

    x = np.abs(numbers(5, 4))
    x[3] = 0
    report = loop_report(run, (x,), [weight])
    assert said(report) == ("operation", "SqrtGrad", "backward", "", line_of("root of a loop"))
    assert (report.gradient_of, report.samples) == ("Sqrt", (3,))


def test_a_penalty_on_gradients_is_named_by_the_line_that_it_goes_through() -> None:
    model = dense(keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1, name="critic"))

    def run(batch: Value) -> Value:
        x = batch[0]
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = model(x) + masked
            slope = inner.gradient(score, x)
            norm = tf.sqrt(tf.reduce_sum(tf.square(slope * batch[1]), axis=1))  # norm of a slope
            loss = tf.reduce_mean(tf.square(norm - 1))
        gradients = outer.gradient(loss, model.trainable_variables)
        return loss, gradients

    masked = tf.constant([[0.0], [0.0], [0.0], [0.0], [-np.inf]])  # harmless: only its slope is asked for
    share = np.ones((5, 1), "float32")
    share[2] = 0
    report = loop_report(run, (numbers(5, 4), share), model.variables)
    assert said(report) == ("operation", "SqrtGrad", "backward", "", line_of("norm of a slope"))


def test_gradients_that_are_accumulated_over_steps_are_those_of_this_step() -> None:
    power = keras.layers.Lambda(lambda x: ops.abs(x) ** 0.5, name="power")  # accumulated
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=4)
    model = compiled(dense(keras.layers.Dense(3, name="hidden"), power), optimizer=optimizer)
    x = numbers(5, 4)
    x[0] = 0
    report = report_of(model, x, numbers(5, 3))
    assert said(report) == ("operation", "Pow", "backward", "power", line_of("accumulated"))


def test_a_loop_that_wants_arrays_of_numpy_gets_them() -> None:
    def run(batch: Value) -> Value:
        rows = batch[0].astype("float32").copy()  # no tensor has these
        return tf.reduce_mean(tf.sqrt(rows))  # of an array

    report = loop_report(run, (spoilt(6, 4, sample=1),), [])
    assert said(report) == ("operation", "Sqrt", "forward", "", line_of("of an array"))
    assert report.samples == (1,)
