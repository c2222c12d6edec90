"""Sound programs for the preflight: their numbers, and what is said of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import keras
import numpy as np

from trainvitals.preflight import preflight
from trainvitals.probe.types import Value

Program: TypeAlias = Callable[[], tuple[Value, Value]]  # a model and a batch


def normal(*shape: int) -> Value:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype("float32")


def ids(classes: int, *shape: int) -> Value:
    return np.random.default_rng(7).integers(0, classes, shape)


def compiled(model: Value, loss: Value = None, optimizer: Value = "adam", **options: Value) -> Value:
    model.compile(optimizer=optimizer, loss=loss, **options)
    return model


def said_of(program: Program) -> str:
    """Return all that a preflight says of a program; the dtype policy that it may set is for itself."""
    keras.utils.set_random_seed(1)
    try:
        return str(preflight(*program()))
    finally:
        keras.config.set_dtype_policy("float32")
