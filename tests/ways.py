"""Ways in which people train with `fit`, each with the same step written out by hand: the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from observing import norm, tower
from training import Array, batch, small_model
from trainvitals.probe.types import Model, Optimizer, Tensor, Value

SIZE, STEPS = 8, 6
Batch = tuple[Any, ...]  # inputs, labels and, with some ways, weights of the samples


def linear() -> tuple[Array, Array]:
    """Return rows for all steps."""
    return batch(SIZE * STEPS)


def squares(model: Model, x: Value, y: Value) -> Tensor:
    """Return the mean squared error, in the type that Keras computes it in."""
    found = model(x, training=True)
    return tf.reduce_mean(tf.square(found - tf.cast(y, found.dtype)))


@dataclass(frozen=True, slots=True)
class Way:
    """A model, how it is compiled, and what one step of it is."""

    make: Callable[[], Model] = small_model
    optimizer: Callable[[], Optimizer] = lambda: keras.optimizers.SGD(0.02)
    loss: Callable[..., Tensor] = squares  # of the model and one batch
    data: Callable[[], Batch] = linear
    compiled: Mapping[str, Any] = field(default_factory=lambda: {"loss": "mse"})
    fitted: Mapping[str, Any] = field(default_factory=dict)
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)  # variables of layers, by their places
    rounding: float = 1e-5
    floatx: str = "float32"  # what Keras computes losses in
    clip_norm: float = 0.0  # by hand; 0: not at all
    steps: int = STEPS


def steps_by_hand(way: Way) -> tuple[list[dict[str, Any]], list[Array]]:
    """Train eagerly, by one tape a step; return what each step was, and the weights in the end."""
    model, optimizer = way.make(), way.optimizer()
    found: list[dict[str, Any]] = []
    for one in batches_of(way.data(), way.steps):
        if not found:  # a subclassed model has no weights before
            way.loss(model, *one)
            optimizer.build(model.trainable_variables)
        variables = model.trainable_variables
        scale = scale_of(optimizer)
        with tf.GradientTape() as tape:
            loss = way.loss(model, *one)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        if way.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, way.clip_norm)
        row: dict[str, Any] = {"loss": float(loss), "loss_scale": scale}
        given = [gradient for gradient in gradients if gradient is not None]
        row["grad_norm"] = norm(given, scale)
        row["layers"] = {
            name: norm([gradients[place] for place in places], scale) for name, places in way.groups.items()
        }
        bad = [~np.isfinite(np.asarray(tf.cast(tf.convert_to_tensor(one), tf.float64))) for one in given]
        row["grad_nonfinite"] = float(sum(one.sum() for one in bad))
        optimizer.apply(gradients, variables)
        inner: Value = getattr(optimizer, "inner_optimizer", optimizer)
        row["optimizer_step"] = float(inner.iterations)
        found.append(row)
    optimizer.finalize_variable_values(model.trainable_variables)
    return found, [np.asarray(one) for one in model.trainable_variables]


def batches_of(data: Batch, steps: int = STEPS) -> Iterator[Batch]:
    """Yield the batches of the rows, each of its parts an array or a dict or tuple of arrays."""
    for start in range(0, SIZE * steps, SIZE):
        rows = slice(start, start + SIZE)
        yield tuple(tf.nest.map_structure(lambda one, rows=rows: tf.constant(one[rows]), data))


def scale_of(optimizer: Optimizer) -> float:
    """Return what this step's gradients are multiplied by."""
    if hasattr(optimizer, "inner_optimizer"):
        return float(optimizer.dynamic_scale)
    return float(optimizer.loss_scale_factor or 1.0)


# --- functional: a shared layer, two inputs, two outputs with losses, weights of theirs and of samples


def twins() -> Model:
    """Return a model that sends two inputs through one layer."""
    keras.utils.set_random_seed(2)
    left, right = keras.Input((8,), name="left"), keras.Input((8,), name="right")
    shared = keras.layers.Dense(6, activation="tanh", name="shared")
    both = keras.layers.Concatenate()([shared(left), shared(right)])
    near = keras.layers.Dense(1, name="near")(both)
    far = keras.layers.Dense(2, name="far", activation="sigmoid")(both)
    return keras.Model({"left": left, "right": right}, {"near": near, "far": far})


