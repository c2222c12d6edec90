"""Trainings by two replicas, in a process of its own: the logical devices come before TensorFlow starts.

`python replicated.py FILE` trains all of them and writes what was reported, and what an eager oracle on one
device says, as JSON.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from observing import tower
from training import Array, RecordingSender, batch, reporting, small_model
from trainvitals.probe.types import Value

COLUMNS = (
    "loss", "grad_norm", "grad_nonfinite", "batch_size", "learning_rate", "loss_scale", "skipped",
    "optimizer_step", "input_nonfinite", "label_nonfinite", "weight_nonfinite",
)  # fmt: skip
SIZE = 16
ROWS = 59  # the last batch: 6 rows and 5


class Failure(RuntimeError):
    """What a callback of the user's raises."""


class FailsAt(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises after a batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401 - Keras's signature
        """Raise after the second batch."""
        if batch == 1:
            raise Failure


def told(sent: RecordingSender, layers: Sequence[str] = ("hidden", "head")) -> dict[str, Any]:
    """Return what was reported, for JSON."""
    found: dict[str, Any] = {name: sent.values(name) for name in COLUMNS}
    for name in layers:
        for series in ("layer_grad_norm", "layer_grad_nonfinite"):
            found[f"{series} {name}"] = [float(value) for value in sent.layer(series, name)]
    return found | {"steps": sent.steps, "messages": sent.messages, "lost": sent.losses}


def built(
    optimizer: Callable[[], Value], make: Callable[[], keras.Model] = small_model, **options: object
) -> keras.Model:
    """Return a compiled model for two replicas."""
    with STRATEGY.scope():
        model = make()
        model.compile(optimizer(), "mse", **options)
    return model


def fit(
    model: keras.Model, x: Array, y: Array, *callbacks: keras.callbacks.Callback, epochs: int = 2
) -> None:
    """Train in the order of the data."""
    model.fit(x, y, batch_size=SIZE, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def adam() -> Value:
    return keras.optimizers.Adam(0.01)


def scaled() -> Value:
    return keras.optimizers.LossScaleOptimizer(adam(), initial_scale=1024.0, dynamic_growth_steps=3)


def eager(model: keras.Model, optimizer: Value, x: Array, y: Array, epochs: int) -> list[dict[str, float]]:
    """Train on one device by one tape over the whole batch, in which each replica's mean counts alike."""
    found = []
    for start in [start for _ in range(epochs) for start in range(0, len(x), SIZE)]:
        bx, by = x[start : start + SIZE], y[start : start + SIZE]
        weights = np.full(len(bx), 0.5 / max(len(bx) // 2, 1))
        weights[: (len(bx) + 1) // 2] = 0.5 / ((len(bx) + 1) // 2)
        with tf.GradientTape() as tape:
            squares = tf.reduce_mean(tf.cast(tf.square(model(bx, training=True) - by), tf.float32), axis=1)
            loss = tf.reduce_sum(squares * weights.astype("float32"))
            whole = optimizer.scale_loss(loss)
        gradients = tape.gradient(whole, model.trainable_variables)
        scale = float(np.asarray(getattr(optimizer, "dynamic_scale", 1.0)))
        optimizer.apply(gradients, model.trainable_variables)
        norms = [float(np.linalg.norm(np.asarray(tf.cast(one, tf.float64)))) / scale for one in gradients]
        row = {"hidden": math.hypot(*norms[:2]), "head": math.hypot(*norms[2:])}
        found.append({"loss": float(loss), "grad_norm": math.hypot(*norms), **row})
    return found


def plain() -> dict[str, Any]:
    """Uneven last batch, two epochs; twice without us as control; a checkpoint in the middle."""
    x, y = batch(ROWS)
    reporter, sent = reporting()
    folder = Path(tempfile.mkdtemp())
    saving = keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras")
    model = built(adam)
    fit(model, x, y, saving, reporter)
    untouched = not {"apply", "scale_loss"} & {*vars(model.optimizer)} and "compute_loss" not in vars(model)
    controls = []
    for _ in range(2):
        control = built(adam)
        fit(control, x, y)
        controls.append(control.get_weights())
    saved = keras.models.load_model(folder / "2.keras").get_weights()
    return {
        "told": told(sent),
        "oracle": eager(small_model(), adam(), x, y, 2),
        "same": [same(model.get_weights(), weights) for weights in (*controls, saved)],
        "untouched": untouched,
    }


def one_row_for_the_last_batch() -> dict[str, Any]:
    """One replica gets no row of the last batch; a third `fit` after an exception in the second."""
    x, y = batch(33)
    reporter, sent = reporting()
    model = built(adam)
    fit(model, x, y, reporter, epochs=1)
    with suppress(Failure):
        fit(model, x, y, reporter, FailsAt(), epochs=1)
    fit(model, x, y, reporter, epochs=1)
    oracle = small_model()
    optimizer = adam()
    steps = eager(oracle, optimizer, x, y, 1)
    steps += eager(oracle, optimizer, x[: 2 * SIZE], y[: 2 * SIZE], 1)
    steps += eager(oracle, optimizer, x, y, 1)
    return {"told": told(sent), "oracle": steps}


def mixed() -> dict[str, Any]:
    """A loss scaler that grows; then what only the first, and only the second replica has of a NaN."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        x, y = batch(4 * SIZE)
        reporter, sent = reporting()
        model = built(scaled)
        fit(model, x, y, reporter, epochs=1)
        control = built(scaled)
        fit(control, x, y, epochs=1)
        equal = same(model.get_weights(), control.get_weights())
        optimizer, oracle = scaled(), small_model()
        optimizer.build(oracle.trainable_variables)
        steps = eager(oracle, optimizer, x, y, 1)
        y[SIZE, 0] = np.nan  # the first row of the second batch
        y[4 * SIZE - 1, 0] = np.nan  # the last row of the last
        fit(model, x, y, reporter, epochs=1)
    finally:
        keras.config.set_dtype_policy("float32")
    finite = [bool(np.isfinite(one).all()) for one in model.get_weights()]
    return {"told": told(sent), "oracle": steps, "same": [equal], "is_finite": all(finite)}


def of_policy(policy: str) -> dict[str, Any]:
    """Weights with a reporter, without one, and without one again."""
    weights = []
    for reporters in ([], [], [reporting()[0]]):
        model = built(adam, lambda: tower(policy))
        fit(model, *batch(ROWS), *reporters, epochs=1)
        weights.append(model.get_weights())
    return {"same": [same(weights[0], other) for other in weights[1:]]}


def under_xla() -> dict[str, Any]:
    """What comes of several replicas under XLA, without a reporter."""
    model = built(adam, jit_compile=True)
    try:
        fit(model, *batch(SIZE), epochs=1)
    except tf.errors.InvalidArgumentError as error:
        return {"error": str(error)}
    return {"error": ""}


class TwoOptimizers(keras.Model):  # type: ignore[misc]
    """A `train_step` of its own; a row of zeros spoils the gradient below the root, but not above it."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(1)
        self.hidden = keras.layers.Dense(16, activation="relu", name="hidden")
        self.head = keras.layers.Dense(1, name="head")
        self.table = keras.layers.Embedding(8, 1, name="table")
        self.second = keras.optimizers.SGD(0.1)

    def call(self, x: Value) -> Value:
        """Return the prediction."""
        codes = tf.cast(tf.abs(x[:, :3]) * 2, tf.int32) % 8
        is_usual = tf.cast(tf.reduce_any(x != 0, axis=1, keepdims=True), tf.float32)
        root = tf.sqrt((self.hidden(x) + 1.0) * is_usual)
        return self.head(root) + tf.reduce_sum(self.table(codes), axis=1)

    def train_step(self, data: Value) -> dict[str, Value]:
        """Update the layers by one optimizer and the table by the other."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        layers = [*self.hidden.trainable_variables, *self.head.trainable_variables]
        table = self.table.trainable_variables
        gradients = tape.gradient(loss, [*layers, *table])
        self.optimizer.apply([gradient * 1.0 for gradient in gradients[:4]], layers)
        self.second.apply(gradients[4:], table)
        return {"loss": loss}


def two_optimizers(*, is_eager: bool) -> dict[str, Any]:
    """A batch that is bad for the second replica only, and its oracle."""
    x, y = batch(4 * SIZE)
    x[3 * SIZE - 1] = 0.0  # the last row of the third batch
    made = [built(adam, TwoOptimizers, run_eagerly=is_eager) for _ in range(2)]
    reporter, sent = reporting()
    fit(made[0], x, y, reporter, epochs=1)
    fit(made[1], x, y, epochs=1)
    weights = [model.get_weights() for model in made]
    oracle, optimizer, steps = TwoOptimizers(), adam(), []
    for start in range(0, len(x), SIZE):
        bx, by = x[start : start + SIZE], y[start : start + SIZE]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(oracle(bx) - by))
        variables = [*oracle.hidden.variables, *oracle.head.variables, *oracle.table.variables]
        gradients = [np.asarray(tf.convert_to_tensor(one)) for one in tape.gradient(loss, variables)]
        optimizer.apply(gradients[:4], variables[:4])
        oracle.second.apply(gradients[4:], variables[4:])
        parts = {"hidden": gradients[:2], "head": gradients[2:4], "table": gradients[4:], "grad": gradients}
        row = {
            name: float(np.sqrt(sum(np.square(one).sum() for one in part))) for name, part in parts.items()
        }
        bad = {
            f"{name}_bad": sum(int((~np.isfinite(one)).sum()) for one in part) for name, part in parts.items()
        }
        steps.append({"loss": float(loss), **row, **bad})
    return {"told": told(sent, ("hidden", "head", "table")), "oracle": steps, "same": [same(*weights)]}


class FailsOnce(keras.Sequential):  # type: ignore[misc]
    """Its second replica raises when it is traced for the first time."""

    has_failed = False

    def train_step(self, data: Value) -> dict[str, Value]:
        """Raise after the step."""
        logs: dict[str, Value] = super().train_step(data)
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        if not self.has_failed and tf.get_static_value(replica) == 1:
            self.has_failed = True
            raise Failure
        return logs


def one_replica_raises() -> dict[str, Any]:
    """An exception of the user's in one replica, and a `fit` after it."""
    x, y = batch(2 * SIZE)
    reporter, sent = reporting()
    model = built(adam, lambda: FailsOnce(small_model().layers))
    with suppress(Failure):
        fit(model, x, y, reporter, epochs=1)
    hooked = {"apply", "scale_loss"} & {*vars(model.optimizer)} | {"compute_loss"} & {*vars(model)}
    model.make_train_function(force=True)
    fit(model, x, y, reporter, epochs=1)
    oracle = eager(small_model(), adam(), x, y, 1)
    return {"hooked": sorted(hooked), "losses": sent.values("loss"), "oracle": oracle}


def inside_the_scope() -> dict[str, Any]:
    """The `fit` itself within `strategy.scope()`."""
    x, y = batch(2 * SIZE)
    reporter, sent = reporting()
    model = built(lambda: keras.optimizers.SGD(0.1, weight_decay=0.01, use_ema=True, clipnorm=0.5))
    with STRATEGY.scope():
        fit(model, x, y, reporter, epochs=1)
    return {"told": told(sent), "oracle": eager(small_model(), keras.optimizers.SGD(0.1), x, y, 1)[:1]}


def same(ours: Sequence[Array], others: Sequence[Array]) -> bool:
    """Return whether weights are the same, bit for bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(ours, others, strict=True))


def main(path: str) -> None:
    """Train all and write what came of it."""
    xla = under_xla()  # which Keras turns off under deterministic operations
    tf.config.experimental.enable_op_determinism()
    answers = {
        "xla": xla,
        "plain": plain(),
        "one_row": one_row_for_the_last_batch(),
        "mixed": mixed(),
        "two_optimizers": two_optimizers(is_eager=False),
        "eager": two_optimizers(is_eager=True),
        "scope": inside_the_scope(),
        "raises": one_replica_raises(),
        "mixed_bfloat16": of_policy("mixed_bfloat16"),
        "float64": of_policy("float64"),
    }
    Path(path).write_text(json.dumps(answers))


if __name__ == "__main__":
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    main(sys.argv[1])
