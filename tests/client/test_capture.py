"""What is kept of a failing step is what the step was given and what the model held before it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import Array, batch, reporting, small_model
from trainvitals.probe import batches, compiled
from trainvitals.probe.batches import Batches
from trainvitals.probe.capture import Capture, Captured
from trainvitals.probe.keras3 import Probe
from trainvitals.probe.template import Template
from trainvitals.probe.types import Value

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
SIZE = 8


class Probing(keras.callbacks.Callback):  # type: ignore[misc]
    """Puts a probe in, settles its capture after each execution, and notes the state after each."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = Probe()
        self.states: list[dict[int, Array]] = []

    def on_train_begin(self, logs: Value = None) -> None:
        self.probe.install(self.model, lambda function: lambda data: function(data), Value)
        self.probe.begin(0)
        self.states.append(self._state())

    def on_train_batch_end(self, batch: int, logs: Value = None) -> None:
        assert self.probe.capture is not None
        self.probe.capture.settle()
        self.states.append(self._state())

    def on_train_end(self, logs: Value = None) -> None:
        self.probe.remove()

    def take(self) -> Captured | None:
        assert self.probe.capture is not None
        return self.probe.capture.take()

    def _state(self) -> dict[int, Array]:
        variables = [*self.model.variables, *self.model.optimizer.variables]
        return {id(one): np.array(one) for one in variables}


def rich_model(**options: Value) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(options.pop("optimizer", None) or keras.optimizers.Adam(1e-2), "mse", **options)
    return model


def trained(model: keras.Model, *bad: int, rows: int = 92, epochs: int = 1) -> tuple[Probing, Array, Array]:
    """Train with labels that are bad in these rows; 92 rows make eleven batches and half a one."""
    x, y = batch(rows)
    y[list(bad)] = np.nan
    probing = Probing()
    model.fit(x, y, batch_size=SIZE, epochs=epochs, shuffle=False, verbose=0, callbacks=[probing])
    return probing, x, y


@pytest.mark.parametrize(
    "options",
    [{}, {"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 16}],
    ids=["graph", "xla", "eager", "many"],
)
def test_the_first_failing_step_is_kept_with_the_state_before_it(options: dict[str, Any]) -> None:
    model = rich_model(**options)
    probing, x, y = trained(model, 5 * SIZE + 2, 7 * SIZE)
    captured = probing.take()
    assert captured is not None
    assert (captured.step, captured.weights_from) == (5, "before_step")
    np.testing.assert_array_equal(captured.data[0], x[40:48])
    np.testing.assert_array_equal(captured.data[1], y[40:48])
    kept = {id(variable): np.array(value) for variable, value in captured.state}
    assert kept.keys() == {id(one) for one in [*model.variables, *model.optimizer.variables]}
    if "steps_per_execution" not in options:
        for key, value in probing.states[5].items():  # after step 4
            np.testing.assert_array_equal(kept[key], value)
    assert all(np.isfinite(value).all() for value in kept.values())
    assert probing.take() is None


class Restless(keras.optimizers.SGD):  # type: ignore[misc]
    """Changes weights before it looks at their gradients."""

    def apply(self, grads: Value, trainable_variables: Value = None) -> None:
        for variable in self._trainable_variables if trainable_variables is None else trainable_variables:
            variable.assign(variable * 1.01)
        super().apply(grads, trainable_variables)


class Twice(keras.Sequential):  # type: ignore[misc]
    """Applies the gradients in two halves, and rounds the weights afterwards."""

    def train_step(self, data: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
            scaled = self.optimizer.scale_loss(loss)
        weights = self.trainable_variables
        gradients = tape.gradient(scaled, weights)
        for _ in range(2):
            self.optimizer.apply([gradient / 2 for gradient in gradients], weights)
        for weight in weights:
            weight.assign(tf.round(weight * 1e4) / 1e4)
        return {"loss": loss}


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1),
        lambda: keras.optimizers.SGD(1e-2, momentum=0.9, nesterov=True, use_ema=True, global_clipnorm=1.0),
        lambda: keras.optimizers.Nadam(1e-2, gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(1e-2), initial_scale=64.0),
        lambda: Restless(1e-2),
    ],
    ids=["AdamW", "SGD", "Nadam", "LossScaleOptimizer", "Restless"],
)
@pytest.mark.parametrize("kind", [keras.Sequential, Twice])
def test_no_update_comes_before_what_is_kept(make: Value, kind: type[Any]) -> None:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization()]
    model = kind([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile(make(), "mse")
    probing, x, _ = trained(model, 5 * SIZE + 2)
    captured = probing.take()
    assert captured is not None
    assert captured.step == 5
    np.testing.assert_array_equal(captured.data[0], x[40:48])
    kept = {id(variable): np.array(value) for variable, value in captured.state}
    assert kept.keys() == probing.states[5].keys()
    changed = probing.states[6]
    assert sum(not np.array_equal(changed[key], value) for key, value in kept.items()) >= 4
    if kind is keras.Sequential:
        for key, value in probing.states[5].items():  # after step 4
            np.testing.assert_array_equal(kept[key], value)


@pytest.mark.parametrize("jit", [False, True])
def test_a_failing_short_last_batch_is_kept(jit: bool) -> None:
    probing, x, _ = trained(rich_model(jit_compile=jit), 90)
    captured = probing.take()
    assert captured is not None
    assert captured.step == 11
    np.testing.assert_array_equal(captured.data[0], x[88:])


def test_nothing_is_kept_of_a_healthy_training_or_after_take_until_it_is_armed_again() -> None:
    model = rich_model()
    probing, _, _ = trained(model)
    assert probing.take() is None
    x, y = batch(SIZE)
    y[0] = np.nan
    model.fit(x, y, batch_size=SIZE, epochs=2, verbose=0, callbacks=[probing])  # begin arms
    again = probing.take()
    assert again is not None
    assert again.step == 0


@pytest.mark.parametrize("jit", [False, True])
def test_a_skip_of_the_loss_scaler_is_kept_only_on_demand(jit: bool) -> None:
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=3e38)
    model = small_model()
    model.compile(scaler, "mse", jit_compile=jit)
    probing, x, y = trained(model, rows=32)
    assert probing.take() is None
    assert float(scaler.dynamic_scale) < 3e38

    class Arming(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Value = None) -> None:
            assert probing.probe.capture is not None
            probing.probe.capture.arm(for_skips=True)
            scaler.dynamic_scale.assign(3e38)

    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[probing, Arming()])
    captured = probing.take()
    assert captured is not None
    assert captured.step == 0


