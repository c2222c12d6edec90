"""Programs in half precision, and loops around a loss scale."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from failing_programs.operations import Gain, Tensor, dense
from failing_programs.run import DIVERGES, TURNS_BAD, Names, Program, fit


class Attention(keras.layers.Layer):  # type: ignore[misc]
    """Self-attention whose padding is masked by a function of the program."""

    def __init__(self, add_mask: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self.add_mask = add_mask
        self.query, self.key = keras.layers.Dense(8), keras.layers.Dense(8)

    def build(self, shapes: Any) -> None:  # noqa: ANN401
        """Build both projections."""
        self.query.build(shapes[0])
        self.key.build(shapes[0])

    def call(self, inputs: Tensor) -> Tensor:
        """Return the values that each place looks at."""
        x, mask = inputs
        score = ops.matmul(self.query(x), ops.transpose(self.key(x), (0, 2, 1)))
        return ops.matmul(ops.softmax(self.add_mask(score, mask), axis=-1), x)


def mask_at_the_end_of_float16() -> Names:
    """Attention in float16; a sequence of nothing but padding is masked with the lowest number there is."""
    keras.config.set_dtype_policy("mixed_float16")
    rng = np.random.default_rng(12)
    x = rng.normal(size=(1600, 6, 4)).astype("float32")
    mask = (rng.random((1600, 6)) < 0.85).astype("float32")
    mask[:, 0] = 1
    y = (x * mask[:, :, None]).sum(1, keepdims=True) / mask.sum(1)[:, None, None]
    y = 10 * y[..., :1].repeat(6, axis=1)
    mask[1000] = 0
    x[1000] = 12

    def own_mask(score: Tensor, mask: Tensor) -> Tensor:
        low = np.array(np.finfo("float16").min, "float16")
        return score + ops.cast(low, score.dtype) * (1 - ops.cast(mask, score.dtype))[:, None, :]

    return {"add_mask": own_mask, "x": [x, mask], "y": y}


def train_attention(names: Names, reporter: Any) -> None:  # noqa: ANN401
    """Build a model around `add_mask` and train it."""
    x, mask = keras.Input((6, 4)), keras.Input((6,))
    seen = Attention(names["add_mask"], name="attention")([x, mask])
    names["model"] = keras.Model([x, mask], keras.layers.Dense(1, dtype="float32", name="head")(seen))
    names["model"].compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", jit_compile=False)
    fit(names, reporter)


def squares_beyond_float16() -> Names:
    """A normalisation by hand squares its input in float16; from one batch on that is in another unit."""
    keras.config.set_dtype_policy("mixed_float16")
    x = np.random.default_rng(15).normal(size=(1600, 8)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    x[1200:] *= 500

    def normalised(t: Tensor) -> Tensor:
        return t * ops.abs(t) / (ops.sum(t * t, axis=-1, keepdims=True) + 0.1)

    own = keras.layers.Lambda(normalised, name="normalise")
    head = keras.layers.Dense(1, dtype="float32", name="head")
    model = keras.Sequential([keras.Input((8,)), own, keras.layers.Dense(8, activation="relu"), head])
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, jit_compile=False)
    return {"model": model, "x": x, "y": y}


def variables_in_float16() -> Names:
    """A model that is float16 altogether: Adam's epsilon of 1e-8 is 0 there."""
    keras.config.set_dtype_policy("float16")
    x = np.random.default_rng(16).normal(size=(640, 6)).astype("float32")
    x[:, 5] = 0  # a feature that is never there: its weights have no gradient
    model = dense(16, 1, features=6, last=None)
    model.compile(optimizer=keras.optimizers.Adam(0.01, epsilon=1e-8), loss="mse", jit_compile=False)
    return {"model": model, "x": x, "y": x[:, :1] - x[:, 1:2], "options": {"epochs": 3}}


def gradient_that_no_scale_saves() -> Names:
    """The gradient of a logarithm behind a `where` is NaN in each step, at any scale."""
    keras.config.set_dtype_policy("mixed_float16")
    x = np.random.default_rng(13).poisson(1.5, size=(960, 6)).astype("float32")
    x[900:] += 1  # at last a good batch
    unsafe = keras.layers.Lambda(lambda t: ops.where(t > 0, ops.log(t), ops.zeros_like(t)), name="logs")
    head = keras.layers.Dense(1, dtype="float32", name="head")
    model = keras.Sequential([keras.Input((6,)), Gain(name="gain"), unsafe, head])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", jit_compile=False)
    return {"model": model, "x": x, "y": np.log1p(x[:, :1]), "options": {"epochs": 6}}


