"""`Reporter.step` in a loop of the user's own, against numpy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import batch, recorded, small_model
from trainvitals import Reporter

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
