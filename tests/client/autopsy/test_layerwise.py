"""What is left of the autopsy where TensorFlow does not show its operations: the layer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from scenes import compiled, dense, numbers, report_of
from trainvitals.autopsy import internals
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def _without_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be a TensorFlow whose internal module has moved."""
    monkeypatch.setattr(internals, "_op_callbacks", None)


def model_with(call: Value, loss: Value = "mse") -> Value:
    inner = keras.Sequential([keras.layers.Lambda(call, name="inner")], name="block")
    return compiled(
        dense(keras.layers.Dense(3, name="hidden"), inner, keras.layers.Dense(1, name="head")), loss
    )


def test_the_innermost_layer_that_turned_bad_is_named() -> None:
    report = report_of(model_with(ops.sqrt), numbers(6, 4), numbers(6, 1))
    assert (report.found, report.direction, report.layer) == ("operation", "forward", "block/inner")
    assert (report.operation, report.line) == ("", 0)
    assert "only the layer" in report.notes[0]
    assert report.n_bad_samples > 0


def test_a_bad_loss_of_good_predictions_is_in_no_layer() -> None:
    model = model_with(ops.tanh, lambda y, p: ops.mean(ops.log(y - y)))
    report = report_of(model, numbers(6, 4), numbers(6, 1))
    assert (report.found, report.direction, report.layer) == ("operation", "forward", "")


def test_bad_gradients_of_a_good_loss_are_said_to_be_that() -> None:
    x = numbers(6, 4)
    x[2] = 0
    report = report_of(model_with(lambda z: ops.abs(z) ** 0.5), x, numbers(6, 1))
    assert (report.found, report.direction, report.layer) == ("operation", "backward", "")
    assert report.samples == (2,)


def test_a_bad_batch_is_named_as_ever() -> None:
    x = numbers(6, 4)
    x[1, 2] = np.nan
    report = report_of(model_with(ops.tanh), x, numbers(6, 1))
    assert (report.found, report.feature, report.samples) == ("input", 2, (1,))


def test_a_healthy_step_finds_nothing() -> None:
    assert report_of(model_with(ops.tanh), numbers(6, 4), numbers(6, 1)).found == "nothing"
