"""`Reporter.step` in a loop of the user's own, against numpy."""

from __future__ import annotations

import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import batch, recorded, small_model
from trainvitals import Reporter
from trainvitals.probe.loop import MAX_MAKERS

pytestmark = pytest.mark.tensorflow


def norm(arrays: list[Any]) -> float:
    return float(np.sqrt(sum(np.square(np.asarray(one, np.float64)).sum() for one in arrays)))


def test_each_step_has_its_loss_norm_and_optimizer_numbers() -> None:
    model, optimizer = small_model(), keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    x, y = batch()
    expected = []
    with Reporter() as reporter:
        sent = recorded(reporter)
        for _ in range(6):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            reporter.step(
                loss=loss,
                gradients=gradients,
                variables=model.trainable_variables,
                optimizer=optimizer,
                metrics={"accuracy": 0.5},
            )
            expected.append((float(loss), norm(gradients), norm(gradients[:2])))
    assert sent.steps == list(range(6))
    np.testing.assert_allclose(sent.values("loss"), [one for one, _, _ in expected])
    np.testing.assert_allclose(sent.values("grad_norm"), [one for _, one, _ in expected], rtol=1e-5)
    np.testing.assert_allclose(
        sent.layer("layer_grad_norm", "hidden"), [one for _, _, one in expected], rtol=1e-5
    )
    assert sent.values("optimizer_step") == [1, 2, 3, 4, 5, 6]
    assert sent.values("accuracy") == [0.5] * 6
    np.testing.assert_allclose(sent.values("learning_rate"), np.float32(0.05))
    assert sent.byes == [("finished", 5, "")]


def test_the_scale_is_the_one_the_step_was_made_with() -> None:
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.0), initial_scale=1024.0, dynamic_growth_steps=3
    )
    optimizer.build([variable])
    used, norms = [], []
    with Reporter() as reporter:
        sent = recorded(reporter)
        for value in [1.0, np.nan, 1.0, 1.0, 1.0, 1.0, np.inf]:
            scale = float(optimizer.dynamic_scale)
            used.append(scale)
            gradient = tf.constant([3.0 * value, 4.0]) * scale
            norms.append(norm([np.asarray(gradient) / scale]))
            optimizer.apply([gradient], [variable])
            reporter.step(loss=1.0, gradients=[gradient], variables=[variable], optimizer=optimizer)
    assert sent.values("loss_scale") == used
    np.testing.assert_allclose(sent.values("grad_norm"), norms)
    assert sent.values("skipped") == [0, 1, 0, 0, 0, 0, 1]
    assert sent.values("grad_nonfinite") == [0, 1, 0, 0, 0, 0, 1]


def test_a_scale_of_the_users_own_divides_the_norms() -> None:
    variable = tf.Variable([0.0, 0.0], name="weights")
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(
            loss=2.5, gradients=[tf.constant([300.0, 400.0])], variables=[variable], loss_scale=100.0
        )
    assert sent.values("grad_norm") == [5.0]
    assert sent.values("loss_scale") == [100.0]
    assert sent.values("optimizer_step") == []


def test_arrays_and_missing_gradients_will_do() -> None:
    variables = [tf.Variable([0.0, 0.0], name="a/kernel"), tf.Variable([0.0], name="b/kernel")]
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(loss=np.float64(1e39), gradients=[np.array([3.0, 4.0]), None], variables=variables)
        reporter.step(loss=float("-inf"))
        reporter.step(step=10)
    assert sent.steps == [0, 1, 10]
    assert sent.series("loss") == {0: 1e39, 1: -np.inf}
    assert sent.series("grad_norm") == {0: 5.0}


def test_a_step_that_falls_back_is_left_out() -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(loss=1.0, step=5)
        reporter.step(loss=2.0, step=5)
        reporter.step(loss=3.0, step=7)
    assert sent.series("loss") == {5: 1.0, 7: 3.0}


def test_the_end_says_how_it_was() -> None:
    reporter = Reporter()
    sent = recorded(reporter)
    with pytest.raises(ZeroDivisionError), reporter:  # noqa: PT012
        reporter.step(loss=1.0)
        _ = 1 // 0
    with pytest.raises(KeyboardInterrupt), reporter:  # noqa: PT012
        reporter.step(loss=1.0)
        raise KeyboardInterrupt
    assert sent.byes[0] == ("failed", 0, "ZeroDivisionError: integer division or modulo by zero")
    assert sent.byes[1] == ("interrupted", 1, "")


