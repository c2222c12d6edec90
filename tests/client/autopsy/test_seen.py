"""A replay that goes another way than the training did names no cause, and says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from scenes import compiled, dense, line_of, loop_report, numbers, scene_of
from trainvitals.autopsy import bundle
from trainvitals.autopsy.examine import examine
from trainvitals.autopsy.line import line_of as told
from trainvitals.autopsy.report import Report
from trainvitals.autopsy.scene import Scene
from trainvitals.autopsy.seen import Seen, seen_in
from trainvitals.probe.decode import Decoded
from trainvitals.probe.types import Value

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
BAD_LOSS, BAD_GRADIENT = Seen(loss=True, gradients=True), Seen(loss=False, gradients=True)
ONLY_LOSS = Seen(loss=True, gradients=False)


def scene_with(call: Value, seen: Seen) -> Scene:
    head = keras.layers.Dense(3, name="hidden", use_bias=False)
    model = compiled(dense(head, keras.layers.Lambda(call, name="made"), keras.layers.Dense(1)))
    x = numbers(6, 4)
    x[4] = 0
    return dataclasses.replace(scene_of(model, x, numbers(6, 1)), seen=seen)


def root(x: Value) -> Value:
    return tf.sqrt(tf.square(x))  # its gradient is not finite at 0


def logarithm(x: Value) -> Value:
    return ops.log(x)  # the loss is not finite


@pytest.mark.parametrize(
    ("call", "seen", "met", "words"),
    [
        (root, BAD_LOSS, "gradient", "the loss was not finite; replayed, the loss was finite and the gradie"),
        (root, ONLY_LOSS, "gradient", "the loss was not finite and the gradients were; replayed"),
    ],
)
def test_a_replay_that_goes_bad_elsewhere_names_no_operation(
    call: Value, seen: Seen, met: str, words: str
) -> None:
    report = examine(scene_with(call, seen))
    assert (report.found, report.met, report.is_reproduced) == ("nothing", met, False)
    assert (report.operation, report.layer, report.line, report.samples) == ("", "", 0, ())
    assert words in report.notes[0]
    assert "random numbers without a seed" in report.notes[1]
    assert "what the replay met: first bad operation" in report.notes[2]
    assert told(report).startswith(
        "step 7 was replayed and not reproduced, so that no cause is named: in the"
    )


@pytest.mark.parametrize(
    ("call", "seen"), [(logarithm, BAD_LOSS), (logarithm, ONLY_LOSS), (root, BAD_GRADIENT)]
)
def test_a_replay_that_goes_bad_in_the_same_place_names_the_operation(call: Value, seen: Seen) -> None:
    report = examine(scene_with(call, seen))
    assert (report.found, report.met, report.is_reproduced) == ("operation", "", True)


def test_a_loss_that_only_the_compiled_step_kept_finite_is_the_same_way() -> None:
    report = examine(scene_with(logarithm, BAD_GRADIENT))  # as behind a ReLU that is fused with it
    assert (report.found, report.operation, report.is_reproduced) == ("operation", "Log", True)
    assert "a ReLU that is fused" in report.notes[-1]


def test_a_replay_that_stays_finite_says_what_the_training_saw() -> None:
    report = examine(scene_with(tf.square, BAD_GRADIENT))
    assert (report.found, report.met, report.is_reproduced) == ("nothing", "", False)
    assert "the gradients were not; replayed, all of it stayed finite" in report.notes[1]


def test_the_loss_of_a_step_of_the_users_own_may_be_another_than_that_of_the_row() -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Value) -> Value:
            return super().train_step(data)

    inner = dense(keras.layers.Lambda(logarithm))
    model = compiled(Own(inner.inputs, keras.layers.Dense(1)(inner.outputs[0])))
    report = examine(dataclasses.replace(scene_of(model, numbers(4, 4), numbers(4, 1)), seen=BAD_GRADIENT))
    assert (report.found, report.operation) == ("operation", "Log")


def test_weights_that_were_bad_before_the_step_are_bad_since_the_last_update() -> None:
    scene = scene_with(tf.square, BAD_LOSS)
    state = [(variable, np.array(value)) for variable, value in scene.state]
    state[0][1][0, 0] = np.nan
    for last_well, since in ((6, 6), (None, -1)):
        report = examine(dataclasses.replace(scene, state=state, last_well=last_well))
        assert (report.found, report.layer, report.weights_bad_since) == ("weight", "hidden/kernel", since)


def test_a_variable_that_nobody_named_and_that_holds_nan_is_no_operation_s_fault() -> None:
    weight, hidden = tf.Variable(numbers(4, 1)), tf.Variable(np.float32(np.nan), trainable=False)

    def run(batch: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(batch, weight))) * hidden  # read
        weight.assign_sub(0.1 * tape.gradient(loss, [weight])[0])
        return loss

    report = loop_report(run, numbers(5, 4), [weight])
    assert (report.found, report.met, report.is_reproduced) == ("nothing", "variable", False)
    assert (report.operation, report.line) == ("", line_of("read"))
    assert "was not kept from before the step" in report.notes[0]


def test_a_mask_of_infinity_in_a_variable_that_nobody_named_is_no_origin() -> None:
    weight, mask = tf.Variable(numbers(4, 3)), tf.Variable(np.full(3, -np.inf, "float32"), trainable=False)

    def run(batch: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softmax(tf.matmul(batch, weight) + mask))
        weight.assign_sub(tape.gradient(loss, [weight])[0])
        return loss

    report = loop_report(run, numbers(5, 4), [weight])
    assert (report.found, report.operation) == ("operation", "Softmax")


def test_a_bundle_keeps_what_the_training_saw(tmp_path: Path) -> None:
    scene = dataclasses.replace(scene_with(root, BAD_LOSS), last_well=6)
    folder = bundle.write(scene, Report(step=7, found="nothing", is_reproduced=False), tmp_path, "run")
    again = bundle.read(folder).scene(scene.model)
    assert (again.seen, again.last_well) == (BAD_LOSS, 6)
    assert examine(again).met == "gradient"


def test_rows_tell_what_was_seen_of_a_step_and_nothing_of_what_they_lack() -> None:
    cells = {
        "loss": (np.array([1.0, np.inf, np.nan]), np.array([True, True, False])),
        "grad_nonfinite": (np.array([0, 3, 2]), None),
    }
    rows = [Decoded(np.array([4, 5, 8]), cells, {})]
    assert [seen_in(rows, step) for step in (4, 5, 8, 6)] == [
        Seen(False, False),
        Seen(True, True),
        Seen(None, True),
        Seen(),
    ]
