"""A `fit` of Keras 3 on a backend that is not TensorFlow, which is not even installed here."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import queue
from typing import Any

import numpy as np
import pytest

from compat.frame import (
    EPOCHS,
    SIZE,
    STEPS,
    TIMEOUT_S,
    URL,
    K,
    batch,
    fit,
    incidents_of,
    rows_of,
    small_model,
)
from trainvitals import HealthReporter, Reporter
from trainvitals.probe.types import Model, Value


def compiled(**options: Value) -> Model:
    model = small_model()
    model.compile(K.optimizers.SGD(0.02), "mse", metrics=["mae"], **options)
    return model


def losses_by_hand() -> list[float]:
    """Train with `train_on_batch`, which starts its means anew each time: the oracle."""
    model, (x, y) = compiled(), batch()
    starts = [start for _ in range(EPOCHS) for start in range(0, len(x), SIZE)]
    return [
        float(np.asarray(model.train_on_batch(x[i : i + SIZE], y[i : i + SIZE], return_dict=True)["loss"]))
        for i in starts
    ]


def test_tensorflow_is_not_here() -> None:
    assert importlib.util.find_spec("tensorflow") is None
    assert K.config.backend() != "tensorflow"


def test_loss_and_metrics_of_every_step_arrive_and_a_line_says_what_cannot_be_seen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = HealthReporter(URL, project="compat")
    model, twin = compiled(), compiled()
    fit(model, reporter, validation_data=batch(16, 9))
    fit(twin, validation_data=batch(16, 9))
    rows = rows_of(reporter)
    assert [row["step"] for row in rows] == list(range(STEPS))
    expected = losses_by_hand()
    for step, row in enumerate(rows):
        if step in (6, 13):  # of a last batch, which may be a short one, the mean does not tell
            assert "loss" not in row
        else:
            assert row["loss"] == pytest.approx(expected[step], rel=1e-4)
        assert row["mae_running"] > 0
        assert row["step_time_s"] >= 0
    assert "gradients, loss scale and the first bad operation cannot be seen" in capsys.readouterr().err
    for ours, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_loss_that_turns_bad_is_told_at_its_step() -> None:
    x, y = batch()
    x[SIZE * 3 + 1, 0] = np.nan
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    reporter = HealthReporter(URL, console=False, on_incident=told.put)
    model = K.Sequential([K.Input((8,)), K.layers.Dense(1)])
    model.compile(K.optimizers.SGD(0.02), "mse")
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    rows = rows_of(reporter)
    assert np.isfinite(rows[2]["loss"])
    assert rows[3]["loss"] == "NaN"
    assert "loss" not in rows[4]
    told.get(timeout=TIMEOUT_S)
    assert incidents_of(reporter)[0]["nonfinite_step"] == 3


def test_after_an_interrupt_another_fit_goes_on() -> None:
    class Interrupting(K.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
            if batch == 3:
                raise KeyboardInterrupt

    reporter, model = HealthReporter(URL, console=False), compiled()
    with pytest.raises(KeyboardInterrupt):
        fit(model, reporter, Interrupting())
    fit(model, reporter, epochs=1)
    steps = [row["step"] for row in rows_of(reporter)]
    assert steps == list(range(len(steps)))
    assert len(steps) >= 3 + 7, "Keras may hear of the interrupt some steps later"


def test_several_steps_at_once_are_one_row() -> None:
    reporter = HealthReporter(URL, console=False)
    fit(compiled(steps_per_execution=3), reporter)
    expected = losses_by_hand()
    rows = rows_of(reporter)
    assert [row["step"] for row in rows] == [2, 5, 6, 9, 12, 13]
    assert rows[1]["loss"] == pytest.approx(np.mean(expected[3:6]), rel=1e-4)


def test_copies_are_runs_of_their_own() -> None:
    reporter = HealthReporter(URL, console=False)
    fit(compiled(), reporter)
    copies = [copy.deepcopy(reporter), pickle.loads(pickle.dumps(reporter))]
    assert len({reporter.run_id, *(one.run_id for one in copies)}) == 3
    for one in copies:
        fit(compiled(), one)
        assert len(rows_of(one)) == STEPS


def test_keeping_updates_out_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="not possible with jax"):
        fit(compiled(), HealthReporter(on_nonfinite="stop", console=False))


def test_a_loop_is_measured_by_numpy() -> None:
    import jax
    import jax.numpy as jnp

    x, y = batch(40)
    weights = [jnp.zeros((8, 1)), jnp.zeros((1,))]

    def loss_of(weights: list[Any], x: Value, y: Value) -> Value:
        return jnp.mean(jnp.square(x @ weights[0] + weights[1] - y))

    step = jax.jit(jax.value_and_grad(loss_of))
    expected = []
    with Reporter(URL, console=False) as reporter:
        for start in range(0, 40, 10):
            loss, gradients = step(weights, x[start : start + 10], y[start : start + 10])
            weights = [one - 0.1 * gradient for one, gradient in zip(weights, gradients, strict=True)]
            squares = sum(float(np.square(np.asarray(one, np.float64)).sum()) for one in gradients)
            expected.append((float(loss), squares**0.5))
            reporter.step(loss=loss, gradients=gradients, variables=weights)
        reporter.step(loss=jnp.nan, gradients=[jnp.full((8, 1), jnp.nan), jnp.zeros((1,))], variables=weights)
    rows = rows_of(reporter)
    for row, (loss, norm) in zip(rows, expected, strict=False):
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
        assert row["grad_norm"] == pytest.approx(norm, rel=1e-6)
    assert rows[4]["loss"] == "NaN"
    assert rows[4]["grad_nonfinite"] == 8
