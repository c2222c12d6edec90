"""`HealthReporter` and a `train_step` of the user's own."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import RecordingSender, batch, by_hand, recorded, small_model
from trainvitals import HealthReporter
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow


class Custom(keras.Model):  # type: ignore[misc]
    """The small model with a `train_step`, in the ways in which people write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner = small_model()
        self.way = way
        self.tracker = keras.metrics.Mean(name="loss" if way == "tracker" else "squared_error")
        self.second = keras.optimizers.SGD(0.02) if way == "second optimizer" else None

    def call(self, x: Value) -> Value:
        return self.inner(x)

    @property
    def metrics(self) -> list[Value]:
        return [self.tracker]

    def train_step(self, data: Value) -> dict[str, Value]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            scaled = self.optimizer.scale_loss(loss) if self.way == "scaled" else loss
        gradients = tape.gradient(scaled, self.trainable_variables)
        self._update(gradients, self.trainable_variables)
        if self.way != "untold":
            self.tracker.update_state(loss)
        return {"loss": loss} if self.way == "returned" else {"squared_error": self.tracker.result()}

    def _update(self, gradients: list[Value], variables: list[Value]) -> None:
        if self.way == "every second step":
            is_due = tf.equal(self.optimizer.iterations % 2, 0)
            tf.cond(is_due, lambda: self._apply(gradients, variables), lambda: self._wait())
        elif self.second is not None:
            self.second.apply(gradients[:2], variables[:2])
            self.optimizer.apply(gradients[2:], variables[2:])
        else:
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _apply(self, gradients: list[Value], variables: list[Value]) -> None:
        self.optimizer.apply(gradients, variables)

    def _wait(self) -> None:
        self.optimizer.iterations.assign_add(1)


def trained(way: str, **options: Value) -> RecordingSender:
    model = Custom(way)
    model.build((None, 8))
    model.compile(keras.optimizers.SGD(0.02), **options)
    reporter = HealthReporter()
    sent = recorded(reporter)
    model.fit(*batch(40), batch_size=10, epochs=2, shuffle=False, verbose=0, callbacks=[reporter])
    assert sent.steps == list(range(8))
    return sent


def expected(name: str) -> list[float]:
    model = small_model()
    model.compile(keras.optimizers.SGD(0.02), "mse")
    return [one[name] for one in by_hand(model, model.optimizer, *batch(40), 10, 2)]


@pytest.mark.parametrize("way", ["scaled", "tracker", "returned", "second optimizer"])
@pytest.mark.parametrize("jit", [False, True])
def test_gradients_and_the_raw_loss_are_found(way: str, jit: bool) -> None:
    sent = trained(way, jit_compile=jit)
    np.testing.assert_allclose(sent.values("grad_norm"), expected("grad_norm"), rtol=1e-4)
    if way == "second optimizer":
        assert sent.values("loss") == []
        assert any("No raw loss" in text for text in sent.messages)
    else:
        np.testing.assert_allclose(sent.values("loss"), expected("loss"), rtol=1e-4)
        assert sent.messages == []


def test_a_loss_that_cannot_be_seen_is_missing_and_said_so() -> None:
    sent = trained("untold")
    assert sent.values("loss") == []
    assert any("No raw loss" in text for text in sent.messages)


def test_steps_without_an_update_have_no_gradients() -> None:
    sent = trained("every second step")
    assert list(sent.series("grad_norm")) == [0, 2, 4, 6]
    assert sent.values("optimizer_step") == list(range(1, 9))


def test_a_forgotten_scale_is_said() -> None:
    model = Custom("tracker")
    model.build((None, 8))
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02)))
    reporter = HealthReporter()
    sent = recorded(reporter)
    model.fit(*batch(20), batch_size=10, verbose=0, callbacks=[reporter])
    assert sent.values("loss_scale") == [2.0**15] * 2
    assert any("never called optimizer.scale_loss" in text for text in sent.messages)


class Halved(keras.optimizers.SGD):  # type: ignore[misc]
    """Takes gradients by name, too, and an option that Keras's own do not know."""

    def apply(self, grads: Value, trainable_variables: Value = None, share: float = 1.0) -> Value:
        if isinstance(grads, dict):
            grads = [grads[one.path] for one in trainable_variables]
        return super().apply([share * one for one in grads], trainable_variables)


class Named(Custom):
    """Hands its optimizer what that alone understands; its data are of unknown length."""

    def _update(self, gradients: list[Value], variables: list[Value]) -> None:
        if self.way == "option":
            self.optimizer.apply(gradients, variables, share=0.5)
        else:
            paths = [one.path for one in variables]
            self.optimizer.apply(dict(zip(paths, gradients, strict=True)), variables, 0.5)


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize(("way", "measured"), [("option", range(12)), ("names", [])])
def test_an_optimizer_of_the_users_gets_what_it_is_given_and_the_end_of_the_data_is_no_step(
    way: str, measured: Sequence[int]
) -> None:
    data = tf.data.Dataset.from_tensor_slices(batch(40)).batch(10).filter(lambda *_: True)
    weights, reporter = [], HealthReporter()
    sent = recorded(reporter)
    for callbacks in ([], [reporter]):
        model = Named(way)
        model.build((None, 8))
        model.compile(Halved(0.02))
        model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        weights.append([np.asarray(one).tobytes() for one in model.variables])
    assert weights[0] == weights[1]
    assert sent.steps == list(range(12))
    assert list(sent.series("grad_norm")) == list(measured)
    assert sent.losses == []
