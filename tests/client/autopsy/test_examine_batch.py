"""The autopsy of steps whose batch, or whose weights, were bad before anything was computed."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, loop_report, numbers, report_of, scene_of
from trainvitals.autopsy.examine import examine
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


def regression() -> Value:
    return compiled(dense(keras.layers.Dense(3, name="hidden"), keras.layers.Dense(1, name="head")))


def test_a_bad_column_of_the_input_is_named_with_its_samples() -> None:
    x = numbers(6, 4)
    x[1, 2], x[4, 2] = np.nan, np.inf
    report = report_of(regression(), x, numbers(6, 1))
    assert (report.found, report.layer, report.operation) == ("input", "hidden", "")
    assert (report.feature, report.samples, report.n_bad) == (2, (1, 4), 2)
    (part,) = report.inputs
    finite = x[np.isfinite(x)]
    assert (part.name, part.dtype, part.shape) == ("x", "float32", (6, 4))
    assert (part.min, part.max) == (float(finite.min()), float(finite.max()))
    assert (part.n_nan, part.n_posinf, part.n_neginf) == (1, 1, 0)


def test_one_of_several_named_inputs_is_told_from_the_others() -> None:
    age, pay = keras.Input((2,), name="age"), keras.Input((3,), name="pay")
    inner = keras.layers.Dense(2, name="of_pay")(pay)
    both = keras.layers.Concatenate()([keras.layers.Dense(2, name="of_age")(age), inner])
    model = compiled(keras.Model({"age": age, "pay": pay}, keras.layers.Dense(1)(both)))
    data = {"age": numbers(5, 2), "pay": numbers(5, 3)}
    data["pay"][3] = np.nan
    report = report_of(model, data, numbers(5, 1))
    assert (report.found, report.layer) == ("input", "of_pay")
    assert (report.inputs[0].name, report.feature, report.samples) == ("x['pay']", None, (3,))


def test_missing_values_that_the_model_replaces_are_not_named() -> None:
    filled = keras.layers.Lambda(lambda x: ops.where(ops.isnan(x), 0.0, x), name="filled")
    root = keras.layers.Lambda(lambda x: ops.sqrt(x - 100), name="root")  # sqrt of negative
    x = numbers(6, 4)
    x[0, 0] = np.nan
    report = report_of(compiled(dense(filled, root, keras.layers.Dense(1))), x, numbers(6, 1))
    assert (report.found, report.operation, report.layer) == ("operation", "Sqrt", "root")
    assert report.line == line_of("sqrt of negative")


def test_a_bad_label_and_a_bad_sample_weight_are_named() -> None:
    y = numbers(6, 1)
    y[5] = -np.inf
    report = report_of(regression(), numbers(6, 4), y)
    assert (report.found, report.inputs[0].name, report.samples) == ("label", "y", (5,))
    assert report.inputs[0].n_neginf == 1
    weight = np.ones(6, "float32")
    weight[2] = np.nan
    report = report_of(regression(), numbers(6, 4), numbers(6, 1), weight)
    assert (report.found, report.inputs[0].name, report.samples) == ("sample_weight", "sample_weight", (2,))


@pytest.mark.parametrize("wrong", [5, -1])
def test_a_class_that_does_not_exist_is_named_with_the_range_of_the_labels(wrong: int) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(dense(keras.layers.Dense(5)), loss)
    labels = np.array([0, 4, 2, wrong, 1, 3])
    report = report_of(model, numbers(6, 4), labels)  # Keras' loss raises on the CPU, and is NaN under XLA
    assert (report.found, report.samples, report.n_bad) == ("label", (3,), 1)
    assert (report.inputs[0].min, report.inputs[0].max) == (labels.min(), labels.max())
    assert report.notes == ("the step raised InvalidArgumentError",)  # its message tells every label


def test_the_labels_of_a_batch_that_is_a_dictionary_are_known_by_their_key() -> None:
    data = {"pixels": numbers(5, 2), "labels": numbers(5, 2)}
    data["labels"][4, 1] = np.nan
    report = loop_report(lambda batch: tf.reduce_mean(batch["pixels"] - batch["labels"]), data, [])
    assert (report.found, report.inputs[0].name, report.samples) == ("label", "x['labels']", (4,))
    assert report.feature == 1


def test_a_loop_without_a_batch_has_no_samples() -> None:
    report = loop_report(lambda _: tf.reduce_mean(tf.math.log(tf.zeros((3, 2)))), None, [])
    assert (report.operation, report.batch_size, report.samples) == ("Log", 0, ())


def test_labels_that_a_loss_of_keras_does_not_take_are_named() -> None:
    model = compiled(dense(keras.layers.Dense(1)), keras.losses.BinaryCrossentropy(from_logits=True))
    x, y = numbers(6, 4), np.array([[0], [1], [1], [3], [0], [1]], "float32")
    x[3] = 7e35  # the loss has long run away: to -Infinity
    model.set_weights([np.full((4, 1), 1e2), np.zeros(1)])
    report = report_of(model, x, y)
    assert (report.found, report.samples, report.n_bad) == ("label", (3,), 1)
    assert (report.inputs[0].min, report.inputs[0].max) == (0, 3)


def test_labels_that_alone_are_bad_for_a_loss_of_the_users_are_said_to_be_so() -> None:
    model = compiled(dense(keras.layers.Dense(1)), lambda y, p: ops.mean(ops.square(ops.log(y) - p)))  # of y
    y = np.array([[1.0], [0.5], [-0.25], [2.0]], "float32")
    report = report_of(model, numbers(4, 4), y)
    assert (report.found, report.operation, report.line) == ("operation", "Log", line_of("of y"))
    assert (report.computed_from, report.samples) == (("y",), (2,))


def test_an_index_beyond_an_embedding_is_named() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(10, 2), keras.layers.Flatten()])
    words = np.array([[0, 9, 3], [1, 10, 2]])
    report = report_of(compiled(model), words, numbers(2, 6))
    assert (report.found, report.samples, report.feature) == ("input", (1,), 1)
    assert report.inputs[0].max == 10


def test_weights_that_were_bad_before_the_step_are_named_by_their_path() -> None:
    model = regression()
    kernel = numbers(4, 3)
    kernel[1, 1] = np.nan
    model.layers[0].kernel.assign(kernel)
    report = report_of(model, numbers(6, 4), numbers(6, 1))
    assert (report.found, report.layer, report.n_bad) == ("weight", "hidden/kernel", 1)
    assert report.samples == ()
    assert report.is_reproduced


def test_a_bad_slot_of_the_optimizer_is_named_by_its_path() -> None:
    model = compiled(dense(keras.layers.Dense(1, name="head")), optimizer=keras.optimizers.Adam())
    slot = next(one for one in model.optimizer.variables if one.shape == (4, 1))
    slot.assign(np.full((4, 1), np.inf))
    report = report_of(model, numbers(6, 4), numbers(6, 1))
    assert (report.found, report.layer) == ("weight", slot.path)


@pytest.mark.parametrize("is_batch_bad", [True, False])
def test_weights_that_the_step_itself_spoilt_are_not_blamed(is_batch_bad: bool) -> None:
    model, x, y = regression(), numbers(6, 4), numbers(6, 1)
    model.layers[0].kernel.assign(np.full((4, 3), np.nan))
    y[2] = np.nan if is_batch_bad else 0
    report = examine(dataclasses.replace(scene_of(model, x, y), weights_from="none"))
    assert (report.found, report.samples) == (("label", (2,)) if is_batch_bad else ("nothing", ()))
    assert "before the step were not kept" in report.notes[0]


def test_a_healthy_step_finds_nothing_and_says_so() -> None:
    report = report_of(regression(), numbers(6, 4), numbers(6, 1))
    assert (report.found, report.is_reproduced, report.batch_size) == ("nothing", False, 6)
    assert "stayed finite" in report.notes[0]


def test_missing_values_that_do_no_harm_are_not_blamed_for_a_healthy_step() -> None:
    filled = keras.layers.Lambda(lambda x: ops.where(ops.isnan(x), 0.0, x))
    x = numbers(6, 4)
    x[0, 0] = np.nan
    report = report_of(compiled(dense(filled, keras.layers.Dense(1))), x, numbers(6, 1))
    assert report.found == "nothing"
    assert "x is not finite everywhere, which does no harm in this step" in report.notes


def test_a_step_that_raises_is_a_report_and_no_exception() -> None:
    def run(batch: Value) -> Value:
        raise OSError("the disk is gone")

    report = loop_report(run, (numbers(4, 4),), [])
    assert (report.found, report.is_reproduced) == ("nothing", False)
    assert report.notes == ("the step raised OSError",)