def loop(step: Any, optimizer: Any = None) -> Any:  # noqa: ANN401
    """Return what prepares a loop around `step`, a function of its names."""

    def prepare() -> Names:
        x = np.random.default_rng(36).normal(size=(640, 8)).astype("float32")
        names: Names = {"model": dense(16, 1, features=8, last=None), "x": x, "y": x[:, :1] - x[:, 1:2]}
        names |= {"optimizer": optimizer(), "loss_fn": keras.losses.MeanSquaredError()}
        names["train_step"] = step(names)
        return names

    return prepare


def train_loop(names: Names, reporter: Any) -> None:  # noqa: ANN401
    """Run `train_step` over the batches."""
    variables, optimizer = names["model"].trainable_variables, names["optimizer"]
    optimizer.build(variables)
    for number in range(200):
        batch = slice(32 * (number % 20), 32 * (number % 20) + 32)
        loss, gradients = names["train_step"](names["x"][batch], names["y"][batch])
        reporter.step(loss=loss, gradients=gradients, variables=variables, optimizer=optimizer)


def forgetting_to_scale(names: Names) -> Any:  # noqa: ANN401
    """`apply` divides by a scale that the loss was never multiplied by."""

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with tf.GradientTape() as tape:
            loss = names["loss_fn"](y, names["model"](x, training=True))
        gradients = tape.gradient(loss, names["model"].trainable_variables)
        names["optimizer"].apply(gradients, names["model"].trainable_variables)
        return loss, gradients

    return step


def dividing_twice(names: Names) -> Any:  # noqa: ANN401
    """The loop divides by the scale, and `apply` does so again."""

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer, variables = names["optimizer"], names["model"].trainable_variables
        with tf.GradientTape() as tape:
            loss = names["loss_fn"](y, names["model"](x, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        gradients = [gradient / optimizer.dynamic_scale for gradient in gradients]
        optimizer.apply(gradients, variables)
        return loss, gradients

    return step


def never_dividing(names: Names) -> Any:  # noqa: ANN401
    """The loss is multiplied by a scale of the loop's own, and nothing divides by it."""

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with tf.GradientTape() as tape:
            loss = names["loss_fn"](y, names["model"](x, training=True))
            scaled = loss * 1024.0
        gradients = tape.gradient(scaled, names["model"].trainable_variables)
        names["optimizer"].apply(gradients, names["model"].trainable_variables)
        return loss, gradients

    return step


def sums_for_ever() -> Names:
    """Gradients of two batches are summed up and applied, and the sums never set back to 0."""
    names: Names = loop(forgetting_to_scale, lambda: keras.optimizers.SGD(0.03))()
    variables = names["model"].trainable_variables
    sums = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    @tf.function  # type: ignore[untyped-decorator]
    def add(x: Tensor, y: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            loss = names["loss_fn"](y, names["model"](x, training=True))
        for total, gradient in zip(sums, tape.gradient(loss, variables), strict=True):
            total.assign_add(gradient)
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def update(batches: int) -> list[Tensor]:
        gradients = [total / batches for total in sums]
        names["optimizer"].apply(gradients, variables)
        return gradients

    return names | {"train_step": add, "update": update}


def train_sums(names: Names, reporter: Any) -> None:  # noqa: ANN401
    """Run `train_step` over the batches, and `update` after each second one."""
    variables, optimizer = names["model"].trainable_variables, names["optimizer"]
    optimizer.build(variables)
    for number in range(600):
        batch = slice(32 * (number % 20), 32 * (number % 20) + 32)
        loss = names["train_step"](names["x"][batch], names["y"][batch])
        if number % 2:
            gradients = names["update"](2)
            reporter.step(loss=loss, gradients=gradients, variables=variables, optimizer=optimizer)


def scaled_sgd() -> Any:  # noqa: ANN401
    """Return plain SGD inside a loss scaler."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))


def plain_sgd() -> Any:  # noqa: ANN401
    """Return plain SGD."""
    return keras.optimizers.SGD(0.01)


COLLAPSES = frozenset({"loss_scale_collapse"})
MISUSED = frozenset({"scaler_misuse"})
PROGRAMS = (
    Program("float16_mask_overflow", TURNS_BAD, mask_at_the_end_of_float16, train_attention),
    Program("float16_activation_overflow", TURNS_BAD, squares_beyond_float16),
    Program("float16_variables", TURNS_BAD, variables_in_float16),
    Program(
        "loss_scale_not_applied", MISUSED, loop(forgetting_to_scale, scaled_sgd), train_loop, is_loop=True
    ),
    Program(
        "gradients_unscaled_twice",
        MISUSED,
        loop(dividing_twice, scaled_sgd),
        train_loop,
        is_loop=True,
        is_first=False,
    ),
    Program("gradient_accumulator_not_reset", DIVERGES, sums_for_ever, train_sums, is_loop=True),
    Program("gradients_not_unscaled", DIVERGES, loop(never_dividing, plain_sgd), train_loop, is_loop=True),
)
FLOOR = Program("loss_scale_floor", COLLAPSES, gradient_that_no_scale_saves)