def test_wrong_arguments_do_not_stop_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    with Reporter() as reporter:
        recorded(reporter)
        reporter.step(loss=1.0, gradients=[tf.constant(1.0)], variables=[])
        reporter.step(loss=1.0)
    assert "1 gradients for 0 variables" in caplog.text
    assert len(caplog.records) == 1


def test_many_steps_fit_the_ring() -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        for step in range(1000):
            reporter.step(loss=float(step))
    assert sent.values("loss") == [float(step) for step in range(1000)]
    assert sent.losses == []


@pytest.mark.parametrize(
    "odd",
    ["a text", 10**400, 1 + 2j, object(), [[1.0], [1.0, 2.0]], tf.constant("text")],
    ids=lambda odd: type(odd).__name__,
)
def test_an_odd_loss_or_metric_is_left_out_and_later_steps_go_on(
    odd: Any,  # noqa: ANN401 - any value at all
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        for loss in (1.0, odd, odd, 4.0):
            reporter.step(loss=loss, metrics={"right": 1.0, "odd": odd})
    assert sent.steps == [0, 1, 2, 3]
    assert sent.series("loss") == {0: 1.0, 3: 4.0}
    assert sent.values("right") == [1.0] * 4
    assert sent.values("odd") == []
    assert [record.getMessage().split()[2] for record in caplog.records] == ["metric", "loss"]
    assert sent.messages == ["left out: 4 x metric, 2 x loss"]


def test_an_integer_beyond_64_bits_is_a_loss_like_any_other() -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(loss=10**30)
    assert sent.values("loss") == [1e30]


@pytest.mark.parametrize(
    "odd",
    [float("nan"), float("inf"), 6.5, "x", -1, 2**70, 10**5000, [1]],
    ids=lambda odd: type(odd).__name__,
)
def test_an_odd_step_is_left_out_and_later_ones_go_on(
    odd: Any,  # noqa: ANN401 - any value at all
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        for step in (5, odd, odd, 7, 6):
            reporter.step(loss=1.0, step=step)
    assert sent.steps == [5, 7]
    assert len(caplog.records) == 1
    assert sent.messages == ["left out: 3 x step"]


def test_a_step_with_wrong_arguments_is_left_out_but_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(loss=1.0, gradients=[tf.constant(1.0)], variables=[])
        reporter.step(loss=2.0)
        for _ in range(30):
            reporter.step(loss=3.0, gradients=[tf.constant(1.0)], variables=[])
        reporter.step(loss=4.0)
    assert sent.series("loss") == {1: 2.0}
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "left out",
        "trainvitals failed and is off for this run; your training goes on",
    ]


def test_of_ever_new_models_the_loss_is_reported_when_there_are_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        for step in range(MAX_MAKERS + 4):
            variable, optimizer = tf.Variable([float(step)]), keras.optimizers.SGD(0.1)
            reporter.step(loss=step, gradients=[variable], variables=[variable], optimizer=optimizer)
    assert sent.series("loss") == {step: float(step) for step in range(MAX_MAKERS + 4)}
    assert sent.series("grad_norm") == {step: float(step) for step in range(MAX_MAKERS)}
    assert len([one for one in caplog.records if one.name == "trainvitals"]) == 1
    assert sent.messages == ["left out: 4 x gradients"]


def test_what_is_masked_is_missing_and_no_number() -> None:
    masked = np.ma.masked_array([0.0, 0.0], mask=True)
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(loss=masked, metrics={"metric": masked.sum()})
        reporter.step(loss=np.ma.masked_array([1.0, 2.0]), metrics={"metric": 4.0})
    assert sent.series("loss") == {1: 3.0}
    assert sent.series("metric") == {1: 4.0}


def test_two_threads_are_said_once_and_every_step_arrives(caplog: pytest.LogCaptureFixture) -> None:
    with Reporter() as reporter:
        sent = recorded(reporter)
        reporter.step(loss=1.0)

        def report() -> None:
            for _ in range(50):
                reporter.step(loss=2.0)

        threads = [threading.Thread(target=report) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sent.steps == list(range(151))
    assert [record.getMessage() for record in caplog.records] == [
        "one Reporter is used by two threads, as one run; give each a Reporter of its own"
    ]
