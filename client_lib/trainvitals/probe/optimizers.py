"""What the probe asks of an optimizer: its loss scale, learning rate and step, as they are in this step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainvitals.probe.kinds import family_of, is_a
from trainvitals.probe.kinds import inner_of as inner_of
from trainvitals.probe.kinds import scaling_of as scaling_of
from trainvitals.probe.types import Model, Optimizer, Value


def loss_scale_of(optimizer: Optimizer) -> Value:
    """Return what the loss is multiplied by, and in Keras 3 the gradients that `apply` gets; else 1.0."""
    if family_of(optimizer) == "tf_keras":
        return getattr(optimizer, "loss_scale", 1.0)
    if scaling_of(optimizer) == "dynamic":
        return tf.convert_to_tensor(optimizer.dynamic_scale) if optimizer.built else optimizer.initial_scale
    factor = getattr(optimizer, "loss_scale_factor", None)
    return 1.0 if factor is None else factor


def learning_rate_of(optimizer: Optimizer) -> Value:
    """Return the current learning rate, or None where asking would call the user's own function once more."""
    inner = inner_of(optimizer)
    if family_of(inner) == "tf_keras":
        return _old_learning_rate_of(inner)
    rate = getattr(inner, "_learning_rate", None)
    if callable(rate) and not is_a(rate, "Variable", "KerasVariable", "LearningRateSchedule"):
        return None
    rate = getattr(inner, "learning_rate", None)
    return None if rate is None else tf.convert_to_tensor(rate)


def _old_learning_rate_of(optimizer: Optimizer) -> Value:
    """Return the same of an optimizer of tf_keras, which keeps a schedule as it was given."""
    hyper = getattr(optimizer, "_hyper", None)  # of a legacy one
    rate: Any = getattr(optimizer, "_learning_rate", None) if hyper is None else hyper.get("learning_rate")
    if is_a(rate, "LearningRateSchedule"):
        return tf.convert_to_tensor(rate(optimizer.iterations))
    if callable(rate) and not isinstance(rate, tf.Variable):
        return None
    return None if rate is None else tf.convert_to_tensor(rate)


def optimizer_step_of(optimizer: Optimizer) -> Value:
    """Return how many updates were made."""
    return tf.convert_to_tensor(inner_of(optimizer).iterations)


def updates_of(optimizer: Optimizer) -> int:
    """Return how often the optimizer was applied, accumulating or not; what a scaler skipped is not in it."""
    counter = getattr(inner_of(optimizer), "_iterations", None)  # `iterations` is divided by the accumulation
    return 0 if counter is None else int(tf.convert_to_tensor(counter).numpy())


def changes_by_gradients_only(optimizer: Optimizer) -> bool:
    """Return whether all that `apply` does to weights and their slots comes of the gradients it is given.

    Keras's own optimizers are like that, but for the decay of weights and for accumulators that are emptied.
    """
    inner = inner_of(optimizer)
    is_known = all(type(one).__module__.startswith("keras.src.optimizers.") for one in (optimizer, inner))
    return is_known and not any(
        getattr(inner, name, None) for name in ("weight_decay", "gradient_accumulation_steps")
    )


def optimizers_of(model: Model) -> list[Any]:
    """Return the model's optimizers: the compiled one, and others that are attributes of it."""
    found = [model.optimizer, *vars(model).values()]
    optimizers = {id(value): value for value in found if is_a(value, "Optimizer", "OptimizerV2")}
    for optimizer in list(optimizers.values()):  # what a loss scaler does is done once
        if inner_of(optimizer) is not optimizer:
            optimizers.pop(id(inner_of(optimizer)), None)
    return list(optimizers.values())


def make_variables(optimizer: Optimizer, variables: Sequence[Any]) -> None:
    """Have an optimizer make what it keeps for `variables`, unless it has done so."""
    inner = inner_of(optimizer)
    if hasattr(inner, "_create_all_weights"):  # a legacy one of tf_keras
        inner._create_all_weights(variables)
    elif family_of(optimizer) == "tf_keras" or not optimizer.built:
        optimizer.build(variables)


def variables_of(optimizer: Optimizer) -> list[Any]:
    """Return what an optimizer keeps."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
