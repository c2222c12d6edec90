"""Large models are watched in parts: the same numbers, and an update that waits for its own part only."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import Array, reporting
from trainvitals.probe.keras3 import Probe
from trainvitals.probe.parts import PART_ELEMENTS, parts_of
from trainvitals.probe.types import Tensor, Value

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
WIDTH = 256  # a kernel is a part of its own
SIZE = 4
STEPS = 6
BAD_STEP = 3


class Root(keras.layers.Layer):  # type: ignore[misc]
    """The square root, whose gradient at 0 is infinite while its value is fine."""

    def call(self, inputs: Tensor) -> Tensor:
        return tf.sqrt(tf.abs(inputs))


def wide_model(optimizer: str = "sgd") -> keras.Model:
    """Return a model whose first kernel's gradient is NaN for a batch of zeros, and whose others' is not."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(WIDTH, use_bias=False, name="below"),
            Root(),
            keras.layers.Dense(WIDTH, activation="tanh", name="above"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SIZE * STEPS, WIDTH)).astype("float32")
    x[SIZE * BAD_STEP : SIZE * (BAD_STEP + 1)] = 0.0
    return x, rng.normal(size=SIZE * STEPS).astype("float32")


def test_parts_hold_all_variables_once_and_are_cut_from_the_end() -> None:
    assert parts_of([]) == []
    assert parts_of([3, 4, 5]) == [slice(0, 3)]
    big = PART_ELEMENTS
    assert parts_of([big, 1, big, 1, 1]) == [slice(2, 5), slice(0, 2)]
    assert parts_of([1, big, big]) == [slice(2, 3), slice(1, 2), slice(0, 1)]


def test_what_is_measured_in_parts_is_what_an_eager_step_has() -> None:
    x, y = data()
    reporter, sent = reporting()
    model, twin = wide_model(), wide_model()
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    steps = [(x[i : i + SIZE], y[i : i + SIZE]) for i in range(0, len(x), SIZE)]
    for step, (inputs, labels) in enumerate(steps[: BAD_STEP + 1]):
        with tf.GradientTape() as tape:
            loss = twin.compute_loss(x=inputs, y=labels, y_pred=twin(inputs, training=True))
        weights = [weight.value for weight in twin.trainable_variables]
        gradients = tape.gradient(loss, weights)
        bad = [int(np.sum(~np.isfinite(gradient))) for gradient in gradients]
        assert sent.series("grad_nonfinite")[step] == sum(bad)
        by_layer = [sent.layer("layer_grad_nonfinite", name)[step] for name in ("below", "above", "head")]
        assert by_layer == [bad[0], bad[1] + bad[2], bad[3] + bad[4]]
        norm = np.sqrt(sum(float(np.sum(np.square(np.float64(gradient)))) for gradient in gradients))
        np.testing.assert_allclose(sent.series("grad_norm")[step], norm, rtol=1e-4)
        twin.optimizer.apply(gradients, twin.trainable_variables)
    assert by_layer[0] > 0
    assert by_layer[1:] == [0, 0]


def test_of_a_failing_step_the_weights_with_a_bad_gradient_are_those_before_it() -> None:
    x, y = data()
    model, twin = wide_model(), wide_model()
    probe = Probe()

    class Probing(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Value = None) -> None:
            probe.install(self.model, lambda function: lambda data: function(data), Value)
            probe.begin(0)

        def on_train_end(self, logs: Value = None) -> None:
            probe.remove()

    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[Probing()])
    before = SIZE * BAD_STEP
    twin.fit(x[:before], y[:before], batch_size=SIZE, shuffle=False, verbose=0)
    assert probe.capture is not None
    captured = probe.capture.take()
    assert captured is not None
    assert (captured.step, captured.weights_from) == (BAD_STEP, "mostly_before_step")
    np.testing.assert_array_equal(captured.data[0], x[before : before + SIZE])
    kept = {id(variable): np.array(value) for variable, value in captured.state}
    spoilt, *others = model.trainable_variables
    np.testing.assert_array_equal(kept[id(spoilt)], twin.trainable_variables[0])
    twin.fit(x[before:][:SIZE], y[before:][:SIZE], batch_size=SIZE, shuffle=False, verbose=0)
    for ours, theirs in zip(others, twin.trainable_variables[1:], strict=True):
        np.testing.assert_array_equal(kept[id(ours)], theirs)  # that one update was finite for them


def test_where_the_loss_is_bad_all_weights_are_those_before_the_step() -> None:
    x, y = data()
    y[SIZE * BAD_STEP] = np.nan
    model = wide_model()
    probe = Probe()
    states: list[list[Array]] = []

    class Probing(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Value = None) -> None:
            probe.install(self.model, lambda function: lambda data: function(data), Value)
            probe.begin(0)

        def on_train_batch_begin(self, batch: int, logs: Value = None) -> None:
            states.append([np.array(weight) for weight in self.model.trainable_variables])

        def on_train_end(self, logs: Value = None) -> None:
            probe.remove()

    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[Probing()])
    assert probe.capture is not None
    captured = probe.capture.take()
    assert captured is not None
    assert (captured.step, captured.weights_from) == (BAD_STEP, "before_step")
    kept = {id(variable): np.array(value) for variable, value in captured.state}
    for weight, value in zip(model.trainable_variables, states[BAD_STEP], strict=True):
        np.testing.assert_array_equal(kept[id(weight)], value)


def test_a_part_whose_gradients_are_all_zero_is_no_news() -> None:
    x, y = data()
    reporter, sent = reporting()
    inputs = keras.Input((WIDTH,))
    dead = keras.layers.Dense(WIDTH, name="dead")(inputs)
    hidden = keras.layers.Dense(WIDTH, name="alive")(inputs)
    outputs = keras.layers.Dense(1, name="head")(hidden + 0.0 * dead)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    assert np.all(sent.layer("layer_grad_norm", "dead") == 0)
    assert np.all(sent.layer("layer_grad_norm", "alive")[:BAD_STEP] > 0)
    assert sent.values("grad_nonfinite") == [0] * STEPS


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_replay_names_the_operation_although_later_steps_spoilt_the_other_parts(optimizer: str) -> None:
    x, y = data()
    reporter, sent = reporting()
    model = wide_model(optimizer)
    model.fit(x, y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[reporter])
    assert not np.isfinite(model.trainable_variables[-1]).all()
    ((step, report),) = [(step, report) for kind, step, report in sent.events if kind == "autopsy"]
    assert (step, report["found"], report["operation"]) == (BAD_STEP, "operation", "SqrtGrad")
    assert report["layer"] == model.layers[1].name
    assert report["weights_from"] == "mostly_before_step"
