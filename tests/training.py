"""Small trainings for the client's tests: a recording sender, models, and what their numbers should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from trainvitals import HealthReporter, wire
from trainvitals.probe.types import Value
from trainvitals.rows import Rows

Array = npt.NDArray[Any]


class RecordingSender:
    """Takes what a reporter sends and keeps it; the same methods as the real one."""

    def __init__(self) -> None:
        self.pieces: list[Rows] = []
        self.layouts: list[tuple[list[wire.Layer], wire.Environment | None]] = []
        self.events: list[tuple[str, int, dict[str, object]]] = []
        self.losses: list[tuple[str, int, int, int]] = []
        self.byes: list[tuple[str, int | None, str]] = []
        self.promises: list[tuple[float, str]] = []
        self.said: list[str] = []

    def layout(self, layers: Sequence[wire.Layer], environment: wire.Environment | None = None) -> int:
        self.layouts.append((list(layers), environment))
        return len(self.layouts)

    def rows(self, rows: Rows) -> None:
        self.pieces.append(rows)

    def event(self, kind: str, step: int, data: Mapping[str, object]) -> None:
        self.events.append((kind, step, dict(data)))

    def lost(self, reason: str, first_step: int, last_step: int, steps_lost: int) -> None:
        self.losses.append((reason, first_step, last_step, steps_lost))

    def heartbeat(self, next_within_s: float, activity: str = "training") -> None:
        self.promises.append((next_within_s, activity))

    def say(self, line: str, *, is_below: bool = True) -> None:
        self.said.append(line)

    def bye(self, status: str, step: int | None, error: str = "") -> None:
        self.byes.append((status, step, error))

    @property
    def steps(self) -> list[int]:
        """Return the step of every row, in the order in which they came."""
        return [int(step) for piece in self.pieces for step in piece.steps]

    def series(self, name: str) -> dict[int, float]:
        """Return the present cells of a column by their step."""
        found = {}
        for piece in self.pieces:
            values, present = piece.columns.get(name, (np.zeros(0), None))
            for row, value in enumerate(values):
                if present is None or present[row]:
                    found[int(piece.steps[row])] = float(value)
        return found

    def values(self, name: str) -> list[float]:
        """Return the present cells of a column in order of their steps."""
        return [value for _, value in sorted(self.series(name).items())]

    def layer(self, name: str, layer: str) -> Array:
        """Return one layer's cells in order of their steps, all of which must be there."""
        found = []
        for piece in self.pieces:
            layers = [one.name for one in self.layouts[piece.layout_id - 1][0]]
            values, present = piece.layer_columns[name]
            assert present is None or present.all()
            found.append(values[:, layers.index(layer)])
        return np.concatenate(found)

    @property
    def messages(self) -> list[str]:
        """Return the texts of the message events."""
        return [str(data["text"]) for kind, _, data in self.events if kind == "message"]


def layer_cells(sent: RecordingSender, name: str, layer: str) -> dict[int, float]:
    """Return the present cells of one layer by their step."""
    found = {}
    for piece in sent.pieces:
        layers = [one.name for one in sent.layouts[piece.layout_id - 1][0]]
        if name not in piece.layer_columns or layer not in layers:
            continue
        column = layers.index(layer)
        values, present = piece.layer_columns[name]
        for row, step in enumerate(piece.steps):
            if present is None or present[row, column]:
                found[int(step)] = float(values[row, column])
    return found


def recorded(reporter: Value) -> RecordingSender:
    """Let a reporter send to a recorder, and return that."""
    recorder = RecordingSender()
    reporter._session._sender = recorder
    return recorder


def reporting() -> tuple[HealthReporter, RecordingSender]:
    """Return a reporter and where its rows go."""
    reporter = HealthReporter()
    return reporter, recorded(reporter)


def batch(rows: int = 64, seed: int = 0) -> tuple[Array, Array]:
    """Return inputs and labels of a linear task."""
    x = np.random.default_rng(seed).normal(size=(rows, 8)).astype("float32")
    return x, (x[:, :1] - 2 * x[:, 1:2]).astype("float32")


def small_model(seed: int = 1) -> keras.Model:
    """Return two dense layers, `hidden` and `head`, with the same weights for the same seed."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="relu", name="hidden"),
            keras.layers.Dense(1, name="head", dtype="float32"),
        ]
    )


def by_hand(
    model: keras.Model, optimizer: Value, x: Array, y: Array, size: int, epochs: int
) -> list[dict[str, Any]]:
    """Train eagerly, batch by batch, and return loss, gradients and scale of each step: the oracle."""
    found = []
    for start in [start for _ in range(epochs) for start in range(0, len(x), size)]:
        bx, by = tf.constant(x[start : start + size]), tf.constant(y[start : start + size])
        scale = float(getattr(optimizer, "dynamic_scale", 1.0)) if optimizer.built else 2.0**15
        if not hasattr(optimizer, "inner_optimizer"):
            scale = 1.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(bx, training=True) - by))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        whole = [np.asarray(tf.cast(gradient, tf.float64)) / scale for gradient in gradients]
        found.append(
            {
                "loss": float(loss),
                "grad_norm": float(np.sqrt(sum(np.square(one).sum() for one in whole))),
                "hidden": float(np.sqrt(sum(np.square(one).sum() for one in whole[:2]))),
                "grad_nonfinite": sum(int((~np.isfinite(one)).sum()) for one in whole),
                "loss_scale": scale,
            }
        )
    return found
