"""Which framework an object is of, told by where its classes come from: no framework is imported here."""

from __future__ import annotations

from typing import Literal, TypeAlias

from trainvitals.probe.types import Model, Optimizer, Value

Family: TypeAlias = Literal["keras", "tf_keras", ""]  # Keras 3, Keras 2, or none of them

_SCALERS = ("LossScaleOptimizer", "BaseLossScaleOptimizer")


def family_of(thing: object) -> Family:
    """Return the family of a model, an optimizer, a metric, or of any other object of Keras."""
    roots = {base.__module__.partition(".")[0] for base in type(thing).__mro__}
    return "tf_keras" if "tf_keras" in roots else "keras" if "keras" in roots else ""


def is_a(thing: object, *names: str) -> bool:
    """Return whether `thing` is an instance of a class of Keras that has one of these names."""
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in type(thing).__mro__
    )


def scaling_of(optimizer: Optimizer) -> str:
    """Return "dynamic" under a LossScaleOptimizer, "static" with a fixed factor, else ""."""
    if is_a(optimizer, *_SCALERS):
        return "dynamic" if getattr(optimizer, "dynamic", True) else "static"
    return "static" if getattr(optimizer, "loss_scale_factor", None) is not None else ""


def takes_unscaled(optimizer: Optimizer) -> bool:
    """Return whether gradients are given to an optimizer without the loss scale: Keras 3 divides within."""
    return family_of(optimizer) == "tf_keras"


def inner_of(optimizer: Optimizer) -> Value:
    """Return the optimizer below a loss scaler."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def steps_per_execution_of(model: Model) -> int:
    """Return how many steps one call of the train function takes; `tf_keras` keeps it in a variable."""
    steps = model.steps_per_execution
    return max(int(steps.numpy() if hasattr(steps, "numpy") else steps or 1), 1)
