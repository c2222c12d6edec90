"""What the probe asks of an optimizer: its loss scale, learning rate and step, as they are in this step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainvitals.probe.types import Model, Optimizer, Value


def scaling_of(optimizer: Optimizer) -> str:
    """Return "dynamic" under a LossScaleOptimizer, "static" with a fixed factor, else ""."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return "dynamic"
    return "static" if getattr(optimizer, "loss_scale_factor", None) is not None else ""


def loss_scale_of(optimizer: Optimizer) -> Value:
    """Return what gradients that reach `apply` are scaled by; 1.0 without scaling."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return tf.convert_to_tensor(optimizer.dynamic_scale) if optimizer.built else optimizer.initial_scale
    factor = getattr(optimizer, "loss_scale_factor", None)
    return 1.0 if factor is None else factor


def learning_rate_of(optimizer: Optimizer) -> Value:
    """Return the current learning rate, or None where asking would call the user's own function once more."""
    inner = inner_of(optimizer)
    rate = getattr(inner, "_learning_rate", None)
    known = (keras.Variable, keras.optimizers.schedules.LearningRateSchedule)
    if callable(rate) and not isinstance(rate, known):
        return None
    rate = getattr(inner, "learning_rate", None)
    return None if rate is None else tf.convert_to_tensor(rate)


def optimizer_step_of(optimizer: Optimizer) -> Value:
    """Return how many updates were made."""
    return tf.convert_to_tensor(inner_of(optimizer).iterations)


def updates_of(optimizer: Optimizer) -> int:
    """Return how often the optimizer was applied, accumulating or not; what a scaler skipped is not in it."""
    counter = getattr(inner_of(optimizer), "_iterations", None)  # `iterations` is divided by the accumulation
    return 0 if counter is None else int(tf.convert_to_tensor(counter).numpy())


def inner_of(optimizer: Optimizer) -> Value:
    """Return the optimizer below a loss scaler."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def optimizers_of(model: Model) -> list[Any]:
    """Return the model's optimizers: the compiled one, and others that are attributes of it."""
    found = [model.optimizer, *vars(model).values()]
    optimizers = [value for value in found if isinstance(value, keras.optimizers.Optimizer)]
    return list({id(optimizer): optimizer for optimizer in optimizers}.values())
