"""The code that goes with the causes of layers and scales, run on the programs that it is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainvitals_server.catalogue import CATALOGUE

keras = pytest.importorskip("keras")
# Keras itself reads its variables in this way.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
RATE = 0.05


@pytest.fixture
def program() -> dict[str, Any]:
    """Return what a snippet finds: model, optimizer, loss_fn, x and y."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = (1000.0 * rng.normal(size=(64, 4))).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    layers = [keras.layers.Dense(8, activation=name) for name in ("relu", "sigmoid", "tanh")]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=keras.optimizers.SGD(RATE), loss="binary_crossentropy")
    optimizer: Any = keras.optimizers.SGD(RATE)
    loss_fn = keras.losses.BinaryCrossentropy()
    return {"model": model, "optimizer": optimizer, "loss_fn": loss_fn, "x": x, "y": y}


def run(cause: str, program: dict[str, Any]) -> dict[str, Any]:
    exec(compile(CATALOGUE[cause].snippet, cause, "exec"), program)
    return program


def activations(program: dict[str, Any]) -> list[str]:
    return [layer.activation.__name__ for layer in program["model"].layers]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("vanishing_depth", ["relu", "relu", "relu", "sigmoid"]),
        ("dead_relu", ["leaky_relu", "sigmoid", "tanh", "sigmoid"]),
    ],
)
def test_a_snippet_changes_the_activations_it_speaks_of_and_trains(
    cause: str, expected: list[str], program: dict[str, Any]
) -> None:
    after = run(cause, program)
    assert activations(after) == expected
    history = after["model"].fit(after["x"] / 1000, after["y"], epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"][0])


def test_normalised_inputs_no_longer_saturate(program: dict[str, Any]) -> None:
    after = run("saturated_activation", program)
    normalised = np.asarray(after["normalise"](after["x"]))
    assert abs(normalised).max() < 5
    after["model"].fit(after["x"], after["y"], epochs=1, verbose=0)


@pytest.mark.parametrize(
    "cause", ["loss_scale_not_applied", "gradients_unscaled_twice", "gradients_not_unscaled"]
)
def test_a_step_with_a_scaler_is_the_step_without_one(cause: str, program: dict[str, Any]) -> None:
    model, x, y = program["model"], program["x"] / 1000, program["y"]
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    plain.compile(optimizer=keras.optimizers.SGD(RATE), loss="binary_crossentropy")
    plain.train_on_batch(x, y)
    if cause != "gradients_not_unscaled":  # that one brings its own
        program["optimizer"] = keras.optimizers.LossScaleOptimizer(program["optimizer"])
    after = run(cause, program)
    after["optimizer"].build(model.trainable_variables)
    after["train_step"](x, y)
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
