"""A failing step of a loop is replayed by the user's own function."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import RecordingSender, batch, recorded, small_model
from trainvitals import Reporter
from trainvitals.autopsy import bundle
from trainvitals.probe import snapshots
from trainvitals.probe.snapshots import Snapshots
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
SIZE = 8


class Loop:
    """A model, and its step as people write it."""

    def __init__(self) -> None:
        self.model = small_model()
        self.optimizer = keras.optimizers.Adam(1e-3)
        self.optimizer.build(self.model.trainable_variables)
        self.compiled = tf.function(self.step, autograph=False)

    def step(self, x: Value, y: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.math.log(y) - self.model(x)))  # the log
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss, gradients

    def run(self, steps: int, bad: int, **options: Value) -> tuple[RecordingSender, Reporter, list[float]]:
        x = batch(SIZE)[0]
        losses = []
        options = {"replay": lambda data: self.compiled(*data), **options}
        with Reporter("http://127.0.0.1:1", **options) as reporter:
            sent = recorded(reporter)
            for number in range(steps):
                y = np.ones((SIZE, 1), "float32")
                y[5] = 0.0 if number == bad else 1.0
                loss, gradients = self.compiled(tf.constant(x), tf.constant(y))
                losses.append(float(loss))
                reporter._rows.read_at_once()  # read in every step, as slow ones are
                reporter.step(
                    loss=loss,
                    gradients=gradients,
                    variables=self.model.trainable_variables,
                    optimizer=self.optimizer,
                    batch=(x, y),
                )
                if reporter.stop_requested:
                    break
        return sent, reporter, losses


LINE = inspect.getsourcelines(Loop.step)[1] + 2


def autopsies(sent: RecordingSender) -> list[dict[str, Any]]:
    return [data for kind, _, data in sent.events if kind == "autopsy"]


def test_the_operation_and_the_line_are_found_from_a_snapshot() -> None:
    sent, _, losses = Loop().run(12, 7)
    (report,) = autopsies(sent)
    assert (report["step"], report["found"], report["operation"]) == (7, "operation", "Log")
    assert (report["line"], report["samples"]) == (LINE, (5,))
    assert report.get("weights_from", "before_step") in ("before_step", "snapshot")
    assert bundle.read(Path(report["bundle"])).is_of_loop
    assert sent.steps == list(range(12))
    without, _, again = Loop().run(12, 7, autopsy=False)
    assert autopsies(without) == []
    np.testing.assert_array_equal(losses, again)


def test_a_first_step_that_fails_has_no_weights_from_before_it_and_that_is_said() -> None:
    sent, _, _ = Loop().run(3, 0)
    assert autopsies(sent) == []
    assert any("no snapshot was taken of the weights before it" in line for line in sent.said)


def test_stop_asks_the_loop_to_end() -> None:
    sent, reporter, losses = Loop().run(12, 7, on_nonfinite="stop")
    assert reporter.stop_requested
    assert len(losses) == 8
    assert sent.byes[0][0] == "stopped"


def test_skip_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"Reporter\.step comes after the update"):
        Reporter(on_nonfinite="skip")


def test_a_loop_without_replay_goes_on_as_before() -> None:
    sent, _, _ = Loop().run(12, 7, replay=None)
    assert autopsies(sent) == []
    assert sent.steps == list(range(12))


def test_only_a_snapshot_that_the_next_step_has_proven_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "TIME_SHARE", 1e9)  # as often as it may
    variable = tf.Variable(1.0)
    kept = Snapshots()
    kept.note(4, [variable])
    variable.assign(2.0)
    kept.confirm(4)
    assert kept.before(4) is None
    kept.confirm(5)
    kept.note(6, [variable])
    variable.assign(np.nan)
    first, second = kept.before(6), kept.before(7)
    assert first is not None
    assert second is not None
    assert (first.step, float(first.state[0][1])) == (4, 1.0)
    assert (second.step, float(second.state[0][1])) == (6, 2.0)
    kept.forget_newest()
    assert kept.before(7) is first


def test_variables_beyond_the_cap_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "device_memory", lambda: 100)
    kept = Snapshots()
    kept.note(0, [tf.Variable(tf.zeros([10]))])
    assert kept.before(1) is None


def test_statistics_and_seeds_are_those_from_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "TIME_SHARE", 1e9)  # in every step
    keras.utils.set_random_seed(2)
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model, optimizer = keras.Sequential([keras.Input((8,)), *layers]), keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    seen: list[list[Any]] = []

    def moving() -> list[Any]:
        return [np.asarray(one) for one in model.non_trainable_variables]

    def step(x: Value, y: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.math.log(y) - model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss, gradients

    def replay(data: Value) -> Value:
        seen.append(moving())
        return step(*data)

    before = []
    with Reporter("http://127.0.0.1:1", replay=replay) as reporter:
        sent = recorded(reporter)
        for number in range(8):
            before.append(moving())
            x, y = batch(SIZE, number)[0], np.full((SIZE, 1), 0.0 if number == 6 else 1.0, "float32")
            x[0] = np.inf if number == 6 else x[0]
            loss, gradients = step(x, y)
            reporter._rows.read_at_once()
            reporter.step(
                loss=loss,
                gradients=gradients,
                variables=model.trainable_variables,
                optimizer=optimizer,
                batch=(x, y),
            )
    (report,) = autopsies(sent)
    assert report["found"] == "input"
    assert not all(np.isfinite(one).all() for one in moving())  # as the failing step left them
    (at,) = {5, 6} & {
        number
        for number, state in enumerate(before)
        if all(np.array_equal(ours, theirs) for ours, theirs in zip(seen[0], state, strict=True))
    }
    assert report.get("weights_from", "before_step") == ("before_step" if at == 6 else "snapshot")
