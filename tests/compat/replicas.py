"""A training by two replicas with the Keras of this environment: `python -m compat.replicas` prints JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from compat.frame import SIZE, K, batch, fit, small_model
from training import RecordingSender, recorded
from trainvitals import HealthReporter
from trainvitals.probe.types import Value


def trained(policy: str, *, is_reported: bool = True) -> tuple[RecordingSender, list[Any], bool]:
    """Train by two replicas; return what was reported, the weights, and whether those of both differ."""
    K.mixed_precision.set_global_policy(policy)
    with STRATEGY.scope():
        model = small_model()
        model.compile(K.optimizers.Adam(0.01), "mse")
    reporter = HealthReporter()
    sent = recorded(reporter)
    fit(model, *[reporter] * is_reported)
    kernel = model.trainable_variables[0]  # of tf_keras it is TensorFlow's own
    kernel = kernel if isinstance(kernel, tf.Variable) else kernel.value
    replicas = [one.numpy() for one in STRATEGY.experimental_local_results(kernel)]
    return sent, model.get_weights(), not np.array_equal(*replicas)


def first_step() -> tuple[float, float]:
    """Return loss and gradient norm of the first batch, by one tape on one device."""
    model, (x, y) = small_model(), batch()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x[:SIZE]) - y[:SIZE]))
    return float(loss), float(tf.linalg.global_norm(tape.gradient(loss, model.trainable_variables)))


def answer(policy: str) -> dict[str, Value]:
    """Return what there is to check of a training."""
    (sent, weights, drifts), (_, others, _) = trained(policy), trained(policy, is_reported=False)
    same = all(np.array_equal(one, other) for one, other in zip(weights, others, strict=True))
    sizes, scales = sent.values("batch_size"), sent.values("loss_scale")
    first = [sent.values("loss")[0], sent.values("grad_norm")[0]]
    found = {"steps": sent.steps, "sizes": sizes, "scales": scales, "first": first, "same": same}
    return found | {"drifts": drifts, "messages": sent.messages}


if __name__ == "__main__":
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found: dict[str, Value] = {policy: answer(policy) for policy in ("mixed_float16", "float32")}
    K.mixed_precision.set_global_policy("float32")
    sys.stdout.write(json.dumps(found | {"oracle": first_step()}))
