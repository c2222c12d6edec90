"""A `fit` that is reported by what Keras logs of it, as on another backend than TensorFlow."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from training import batch, by_hand, reporting, small_model
from trainvitals.probe.types import Model, Value

pytestmark = pytest.mark.tensorflow

SIZE = 8  # 64 rows: eight whole batches


@pytest.fixture(autouse=True)
def other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.reporter.way_of", lambda model: "metrics")
    monkeypatch.setattr("trainvitals.frameworks.backend", lambda: "another")


def compiled(**options: Value) -> Model:
    model = small_model()
    model.compile(keras.optimizers.SGD(0.02), "mse", metrics=["mae"], **options)
    return model


def fit(model: Model, *callbacks: Value, epochs: int = 2, **options: Value) -> None:
    settings = {"batch_size": SIZE, "shuffle": False, "verbose": 0, **options}
    model.fit(*batch(), epochs=epochs, callbacks=list(callbacks), **settings)


def test_the_losses_are_those_of_a_training_by_hand() -> None:
    reporter, sent = reporting()
    fit(compiled(), reporter, validation_data=batch(16, 9))
    twin = small_model()
    twin.compile(keras.optimizers.SGD(0.02), "mse")
    expected = [one["loss"] for one in by_hand(twin, twin.optimizer, *batch(), SIZE, 2)]
    assert sent.steps == list(range(16))
    known = sent.series("loss")
    assert sorted(known) == [step for step in range(16) if step not in (7, 15)], "the last of each epoch"
    np.testing.assert_allclose([known[step] for step in known], [expected[step] for step in known], rtol=1e-4)
    assert len(sent.values("mae_running")) == 16
    assert [(kind, step) for kind, step, _ in sent.events if kind != "message"] == [
        ("epoch", 7), ("validation", 7), ("epoch", 15), ("validation", 15),
    ]  # fmt: skip
    assert sent.byes == [("finished", 15, "")]


def test_one_line_says_what_cannot_be_seen() -> None:
    reporter, sent = reporting()
    fit(compiled(), reporter)
    fit(compiled(), reporter)
    assert len(sent.messages) == 1
    assert (
        "Keras runs on another: gradients, loss scale and the first bad operation cannot be seen"
        in (sent.messages[0])
    )
    assert sent.steps == list(range(32))


def test_the_weights_are_those_of_a_training_without_it() -> None:
    model, twin = compiled(), compiled()
    fit(model, reporting()[0])
    fit(twin)
    for ours, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_after_an_interrupt_the_next_fit_goes_on_at_the_next_step() -> None:
    class Interrupting(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            if batch == 3:
                raise KeyboardInterrupt

    model, (reporter, sent) = compiled(), reporting()
    with pytest.raises(KeyboardInterrupt):
        fit(model, reporter, Interrupting())
    fit(model, reporter, epochs=1)
    assert sent.steps == list(range(4 + 8))
    assert [status for status, _, _ in sent.byes] == ["interrupted", "finished"]


def test_the_page_can_stop_it() -> None:
    reporter, sent = reporting()

    class Asking(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
            reporter._session.stop_requested |= batch == 2

    fit(compiled(), reporter, Asking())
    assert sent.steps == [0, 1, 2, 3]
    assert sent.byes == [("stopped", 3, "")]
