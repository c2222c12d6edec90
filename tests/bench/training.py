"""The trainings that are measured, each in a process of its own: `python -m bench.training ...`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainvitals import HealthReporter

CHECKED = "enable_check_numerics"
SKIP_STEPS = 5  # of each fit: installing and the first execution are not a step's cost


class Clock(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Notes when each step ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_begin(self, logs: object = None) -> None:
        self.ends = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.ends.append(time.time())


def dense() -> tuple[keras.Model, Any, Any]:
    """A perceptron with steps of about a millisecond."""
    rng = np.random.default_rng(0)
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(10)])
    return model, rng.normal(size=(32, 32)), rng.integers(0, 10, 32)


def convolutional() -> tuple[keras.Model, Any, Any]:
    """A convnet with steps of about twenty milliseconds."""
    rng = np.random.default_rng(0)
    parts: list[Any] = []
    for filters in (16, 32, 64):
        parts += [
            keras.layers.Conv2D(filters, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
        ]
    model = keras.Sequential(
        [keras.Input((32, 32, 3)), *parts, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    )
    return model, rng.normal(size=(32, 32, 32, 3)), rng.integers(0, 10, 32)


def transformer() -> tuple[keras.Model, Any, Any]:
    """An encoder with steps of about a tenth of a second."""
    rng = np.random.default_rng(0)
    inputs = keras.Input((64,))
    hidden = keras.layers.Embedding(1000, 128)(inputs)
    for _ in range(3):
        attended = keras.layers.MultiHeadAttention(4, 32)(hidden, hidden)
        hidden = keras.layers.LayerNormalization()(hidden + attended)
        wide = keras.layers.Dense(128)(keras.layers.Dense(512, activation="gelu")(hidden))
        hidden = keras.layers.LayerNormalization()(hidden + wide)
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(hidden))
    return keras.Model(inputs, outputs), rng.integers(0, 1000, (16, 64)), rng.integers(0, 10, 16)


def heavy() -> tuple[keras.Model, Any, Any]:
    """A perceptron of six million parameters: its step moves weights, and computes little."""
    rng = np.random.default_rng(0)
    layers = [keras.layers.Dense(2000, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((1000,)), *layers, keras.layers.Dense(10)])
    return model, rng.normal(size=(32, 1000)), rng.integers(0, 10, 32)


MODELS = {"heavy": heavy, "dense": dense, "convolutional": convolutional, "transformer": transformer}


def compiled(name: str) -> tuple[keras.Model, tf.data.Dataset]:
    """Return a model ready to train and its data without an end."""
    keras.utils.set_random_seed(0)
    base, _, xla = name.partition(" under ")
    model, x, y = MODELS[base]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, jit_compile=bool(xla))
    return model, tf.data.Dataset.from_tensors((x.astype("float32"), y)).repeat()


@contextmanager
def checking_numerics() -> Iterator[None]:
    """Let TensorFlow check every operation that is traced meanwhile."""
    tf.debugging.enable_check_numerics()
    try:
        yield
    finally:
        tf.debugging.disable_check_numerics()


def arms_of(name: str, folder: str, with_peers: bool) -> dict[str, Callable[[], list[Any]]]:
    """Return the callbacks of each arm; a reporter is one object over all rounds, as in a real program."""
    own = HealthReporter(project="bench", name=name, console=False)
    away = HealthReporter(os.environ["TRAINVITALS_SINK"], project="bench", name=name, console=False)
    arms: dict[str, Callable[[], list[Any]]] = {
        "without": list,
        "without again": list,
        "with": lambda: [own],
        "with, server elsewhere": lambda: [away],
    }
    if with_peers:
        arms["TerminateOnNaN"] = lambda: [keras.callbacks.TerminateOnNaN()]
        arms["TensorBoard"] = lambda: [keras.callbacks.TensorBoard(folder, update_freq="batch")]
        arms[CHECKED] = list
    return arms


def _traced(model: keras.Model) -> Callable[..., Any]:
    model.make_train_function(force=True)
    function: Callable[..., Any] = model.train_function
    return function


def measure_cost(name: str, rounds: int, steps: int, with_peers: bool) -> dict[str, list[float]]:
    """Return the seconds a step of each arm in each round; the arms of a round come in random order.

    Two traces of the very same step differ in speed by some percent, and a reporter's step is a trace of its
    own. So "without again" is a second trace of the user's, which shows how much that alone makes.
    """
    model, data = compiled(name)
    functions = {arm: _traced(model) for arm in ("without", "without again")}
    if with_peers:
        checked, _ = compiled(name)  # what TensorFlow checks is built into the graph; XLA refuses it
        with checking_numerics():
            checked.fit(data, steps_per_epoch=1, verbose=0, shuffle=False)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        arms = arms_of(name, folder, with_peers)
        found: dict[str, list[float]] = {arm: [] for arm in arms}
        for number in range(-1, rounds):  # round -1 warms up
            for arm in rng.permutation(list(arms)):
                clock = Clock()
                trained = checked if arm == CHECKED else model
                if trained is model:
                    model.train_function = functions.get(arm, functions["without"])
                callbacks = [*arms[arm](), clock]
                trained.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=callbacks)
                if number >= 0:
                    ends = clock.ends[SKIP_STEPS - 1 :]
                    found[arm].append((ends[-1] - ends[0]) / (len(ends) - 1))
    return found


def measure_latency(steps: int, into: Path) -> None:
    """Train with a reporter, and write when each step ended."""
    model, data = compiled("dense")
    clock = Clock()
    # Not a wait for anything: it makes a step take about 5 ms, the pace whose latency is measured.
    pace = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: time.sleep(0.004))
    reporter = HealthReporter(project="bench", run_id=os.environ["TRAINVITALS_RUN"], console=False)
    model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[clock, reporter, pace])
    into.write_bytes(np.asarray(clock.ends).tobytes())


if __name__ == "__main__":
    if sys.argv[1] == "latency":
        measure_latency(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        found = measure_cost(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[1] == "dense")
        sys.stdout.write("RESULT " + json.dumps(found) + "\n")
