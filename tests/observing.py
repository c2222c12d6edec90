"""Loops whose step is one compiled function that observes, and what their rows should be: the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from training import Array, RecordingSender, batch, recorded
from trainvitals import Reporter
from trainvitals.probe.types import Value

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Return `tf.function` of it, with its types."""
    made: F = tf.function(function)
    return made


def norm(arrays: Sequence[Any], scale: float = 1.0) -> float:
    """Return the norm of arrays, IndexedSlices among them, divided by a scale; in float64."""
    whole = [np.asarray(tf.cast(tf.convert_to_tensor(one), tf.float64)) / scale for one in arrays]
    return float(np.sqrt(sum(np.square(one).sum() for one in whole)))


def tower(dtype: Value = "float32", seed: int = 3) -> keras.Model:
    """Return two dense layers, `hidden` and `head`, of this policy."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(6, activation="tanh", name="hidden", dtype=dtype)]
    layers += [keras.layers.Dense(1, name="head", dtype=dtype)]
    return keras.Sequential([keras.Input((8,)), *layers])


def scaled(growth: int = 3, initial: float = 2.0**17) -> keras.optimizers.Optimizer:
    """Return a scaler that starts too high for float16, and then doubles every few steps."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01), initial_scale=initial, dynamic_growth_steps=growth
    )


@dataclass
class Loop:
    """A compiled loop; `truth` is what an eager twin of it, with the same weights, found step by step."""

    dtype: str = "float32"
    jit: bool = False
    observes: bool = True
    is_late: bool = False  # observe comes after the update
    make_optimizer: Callable[[], Value] = lambda: keras.optimizers.Adam(0.01)
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model, self.optimizer = tower(self.dtype), self.make_optimizer()
        self.reporter = Reporter(**self.options)
        self.sent = recorded(self.reporter)
        self.function = tf.function(self.step, jit_compile=self.jit)
        self.truth: list[dict[str, float]] = []

    def gradients(self, x: Value, y: Value) -> tuple[Value, Value]:
        with tf.GradientTape() as tape:
            prediction = tf.cast(self.model(x, training=True), tf.float64 if self.is_wide else tf.float32)
            loss = tf.reduce_mean(tf.square(prediction - tf.cast(y, prediction.dtype)))
            scaled = self.optimizer.scale_loss(loss)
        return loss, tape.gradient(scaled, self.model.trainable_variables)

    @property
    def is_wide(self) -> bool:
        return self.dtype == "float64"

    def step(self, x: Value, y: Value) -> Value:
        variables = self.model.trainable_variables
        loss, gradients = self.gradients(x, y)
        if self.is_late:
            self.optimizer.apply(gradients, variables)
        if self.observes:
            self.reporter.observe(
                loss=loss, gradients=gradients, variables=variables, optimizer=self.optimizer, batch=(x, y)
            )
        if not self.is_late:
            self.optimizer.apply(gradients, variables)
        return loss

    def judge(self, x: Value, y: Value) -> None:
        """Do the step eagerly and by hand, and remember what it was."""
        scale = 1.0
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            built = self.optimizer.built
            scale = float(self.optimizer.dynamic_scale) if built else self.optimizer.initial_scale
        loss, gradients = self.gradients(tf.constant(x), tf.constant(y))
        counted = sum(int((~np.isfinite(np.asarray(tf.cast(one, tf.float64)))).sum()) for one in gradients)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        with np.errstate(all="ignore"):
            found = {"loss": float(loss), "grad_norm": norm(gradients, scale), "loss_scale": scale}
            found |= {"hidden": norm(gradients[:2], scale), "grad_nonfinite": counted}
        inner: Value = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        found |= {"optimizer_step": int(inner.iterations), "batch_size": len(x)}
        self.truth.append(found)

    def run(self, batches: Sequence[tuple[Array, Array]]) -> RecordingSender:
        with self.reporter:
            for x, y in batches:
                self.function(tf.constant(x), tf.constant(y))
                self.reporter.step()
        return self.sent

    @property
    def weights(self) -> list[Array]:
        return [np.asarray(tf.cast(one, tf.float64)) for one in self.model.variables]


def batches(count: int, size: int = 8, dtype: str = "float32") -> list[tuple[Array, Array]]:
    """Return that many batches of a linear task, one after the other."""
    x, y = batch(count * size)
    x, y = x.astype(dtype), y.astype(dtype)
    return [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]
