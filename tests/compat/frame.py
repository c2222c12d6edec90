"""The Keras that is checked, by the names that Keras 3 and tf_keras share, and what they call differently."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals import HealthReporter, Reporter
from trainvitals.probe.types import Model, Optimizer, Tensor, Value

K: Any = import_module(os.environ.get("TRAINVITALS_COMPAT_KERAS", "keras"))
URL = os.environ.get("TRAINVITALS_COMPAT_URL", "")
TIMEOUT_S = 60.0
SIZE, EPOCHS, STEPS = 10, 2, 14  # 64 rows: six batches of 10 and one of 4

Array = npt.NDArray[Any]


def batch(rows: int = 64, seed: int = 0) -> tuple[Array, Array]:
    """Return inputs and labels of a linear task."""
    x = np.random.default_rng(seed).normal(size=(rows, 8)).astype("float32")
    return x, (x[:, :1] - 2 * x[:, 1:2]).astype("float32")


def small_model(head: str | None = None) -> Model:
    """Return two dense layers, always with the same weights."""
    K.utils.set_random_seed(1)
    return K.Sequential(
        [
            K.Input((8,)),
            K.layers.Dense(16, activation="relu", name="hidden"),
            K.layers.Dense(1, name="head", activation=head, dtype="float32"),
        ]
    )


def fit(model: Model, *callbacks: Value, **options: Value) -> Value:
    """Train in the order of the data."""
    settings = {"batch_size": SIZE, "epochs": EPOCHS, "shuffle": False, "verbose": 0, **options}
    return model.fit(*batch(), callbacks=list(callbacks), **settings)


def scaled(optimizer: Optimizer, loss: Tensor) -> Tensor:
    """Return the loss as it is to be differentiated."""
    scale: Callable[[Tensor], Tensor] | None = getattr(optimizer, "scale_loss", None)
    scale = scale or getattr(optimizer, "get_scaled_loss", None)
    return loss if scale is None else scale(loss)


def unscaled(optimizer: Optimizer, gradients: list[Tensor]) -> list[Tensor]:
    """Return gradients as `apply_gradients` takes them: tf_keras leaves it to its caller to divide them."""
    unscale = getattr(optimizer, "get_unscaled_gradients", None)
    return gradients if unscale is None else list(unscale(gradients))


def scale_of(optimizer: Optimizer) -> float:
    """Return the current loss scale of an optimizer."""
    if hasattr(optimizer, "loss_scale"):
        return float(optimizer.loss_scale)
    if not hasattr(optimizer, "inner_optimizer"):
        return 1.0
    scale = optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale
    return float(np.asarray(scale))


def scaler(inner: Optimizer, initial_scale: float) -> Optimizer:
    """Return a LossScaleOptimizer."""
    module = K.mixed_precision if K.__name__ == "tf_keras" else K.optimizers
    return module.LossScaleOptimizer(inner, initial_scale=initial_scale)


def of_server(reporter: HealthReporter | Reporter, path: str) -> bytes:
    """Return what the server says of a run, once it has all of it."""
    assert reporter._session.sender.flush(TIMEOUT_S)
    run = urllib.parse.quote(reporter.run_id)
    with urllib.request.urlopen(f"{URL}/api/v1/runs/{run}/{path}", timeout=TIMEOUT_S) as answer:
        return bytes(answer.read())


def rows_of(reporter: HealthReporter | Reporter) -> list[dict[str, Any]]:
    """Return the rows that arrived, in order."""
    return [json.loads(line) for line in of_server(reporter, "export.jsonl").splitlines()]


def incidents_of(reporter: HealthReporter | Reporter) -> list[dict[str, Any]]:
    """Return the incidents that the server told."""
    found: list[dict[str, Any]] = json.loads(of_server(reporter, "incidents"))["incidents"]
    return found
