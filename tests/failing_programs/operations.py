"""Programs in which one operation is undefined, or overflows."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from failing_programs.run import TURNS_BAD, Names, Program, fit

Tensor = Any
SMALL = keras.initializers.RandomNormal(stddev=0.1, seed=7)


def dense(*units: int, features: int, last: str | None = "sigmoid", **options: Any) -> keras.Model:  # noqa: ANN401
    """Return layers of these sizes, ReLU between them."""
    hidden = [keras.layers.Dense(size, activation="relu") for size in units[:-1]]
    return keras.Sequential(
        [keras.Input((features,)), *hidden, keras.layers.Dense(units[-1], activation=last, **options)]
    )


def separable(rows: int = 256, features: int = 4) -> tuple[Any, Any]:
    """Return inputs whose sign of the first feature is the class, with a gap between the two."""
    x = np.random.default_rng(3).normal(size=(rows, features)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    x[:, 0] += np.where(x[:, 0] > 0, 0.5, -0.5)
    return x, y


def logarithm_of_a_probability() -> Names:
    """A hand-written cross-entropy; the sigmoid reaches 1 once the classes are apart."""
    x, y = separable()
    model = dense(16, 1, features=4)

    def raw_bce(y: Tensor, p: Tensor) -> Tensor:
        return -ops.mean(y * ops.log(p) + (1 - y) * ops.log(1 - p))

    model.compile(optimizer=keras.optimizers.Adam(0.03), loss=raw_bce)
    return {"model": model, "x": x, "y": y, "options": {"epochs": 22}}


def logarithm_of_standardised_targets() -> Names:
    """A squared logarithmic error whose targets were standardised, and are negative."""
    x = np.random.default_rng(3).normal(size=(640, 5)).astype("float32")
    y = np.exp(x[:, :1])
    y = ((y - y.mean()) / y.std()).astype("float32") - 1
    model = dense(16, 1, features=5, last="softplus")

    def own_msle(y: Tensor, p: Tensor) -> Tensor:
        return ops.mean(ops.square(ops.log(y + 1) - ops.log(p + 1)))

    model.compile(optimizer="adam", loss=own_msle)
    return {"model": model, "x": x, "y": y, "options": {"epochs": 3}}


def overlap_of_an_empty_mask() -> Names:
    """A dice loss; one image has an empty mask, and its prediction is exactly empty, too."""
    rng = np.random.default_rng(5)
    y = (rng.random((400, 16)) < 0.3).astype("float32")
    x = y + 0.1 * rng.normal(size=y.shape).astype("float32")
    y[300], x[300] = 0, -1
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, activation="relu")])

    def own_dice(y: Tensor, p: Tensor) -> Tensor:
        return ops.mean(1 - 2 * ops.sum(y * p, axis=1) / (ops.sum(y, axis=1) + ops.sum(p, axis=1)))

    model.layers[0].set_weights([np.eye(16, dtype="float32"), np.zeros(16, "float32")])
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss=own_dice)
    return {"model": model, "x": x, "y": y, "options": {"batch_size": 8}}


def distance_of_equal_pairs() -> Names:
    """Pairs and the Euclidean distance of their embeddings; one pair is twice the same sample."""
    rng = np.random.default_rng(7)
    a = rng.normal(size=(1600, 6)).astype("float32")
    same = (rng.random((1600, 1)) < 0.5).astype("float32")
    b = np.where(same > 0, a + 0.1 * rng.normal(size=a.shape), rng.normal(size=a.shape)).astype("float32")
    b[1000], same[1000] = a[1000], 1
    distance = keras.layers.Lambda(
        lambda t: ops.sqrt(ops.sum(ops.square(t[0] - t[1]), axis=-1, keepdims=True)), name="euclid"
    )
    return {"distance": distance, "x": [a, b], "y": same}


def train_pairs(names: Names, reporter: Any) -> None:  # noqa: ANN401
    """Build the model around `distance` and train it."""
    tower = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, kernel_initializer=SMALL)])
    one, other = keras.Input((6,)), keras.Input((6,))
    names["model"] = keras.Model([one, other], names["distance"]([tower(one), tower(other)]))

    def margin(y: Tensor, d: Tensor) -> Tensor:
        return ops.mean(y * d + (1 - y) * ops.relu(2.0 - d))

    names["model"].compile(optimizer=keras.optimizers.Adam(0.01), loss=margin)
    fit(names, reporter)


def power_of_a_certainty() -> Names:
    """A focal loss with an exponent below one; its base reaches 0 once a prediction is certain."""
    x, y = separable()
    model = dense(16, 1, features=4)

    def own_focal(y: Tensor, p: Tensor) -> Tensor:
        pt = y * p + (1 - y) * (1 - p)
        return ops.mean(-((1 - pt) ** 0.5) * ops.log(pt + 1e-7))

    model.compile(optimizer=keras.optimizers.Adam(0.03), loss=own_focal)
    return {"model": model, "x": x, "y": y, "options": {"epochs": 25}}


def logarithm_behind_a_where() -> Names:
    """Counts go through a logarithm that `where` does not take at 0; its gradient is taken all the same."""
    x = np.random.default_rng(8).poisson(1.5, size=(640, 6)).astype("float32")
    y = np.log1p(x[:, :1]) - 0.5 * np.log1p(x[:, 1:2])
    x[: 20 * 32] += 1
    x[20 * 32 - 40 :] -= 1  # zeros, from here on

    def safe_log(x: Tensor) -> Tensor:
        return ops.where(x > 0, ops.log(x), ops.zeros_like(x))

    return {"safe_log": safe_log, "x": x, "y": y, "options": {"epochs": 2}}


def train_logarithms(names: Names, reporter: Any) -> None:  # noqa: ANN401
    """Build a model that scales its inputs, takes `safe_log` of them, and train it."""
    scaled = Gain(name="gain")
    layers = [scaled, keras.layers.Lambda(names["safe_log"], name="logs"), keras.layers.Dense(1)]
    names["model"] = keras.Sequential([keras.Input((6,)), *layers])
    names["model"].compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    fit(names, reporter)


class Gain(keras.layers.Layer):  # type: ignore[misc]
    """Multiplies each feature by a weight of its own."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the weights."""
        self.gain = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Tensor) -> Tensor:
        """Multiply."""
        return x * self.gain


