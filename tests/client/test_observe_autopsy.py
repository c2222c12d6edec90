"""A failing step of a function that observes: kept in the graph, replayed by the user's own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scenes import line_of
from training import RecordingSender, batch, recorded
from trainvitals import Reporter
from trainvitals.autopsy import wiring
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
SIZE, BAD, STEPS = 8, 5, 9


class Loop:
    """A model with statistics and a seed; `seen` is what the replay found them to be."""

    def __init__(self, make_function: Callable[[Any], Any], **options: Value) -> None:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.3, name="drop")]
        self.model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1, name="head")])
        self.optimizer = keras.optimizers.Adam(0.01)
        self.optimizer.build(self.model.trainable_variables)
        self.function = make_function(self.step)
        self.heals = False  # the replay stays finite, and so runs to its end
        self.seen: list[list[Any]] = []
        self.reporter = Reporter("http://127.0.0.1:1", replay=self.replay, **options)
        self.sent = recorded(self.reporter)

    def replay(self, data: Value) -> Value:
        self.seen.append(self.state())
        x, y = data
        return self.function(x, tf.ones_like(y) if self.heals else y)

    def state(self) -> list[Any]:
        variables = [*self.model.variables, *self.optimizer.variables]
        return [np.asarray(one) for one in variables]

    def step(self, x: Value, y: Value) -> Value:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.math.log(y) - self.model(x, training=True)))  # the log
        gradients = tape.gradient(loss, variables)
        self.reporter.observe(
            loss=loss, gradients=gradients, variables=variables, optimizer=self.optimizer, batch=(x, y)
        )
        self.optimizer.apply(gradients, variables)
        return loss

    def run(self, *, gives_batch: bool = False, bad: int = BAD) -> list[list[Any]]:
        """Train, one step of which fails, and return the state before each step."""
        before = []
        with self.reporter:
            for number in range(STEPS):
                x, y = batch(SIZE, number)[0], np.ones((SIZE, 1), "float32")
                y[3] = 0.0 if number == bad else 1.0
                before.append(self.state())
                self.function(tf.constant(x), tf.constant(y))
                self.reporter._rows.read_at_once()
                self.reporter.step(batch=(x, y) if gives_batch else None)
        return before


def autopsies(sent: RecordingSender) -> list[dict[str, Any]]:
    return [data for kind, _, data in sent.events if kind == "autopsy"]


def test_the_replay_begins_with_everything_as_it_was_before_the_step() -> None:
    loop = Loop(tf.function)
    before = loop.run()
    (report,) = autopsies(loop.sent)
    assert (report["step"], report["operation"], report["samples"]) == (BAD, "Log", (3,))
    assert report["line"] == LINE
    assert report.get("weights_from", "before_step") == "before_step"
    for found, expected in zip(loop.seen[0], before[BAD], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_first_step_which_compiles_for_long_is_replayed_and_later_slow_ones_are_put_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "LONGEST_S", 1e-9)
    found = []
    for bad in (0, BAD):
        loop = Loop(tf.function)
        loop.run(bad=bad)
        found.append([report["operation"] for report in autopsies(loop.sent)])
    assert found == [["Log"], []]


def test_a_replay_that_observes_makes_no_row() -> None:
    loop = Loop(tf.function)
    loop.heals = True
    loop.run()
    assert [report["found"] for report in autopsies(loop.sent)] == ["nothing"]
    assert loop.sent.steps == list(range(STEPS))


def test_under_xla_the_batch_is_given_outside_and_the_state_is_a_snapshot() -> None:
    loop = Loop(lambda step: tf.function(step, jit_compile=True))
    before = loop.run(gives_batch=True)
    (report,) = autopsies(loop.sent)
    assert (report["step"], report["operation"], report["samples"]) == (BAD, "Log", (3,))
    assert report["weights_from"] in ("before_step", "snapshot")
    held = [
        all(np.array_equal(ours, theirs) for ours, theirs in zip(loop.seen[0], state, strict=True))
        for state in before[: BAD + 1]
    ]
    assert any(held)


def test_many_steps_a_call_are_captured_too() -> None:
    reporter = Reporter("http://127.0.0.1:1", replay=lambda x: step(x))
    sent = recorded(reporter)
    variable = tf.Variable(2.0, name="w")

    def step(x: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.sqrt(x) * variable)  # the root
        (gradient,) = tape.gradient(loss, [variable])
        reporter.observe(loss=loss, gradients=[gradient], variables=[variable], batch=x)
        variable.assign_sub(0.1 * gradient)
        return loss

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def steps(data: Value) -> None:
        for place in tf.range(tf.shape(data)[0]):
            step(data[place])

    data = np.ones((20, 4), "float32")
    data[13, 2] = -1.0
    with reporter:
        steps(tf.constant(data))
        reporter.step()
    (report,) = autopsies(sent)
    assert (report["step"], report["operation"], report["samples"]) == (13, "Sqrt", (2,))
    assert report["line"] == line_of("the root")


def test_without_a_batch_a_failing_step_cannot_be_replayed_and_that_is_said() -> None:
    reporter = Reporter("http://127.0.0.1:1", replay=lambda x: x)
    sent = recorded(reporter)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step(value: Value) -> None:
        reporter.observe(loss=value)

    with reporter:
        for value in (1.0, np.nan):
            step(tf.constant(value))
            reporter.step()
    assert autopsies(sent) == []
    assert any("cannot be replayed" in line for line in sent.said)


LINE = Loop.step.__code__.co_firstlineno + 3
