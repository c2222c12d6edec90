"""Programs whose learning rate, data, start or activations are wrong."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from failing_programs.operations import dense
from failing_programs.run import DIVERGES, TURNS_BAD, Names, Program


def linear(rows: int = 640, seed: int = 0) -> Names:
    """Return x and y of a linear task."""
    x = np.random.default_rng(seed).normal(size=(rows, 8)).astype("float32")
    return {"x": x, "y": x[:, :1] - 2 * x[:, 1:2]}


def steps_too_large() -> Names:
    """SGD beyond the edge of stability."""
    model = dense(16, 1, features=8, last=None)
    model.compile(optimizer=keras.optimizers.SGD(0.6), loss="mse")
    return {"model": model, **linear(), "options": {"epochs": 10}}


def missing_values() -> Names:
    """One sample has a NaN."""
    names = linear()
    names["x"][400, 3] = np.nan
    model = dense(16, 1, features=8, last=None)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return {"model": model, **names, "options": {"epochs": 3}}


def labels_of_another_code() -> Names:
    """Labels of -1 and 1 for a cross-entropy of 0 and 1."""
    names = linear()
    names["y"] = np.sign(names["y"])
    model = dense(16, 1, features=8)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="binary_crossentropy")
    return {"model": model, **names, "options": {"epochs": 8}}


def epsilon_below_round_off() -> Names:
    """Adam with a tiny epsilon on data that is learned by heart: at last only round-off is left."""
    rng = np.random.default_rng(62)
    labels = rng.integers(0, 4, 128)
    x = (rng.normal(size=(4, 6))[labels] * 2 + 0.6 * rng.normal(size=(128, 6))).astype("float32")
    model = dense(24, 24, 4, features=6, last=None)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.02, beta_2=0.98, epsilon=1e-16), loss=loss)
    x = tf.data.Dataset.from_tensors((x, labels)).repeat()
    return {"model": model, "x": x, "options": {"steps_per_epoch": 1600}}


def one_batch_of_another_unit(times: float = 1000) -> Names:
    """The targets of one batch are in another unit."""
    names = linear(32 * 200)
    names["y"][32 * 100 : 32 * 101] *= times
    model = dense(16, 1, features=8, last=None)
    model.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    return {"model": model, **names}


def relus_below_zero() -> Names:
    """Targets of 30 at a high rate: one step throws all units below zero."""
    x = np.random.default_rng(27).uniform(0, 1, size=(960, 6)).astype("float32")
    y = (30 - 20 * np.sin(3 * x[:, :1])).astype("float32")
    model = dense(32, 32, 1, features=6, last=None)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    return {"model": model, "x": x, "y": y, "options": {"epochs": 6}}


def sigmoids_behind_sigmoids() -> Names:
    """Eleven sigmoid layers."""
    x = np.random.default_rng(26).normal(size=(2048, 10)).astype("float32")
    y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
    hidden = [keras.layers.Dense(24, activation="sigmoid") for _ in range(11)]
    model = keras.Sequential([keras.Input((10,)), *hidden, keras.layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="binary_crossentropy")
    return {"model": model, "x": x, "y": y, "options": {"epochs": 6, "batch_size": 64}}


def hardly_a_step() -> Names:
    """A learning rate of 1e-9."""
    names = linear(1600)
    names["y"] = (names["x"][:, :1] > 0).astype("float32")
    model = dense(16, 1, features=8)
    model.compile(optimizer=keras.optimizers.Adam(1e-9), loss="binary_crossentropy")
    return {"model": model, **names, "options": {"epochs": 8}}


def softmax_over_one_unit() -> Names:
    """A softmax over one unit is 1, whatever the weights are."""
    names = linear()
    names["y"] = (names["x"][:, :1] > 0).astype("float32")
    model = dense(16, 1, features=8, last="softmax")
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return {"model": model, **names, "options": {"epochs": 10}}


def weights_far_too_large() -> Names:
    """Weights drawn from a far too wide distribution."""
    wide = keras.initializers.RandomNormal(stddev=1e13, seed=1)
    hidden = [keras.layers.Dense(16, activation="relu", kernel_initializer=wide) for _ in range(3)]
    model = keras.Sequential([keras.Input((8,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    return {"model": model, **linear(), "options": {"epochs": 3}}


SPIKE = frozenset({"loss_spike"})  # of the batch itself, which is still there
PROGRAMS = (
    Program("learning_rate_too_high", DIVERGES, steps_too_large),
    Program("no_gradient_clipping", DIVERGES, one_batch_of_another_unit, is_first=False, leaves=SPIKE),
    Program("bad_input", TURNS_BAD, missing_values),
    Program("bad_label", frozenset({"runaway_negative_loss"}), labels_of_another_code),
    Program("optimizer_epsilon", frozenset({"optimizer_epsilon"}), epsilon_below_round_off, seed=62),
    Program("data_outlier", frozenset({"loss_spike"}), lambda: one_batch_of_another_unit(100), leaves=SPIKE),
    Program("dead_relu", frozenset({"dead_units"}), relus_below_zero),
    Program("vanishing_depth", frozenset({"vanishing_gradient"}), sigmoids_behind_sigmoids, leaves=SPIKE),
    Program("learning_rate_too_low", frozenset({"plateau"}), hardly_a_step),
    Program("single_unit_softmax", frozenset({"silent_constant"}), softmax_over_one_unit),
    Program("initialisation", TURNS_BAD, weights_far_too_large, is_first=False),
)
