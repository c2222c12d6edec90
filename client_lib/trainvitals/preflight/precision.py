"""What float16 asks of the optimizer: a loss scale, and an epsilon that is above 0 beside its weights."""

from __future__ import annotations

import keras
import numpy as np

from trainvitals.preflight.finding import Finding
from trainvitals.probe.optimizers import inner_of, optimizers_of, scaling_of
from trainvitals.probe.types import Model, Value


def optimizers(model: Model) -> list[Value]:
    """Return the model's optimizers, compiled or attributes; none where it was not compiled."""
    return optimizers_of(model) if hasattr(model, "optimizer") else []


def of_optimizers(model: Model) -> list[Finding]:
    """Return what is wrong with the optimizers of a model that computes in float16."""
    weights = list(model.trainable_variables)
    found = []
    if any(keras.backend.standardize_dtype(one.dtype) == "float16" for one in weights):
        found += [
            _epsilon(one) for one in optimizers(model) if _is_zero(getattr(inner_of(one), "epsilon", None))
        ]
    computes = any(
        getattr(one, "compute_dtype", "") == "float16" for one in [model, *getattr(model, "layers", ())]
    )
    if computes and getattr(model, "optimizer", None) is not None and not scaling_of(model.optimizer):
        found.append(_no_scale())
    return found


def not_applied() -> Finding:
    """Return the finding of a step that never scales its loss."""
    return Finding(
        code="loss_scale_not_applied",
        severity="error",
        what="the optimizer divides gradients by its loss scale, and train_step never multiplies the loss "
        "by it: updates are thousands of times too small.",
        advice="Scale the loss before its gradients are taken.",
        snippet="gradients = tape.gradient(self.optimizer.scale_loss(loss), self.trainable_variables)",
    )


def _is_zero(epsilon: Value) -> bool:
    return isinstance(epsilon, float) and epsilon > 0 and float(np.float16(epsilon)) == 0


def _epsilon(optimizer: Value) -> Finding:
    epsilon = inner_of(optimizer).epsilon
    return Finding(
        code="float16_optimizer_epsilon",
        severity="error",
        what=f"the weights are float16, and the optimizer's epsilon of {epsilon:g} is 0 there: "
        "the first gradient of 0 makes weights NaN.",
        advice="Keep the weights in float32 with mixed precision, or take a larger epsilon.",
        snippet='keras.mixed_precision.set_global_policy("mixed_float16")  # in place of "float16"',
    )


def _no_scale() -> Finding:
    return Finding(
        code="no_loss_scale",
        severity="warning",
        what="the model computes in float16 without loss scaling: small gradients become 0.",
        advice="Let compile wrap the optimizer, or wrap it yourself.",
        snippet="keras.optimizers.LossScaleOptimizer(optimizer)",
    )
