"""The autopsy of steps that are a loop's own function."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import dense, line_of, loop_report, numbers, spoilt
from trainvitals.autopsy.report import Report
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def said(report: Report) -> tuple[Value, ...]:
    return report.found, report.operation, report.direction, report.layer, report.line


class Root(keras.layers.Layer):  # type: ignore[misc]
    """Not finite for what is negative."""

    def call(self, x: Value) -> Value:
        return ops.sqrt(x)  # root


def test_a_ragged_batch_is_not_divided_and_its_bad_rows_are_told() -> None:
    def run(batch: Value) -> Value:
        sums = tf.reduce_sum(batch[0], axis=1)
        return tf.reduce_mean(tf.math.log(sums * batch[1]))  # ragged

    words = tf.ragged.constant([[1.0, 2.0], [3.0], [1.0, 1.0, 1.0]])
    report = loop_report(run, (words, np.array([1, -1, 1], "float32")), [])
    assert said(report) == ("operation", "Log", "forward", "", line_of("ragged"))
    assert report.samples == (1,)
    assert "cannot be divided" in report.notes[0]


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
        return tf.reduce_mean(
            tf.matmul(weight, batch[0], transpose_a=True)
        )  # read by no operation of its own

    report = loop_report(run, (numbers(4, 5),), [weight])
    assert said(report) == ("operation", "RealDiv", "forward", "", line_of("normalised"))


def test_what_a_variable_may_have_part_in_is_not_said_to_come_from_the_batch() -> None:
    weight = tf.Variable(np.ones((4, 1), "float32"))

    def run(batch: Value) -> Value:
        return tf.reduce_mean(tf.math.log(tf.matmul(weight, batch[0], transpose_a=True)))

    assert loop_report(run, (-np.ones((4, 5), "float32"),), [weight]).computed_from == ()
    alone = loop_report(lambda batch: tf.math.log(batch[0]), (-np.ones((4, 5), "float32"),), [weight])
    assert alone.computed_from == ("x",)


def test_an_operation_that_takes_the_slow_way_into_tensorflow_is_named_like_any_other() -> None:
    report = loop_report(
        lambda batch: tf.reduce_mean(batch[0], axis=[np.int64(0)]), (np.full((4, 1), 2e38, "float32"),), []
    )
    assert report.operation == "Mean"
    assert report.n_bad_samples == 2
    assert "takes these together" in report.notes[0]


def test_samples_that_fail_only_in_their_places_are_said_to_do_so() -> None:
    def run(batch: Value) -> Value:
        place = tf.range(tf.shape(batch[0])[0])
        is_bad = (place >= 3) & (place <= 4) & (tf.cast(place, tf.float32) == batch[0])
        return tf.reduce_mean(tf.math.log(tf.where(is_bad, -1.0, 1.0)))  # by place

    report = loop_report(run, (np.arange(6, dtype="float32"),), [])
    assert said(report) == ("operation", "Log", "forward", "", line_of("by place"))
    assert report.samples == (3, 4)
    assert "in their places" in report.notes[0]


def test_of_two_bad_variables_the_one_that_was_read_is_named() -> None:
    spare = tf.Variable(np.full((4, 1), np.inf, "float32"), name="spare")
    weight = tf.Variable(np.full((4, 1), np.nan, "float32"), name="weight")

    def run(batch: Value) -> Value:
        return tf.reduce_mean(tf.matmul(weight, batch[0], transpose_a=True))

    report = loop_report(run, (numbers(4, 5),), [spare, weight])
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


def test_a_loop_that_wants_arrays_of_numpy_gets_them() -> None:
    def run(batch: Value) -> Value:
        rows = batch[0].astype("float32").copy()  # no tensor has these
        return tf.reduce_mean(tf.sqrt(rows))  # of an array

    report = loop_report(run, (spoilt(6, 4, sample=1),), [])
    assert said(report) == ("operation", "Sqrt", "forward", "", line_of("of an array"))
    assert report.samples == (1,)
