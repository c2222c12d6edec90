"""What a preflight says of a model and a batch with one planted fault."""

from __future__ import annotations

import keras
from keras import layers

from trainvitals.preflight import preflight
from trainvitals.preflight.finding import Finding
from trainvitals.probe.types import Value


def net(*members: Value, loss: Value = "mse", optimizer: Value = "adam") -> Value:
    """Return a compiled stack of layers."""
    model = keras.Sequential(list(members))
    model.compile(optimizer=optimizer, loss=loss)
    return model


def dense(units: int, activation: Value = None, name: str | None = None) -> Value:
    """Return a dense layer."""
    return layers.Dense(units, activation=activation, name=name)


def only(model: Value, *batch: Value) -> Finding:
    """Return the one thing that was found."""
    report = preflight(model, batch if len(batch) > 1 else batch[0])
    assert report.notes == ()
    (found,) = report.findings
    return found