def test_under_xla_weights_beyond_the_cap_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "device_memory", lambda: 2_000)  # 5 %: BatchNorm's statistics, no weights
    layers = [keras.layers.BatchNormalization(), keras.layers.Dense(40), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("sgd", "mse", jit_compile=True)
    captured = trained(model, 42, rows=48)[0].take()
    assert captured is not None
    assert captured.weights_from == "after_step"
    kept = {id(variable) for variable, _ in captured.state}
    assert kept == {id(one) for one in model.non_trainable_variables}


def test_frozen_weights_are_not_kept_but_statistics_are() -> None:
    frozen, normed = keras.layers.Dense(4, trainable=False), keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((8,)), frozen, normed, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    captured = trained(model, 10, rows=24)[0].take()
    assert captured is not None
    kept = {id(variable) for variable, _ in captured.state}
    assert kept.isdisjoint(id(one) for one in frozen.variables)
    assert kept >= {id(one) for one in normed.variables}


def test_under_xla_a_batch_that_is_no_longer_held_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BYTES", 1)
    model = small_model()
    model.compile("sgd", "mse", jit_compile=True)
    probing, _, _ = trained(model, 10, rows=24)
    assert probing.take() is None
    assert probing.probe.capture is not None
    assert probing.probe.capture.reason == "its batch was no longer held"


def test_the_last_batches_are_held_and_the_older_ones_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BYTES", 5 * 4 * 100)  # five batches of a hundred floats
    held = Batches()
    step = tf.function(held.remember, autograph=False)
    for number in range(40):
        step((tf.fill([100], float(number)), "no tensor", None))
        held.settle()
    assert held.find(34) is None
    for number in range(40, 60):
        step((tf.fill([100], float(number)), "no tensor", None))
    data = held.find(57)
    assert data is not None
    assert (float(data[0][0]), data[1:]) == (57.0, ("no tensor", None))
    held.begin(7)
    step((tf.zeros([100]), "no tensor", None))
    assert held.find(7) is not None


@pytest.mark.parametrize("is_new_fit", [True, False])
def test_batches_that_grow_are_measured_again(is_new_fit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BYTES", 50 * 4 * 100)  # fifty batches of a hundred floats
    monkeypatch.setattr(batches, "MEASURE_EVERY", 10)
    held = Batches()
    signature = [tf.TensorSpec([None])]
    step = tf.function(lambda x: held.remember((x,)), autograph=False, input_signature=signature)
    for size in (100, 1000):
        if is_new_fit:
            held.begin(0)
        for _ in range(80):
            step(tf.zeros([size]))
            held.settle()
        ((_, queue, _),) = held._queues.values()
        assert int(queue.size()) == 5000 // size


def test_a_batch_of_any_make_is_taken_apart_and_put_together() -> None:
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    sparse = tf.sparse.from_dense([[1.0, 0.0]])
    data = ({"a": tf.constant("text"), "r": ragged}, None, [sparse, 5])
    template, tensors = Template.of(data)
    assert all(type(one) is type(tensors[0]) for one in tensors)
    joined = template.join(tensors)
    assert joined[0]["a"] == b"text"
    assert joined[0]["r"].to_list() == [[1.0, 2.0], [3.0]]
    np.testing.assert_array_equal(tf.sparse.to_dense(joined[2][0]), [[1.0, 0.0]])
    assert (joined[1], joined[2][1]) == (None, 5)


@pytest.mark.parametrize("name", ["note_start", "store"])
def test_what_cannot_be_captured_is_measured_and_trained_all_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Capture, name, fails)
    model = small_model()
    model.compile("sgd", "mse")
    reporter, sent = reporting()
    x, y = batch(24)
    y[10] = np.nan
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    assert sent.steps == [0, 1, 2]
    assert sent.series("grad_nonfinite")[1] > 0
    assert "cannot keep a failing step" in caplog.text