def of_twins() -> Batch:
    """Return inputs, labels and weights of the samples, by name."""
    x, y = linear()
    weights = np.random.default_rng(5).uniform(0.0, 2.0, (2, len(x))).astype("float32")
    labels = {"near": y, "far": (x[:, :2] > 0).astype("float32")}
    return {"left": x, "right": x[::-1].copy()}, labels, {"near": weights[0], "far": weights[1]}


def loss_of_twins(model: Model, x: Value, y: Value, weights: Value) -> Tensor:
    """Return a squared and a logarithmic loss, weighted sample by sample and then each as a whole."""
    found = model(x, training=True)
    near = tf.reduce_mean(tf.square(found["near"] - y["near"]), axis=1)
    p, q = found["far"], y["far"]
    far = -tf.reduce_mean(q * tf.math.log(p + 1e-7) + (1 - q) * tf.math.log(1 - p + 1e-7), axis=1)
    return 0.7 * tf.reduce_mean(near * weights["near"]) + 3.0 * tf.reduce_mean(far * weights["far"])


# --- subclassed, without a `train_step`: an embedding, an unused layer, a penalty, weights of classes


class Sorting(keras.Model):  # type: ignore[misc]
    """Sorts rows into three classes by an embedding of some of their codes."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(4)
        self.table = keras.layers.Embedding(16, 4, name="table")
        self.head = keras.layers.Dense(3, name="head", kernel_regularizer=keras.regularizers.L2(0.05))
        self.unused = keras.layers.Dense(2, name="unused")
        self.unused.build((None, 4))

    def call(self, codes: Value) -> Value:
        """Return scores; a row of zeros looks nothing up."""
        found = tf.boolean_mask(codes, codes > 0)
        rows = tf.boolean_mask(tf.repeat(tf.range(tf.shape(codes)[0])[:, None], 3, axis=1), codes > 0)
        places = tf.math.unsorted_segment_sum(self.table(found), rows, tf.shape(codes)[0])
        return self.head(places)


CLASS_WEIGHTS = {0: 1.0, 1: 0.25, 2: 4.0}
EMPTY_STEP = 2  # of whose codes all are zero


def codes() -> Batch:
    """Return codes and classes; a whole batch looks nothing up."""
    rng = np.random.default_rng(3)
    found = rng.integers(0, 16, (SIZE * STEPS, 3)).astype("int32")
    found[EMPTY_STEP * SIZE : (EMPTY_STEP + 1) * SIZE] = 0
    return found, rng.integers(0, 3, SIZE * STEPS).astype("int32")


def loss_of_classes(model: Model, x: Value, y: Value) -> Tensor:
    """Return the cross-entropy, weighted by classes, and the penalty."""
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
    weights = tf.gather([CLASS_WEIGHTS[one] for one in range(3)], y)
    return tf.reduce_mean(entropy * weights) + 0.05 * tf.reduce_sum(tf.square(model.head.kernel))


# --- a thousand variables


class Many(keras.layers.Layer):  # type: ignore[misc]
    """Scales by the sum of five hundred weights, and adds that of five hundred others."""

    def build(self, shape: Value) -> None:
        """Make the weights."""
        del shape
        start = keras.initializers.RandomNormal(stddev=0.1, seed=7)
        self.parts = [self.add_weight(shape=(1,), initializer=start) for _ in range(1000)]

    def call(self, x: Value) -> Value:
        """Use all of them, each in a way of its own."""
        values = tf.concat([tf.convert_to_tensor(one) for one in self.parts], 0)
        ways = tf.cast(tf.range(1, 1001), tf.float32) / 500.0
        scale, shift = tf.split(values * ways, 2)
        return x * tf.reduce_sum(scale) + tf.reduce_sum(shift)


def thousand() -> Model:
    """Return a model with a layer of a thousand weights, and a head."""
    keras.utils.set_random_seed(6)
    return keras.Sequential([keras.Input((8,)), Many(name="many"), keras.layers.Dense(1, name="head")])


# --- a `train_step` of one's own


class Own(keras.Model):  # type: ignore[misc]
    """The small model with a `train_step`, whose optimizer is not built when that is traced."""

    def __init__(self, clip_norm: float = 0.0) -> None:
        super().__init__()
        self.inner, self.clip_norm = small_model(), clip_norm

    def call(self, x: Value) -> Value:
        """Return the prediction."""
        return self.inner(x)

    def train_step(self, data: Value) -> dict[str, Value]:
        """Make one update, of gradients that are clipped by hand where that is the way."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = squares(self, x, y)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        if self.clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Adversaries(keras.Model):  # type: ignore[misc]
    """A generator and a critic, each with an optimizer and a loss of its own, in one `train_step`."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(8)
        self.maker = keras.layers.Dense(8, activation="tanh", name="maker")
        self.critic = keras.layers.Dense(1, name="critic")
        self.maker.build((None, 8))
        self.critic.build((None, 8))
        self.second = keras.optimizers.Adam(0.01)

    def call(self, x: Value) -> Value:
        """Return what the critic says of what is made of `x`."""
        return self.critic(self.maker(x))

    def losses_of(self, x: Value, y: Value) -> tuple[Tensor, Tensor]:
        """Return the loss of the critic, and that of the maker."""
        real, made = self.critic(x), self(x)
        return tf.reduce_mean(tf.square(real - y) + tf.square(made)), tf.reduce_mean(tf.square(made - 1.0))

    def gradients_of(self, x: Value, y: Value) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the critic's loss and the gradients of both."""
        with tf.GradientTape(persistent=True) as tape:
            loss, other = self.losses_of(x, y)
        critic, maker = self.critic.trainable_variables, self.maker.trainable_variables
        return loss, tape.gradient(loss, critic), tape.gradient(other, maker)

    def train_step(self, data: Value) -> dict[str, Value]:
        """Update both."""
        x, y = data
        loss, critic, maker = self.gradients_of(x, y)
        self.optimizer.apply(critic, self.critic.trainable_variables)
        self.second.apply(maker, self.maker.trainable_variables)
        return {"loss": loss}


