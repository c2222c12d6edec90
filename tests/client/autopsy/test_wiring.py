"""A failing step of `fit` is replayed once, told, and leaves the training as it was."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import Array, RecordingSender, batch, recorded, small_model
from trainvitals import HealthReporter
from trainvitals.autopsy import wiring
from trainvitals.autopsy.report import Report
from trainvitals.autopsy.share import event_data
from trainvitals.probe.types import Value
from trainvitals.response import Response

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def log_loss(y_true: Value, y_pred: Value) -> Value:
    return keras.ops.mean(keras.ops.square(keras.ops.log(y_true + y_pred - y_pred)))  # the log


LINE = inspect.getsourcelines(log_loss)[1] + 1


def model_with(loss: Value = log_loss, **options: Value) -> keras.Model:
    keras.utils.set_random_seed(2)
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-2), loss, **options)
    return model


def data(rows: int, *zeros: int) -> tuple[Array, Array]:
    """Return a batch with labels of about one, but for these rows."""
    x, _ = batch(rows)
    y = np.ones((rows, 1), dtype="float32")
    y[list(zeros)] = 0.0
    return x, y


def fitted(model: keras.Model, x: Array, y: Array, epochs: int = 1, **options: Value) -> RecordingSender:
    reporter = HealthReporter(**options)
    sent = recorded(reporter)
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=[reporter])
    return sent


def autopsies(sent: RecordingSender) -> list[dict[str, Any]]:
    return [event for kind, _, event in sent.events if kind == "autopsy"]


def state(model: keras.Model) -> list[Array]:
    return [np.array(one) for one in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize(
    "options",
    [{}, {"jit_compile": True, "steps_per_execution": 4}, {"steps_per_execution": 4}],
    ids=["graph", "xla", "many"],
)
def test_the_operation_and_the_users_line_are_told_once(options: dict[str, Any]) -> None:
    x, y = data(96, 42)
    sent = fitted(model_with(**options), x, y, epochs=2)
    (report,) = autopsies(sent)
    assert (report["step"], report["found"], report["operation"]) == (5, "operation", "Log")
    assert (Path(report["file"]).name, report["line"]) == (Path(__file__).name, LINE)
    assert (report["samples"], report["batch_size"]) == ((2,), 8)
    assert [line for line in sent.said if "first bad operation at step 5" in line] == sent.said[1:]
    assert sent.steps == list(range(24))


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"steps_per_execution": 5}], ids=str)
def test_the_training_goes_on_with_the_same_numbers(options: dict[str, Any]) -> None:
    """A spike to infinity in one batch of labels is followed by steps in weights that the update spoilt."""
    x, y = data(96, 42)
    outcomes = []
    for autopsy in (False, True):
        model = model_with(**options)
        sent = fitted(model, x, y, autopsy=autopsy)
        assert len(autopsies(sent)) == int(autopsy)
        outcomes.append([*state(model), sent.values("loss"), sent.values("grad_norm")])
    for plain, examined in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(plain, examined)


def test_a_healthy_training_has_no_autopsy() -> None:
    x, y = data(64)
    sent = fitted(model_with("mse"), x, y)
    assert autopsies(sent) == []
    assert len(sent.said) == 1


def test_another_incident_is_looked_at_when_the_training_was_well_between() -> None:
    x, y = data(16 * 40)
    x[0], x[8 * 25] = np.nan, np.nan
    model = small_model()

    class Careful(keras.optimizers.SGD):  # type: ignore[misc]
        """Leaves out what is not finite."""

        def apply(self, grads: Value, trainable_variables: Value = None) -> None:
            clean = [keras.ops.where(keras.ops.isfinite(one), one, 0.0) for one in grads]
            super().apply(clean, trainable_variables)

    model.compile(Careful(1e-3), "mse", steps_per_execution=10)
    sent = fitted(model, x, y)
    assert [(one["step"], one["found"]) for one in autopsies(sent)] == [(0, "input"), (25, "input")]


def test_a_second_fit_is_looked_at_but_a_run_has_no_more_than_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "MAX_AUTOPSIES", 2)
    x, y = data(32, 9)
    model = model_with()
    reporter = HealthReporter()
    sent = recorded(reporter)
    for _ in range(3):
        model.set_weights([np.ones_like(one) for one in model.get_weights()])
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[reporter])
    assert [report["step"] for report in autopsies(sent)] == [1, 5]


def test_a_replay_that_would_take_too_long_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "LONGEST_S", 0.0)
    x, y = data(96, 42)
    sent = fitted(model_with(), x, y)
    assert autopsies(sent) == []
    (line,) = sent.said[1:]
    assert line.startswith("step 5 went non-finite; replaying it would hold up your training")


def test_a_path_is_held_back_where_a_replay_is_left_out_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "LONGEST_S", 0.0)
    x, y = data(96, 42)
    (told,) = fitted(model_with(), x, y, redact=True).messages
    assert told == "step 5 went non-finite; replaying it would hold up your training"


@pytest.mark.filterwarnings("error")
def test_numbers_of_any_kind_are_shared_without_a_warning() -> None:
    kinds = [tf.constant([1 + 2j], tf.complex64), tf.constant([1.5], tf.bfloat16), tf.constant([2], tf.int8)]
    parts = event_data(
        Report(step=1, found="nothing", is_reproduced=False), tuple(kinds), Response(share_batch=True)
    )["batch"]
    assert [part["values"] for part in parts] == [[1.0], [1.5], [2]]


def test_a_failure_of_ours_is_one_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(scene: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(wiring, "examine", fails)
    x, y = data(96, 42)
    sent = fitted(model_with(), x, y)
    assert sent.steps == list(range(12))
    assert len([one for one in caplog.records if one.name == "trainvitals"]) == 1


def test_nothing_of_the_batch_leaves_the_machine_unless_it_may() -> None:
    x, y = data(96, 42)
    (plain,) = autopsies(fitted(model_with(), x, y))
    assert "batch" not in plain
    (redacted,) = autopsies(fitted(model_with(), x, y, redact=True))
    assert {"file", "line", "code", "function"} & redacted.keys() == set()
    assert "min" not in str(redacted)
    assert redacted["operation"] == "Log"
    (shared,) = autopsies(fitted(model_with(), x, y, share_batch=True))
    inputs, labels = shared["batch"]
    assert (labels["samples"], labels["values"]) == ([2], [0.0])
    np.testing.assert_array_equal(inputs["values"], x[42])


def test_options_that_contradict_each_other_fail_where_they_are_written() -> None:
    with pytest.raises(ValueError, match="choose one of them"):
        HealthReporter(share_batch=True, redact=True)
    with pytest.raises(TypeError, match="autopsy must be True or False, not 'no'"):
        HealthReporter(autopsy="no")  # type: ignore[arg-type]


def test_a_failure_in_the_last_step_is_told_as_well() -> None:
    x, y = data(92, 91)
    sent = fitted(model_with(), x, y)
    (report,) = autopsies(sent)
    assert (report["step"], report["samples"], report["batch_size"]) == (11, (3,), 4)
    assert math.isinf(sent.values("loss")[-1])