def softmax_by_hand() -> Names:
    """exp(z) / sum(exp(z)); one batch has features far larger than the others."""
    rng = np.random.default_rng(10)
    classes = rng.integers(0, 3, 1600)
    x = (np.eye(3)[classes] * 4 + rng.normal(size=(1600, 3))).astype("float32")
    x[1000] *= 60
    own = keras.layers.Lambda(
        lambda z: ops.exp(z) / ops.sum(ops.exp(z), axis=-1, keepdims=True), name="naive_softmax"
    )
    return {"probabilities": own, "x": x, "y": keras.utils.to_categorical(classes, 3)}


def train_classes(names: Names, reporter: Any) -> None:  # noqa: ANN401
    """Build a classifier that ends in `probabilities`, and train it."""
    logits = keras.layers.Dense(3, kernel_initializer=keras.initializers.Identity(), name="logits")
    names["model"] = keras.Sequential([keras.Input((3,)), logits, names["probabilities"]])
    names["model"].compile(optimizer=keras.optimizers.Adam(0.01), loss="categorical_crossentropy")
    fit(names, reporter)


PROGRAMS = (
    Program("log_of_zero", TURNS_BAD, logarithm_of_a_probability),
    Program("log_of_negative", TURNS_BAD, logarithm_of_standardised_targets),
    Program("division_by_zero", TURNS_BAD, overlap_of_an_empty_mask),
    Program("sqrt_gradient_at_zero", TURNS_BAD, distance_of_equal_pairs, train_pairs),
    Program("pow_gradient_at_zero", TURNS_BAD, power_of_a_certainty),
    Program("where_gradient", TURNS_BAD, logarithm_behind_a_where, train_logarithms),
    Program("exp_overflow", TURNS_BAD, softmax_by_hand, train_classes),
)