def scaler(inner: Optimizer, initial_scale: float = 2.0**13) -> Optimizer:
    """Return a loss scaler made by hand, around any optimizer; it doubles in the middle of the training."""
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=initial_scale, dynamic_growth_steps=3)


def of_policy(policy: str) -> Callable[[], Model]:
    """Return what makes a model all of whose layers have a policy."""
    return lambda: tower(policy)


SMALL = {"hidden": (0, 1), "head": (2, 3)}
WAYS: dict[str, Way] = {
    "functional_shared_layer_two_weighted_losses": Way(
        make=twins,
        loss=loss_of_twins,
        data=of_twins,
        compiled={
            "loss": {"near": "mse", "far": "binary_crossentropy"},
            "loss_weights": {"near": 0.7, "far": 3.0},
        },
        groups={"shared": (0, 1), "far": (2, 3), "near": (4, 5)},
        rounding=1e-4,
    ),
    "subclassed_embedding_class_weights": Way(
        make=Sorting,
        loss=loss_of_classes,
        data=codes,
        compiled={"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        fitted={"class_weight": CLASS_WEIGHTS},
        groups={"table": (0,), "head": (1, 2)},
    ),
    "a_thousand_variables": Way(
        make=thousand,
        compiled={"loss": "mse", "run_eagerly": True},
        data=lambda: batch(2 * SIZE),
        groups={"many": range(1000), "head": (1000, 1001)},
        steps=2,
    ),
    "clipped_by_hand": Way(make=lambda: Own(0.5), compiled={}, groups=SMALL, clip_norm=0.5),
    "loss_scale_factor": Way(
        optimizer=lambda: keras.optimizers.SGD(0.02, loss_scale_factor=128.0), groups=SMALL
    ),
    "accumulation": Way(
        optimizer=lambda: keras.optimizers.Adam(0.02, gradient_accumulation_steps=3), groups=SMALL
    ),
    "clipping_decay_and_ema": Way(
        optimizer=lambda: keras.optimizers.AdamW(
            0.02, weight_decay=0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4, clipnorm=0.5
        ),
        groups=SMALL,
    ),
    "float64": Way(
        make=of_policy("float64"),
        data=lambda: tuple(one.astype("float64") for one in linear()),
        groups=SMALL,
        rounding=1e-12,
        floatx="float64",
    ),
    "float16_variables": Way(make=of_policy("float16"), groups=SMALL, rounding=5e-3),
    "bfloat16_variables": Way(make=of_policy("bfloat16"), groups=SMALL, rounding=5e-2),
    "scaler_around_adafactor": Way(optimizer=lambda: scaler(keras.optimizers.Adafactor(0.02)), groups=SMALL),
    "scaler_around_lion": Way(optimizer=lambda: scaler(keras.optimizers.Lion(0.01)), groups=SMALL),
    "unbuilt_scaler_around_ftrl": Way(
        make=Own, optimizer=lambda: scaler(keras.optimizers.Ftrl(0.05)), compiled={}, groups=SMALL
    ),
}
