"""Steps with one planted fault: a preflight names it, with its layer and the line of the user's."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from planted import dense, net, only
from scenes import line_of
from sound import ids, normal
from trainvitals.preflight import preflight
from trainvitals.probe.types import Value

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("default_policy")]


# float16


class Attention(layers.Layer):  # type: ignore[misc]
    """Adds the least float16 where the mask is 0."""

    def build(self, shape: Value) -> None:
        self.q = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x: Value) -> Value:
        scores = ops.matmul(ops.matmul(x, ops.cast(self.q, x.dtype)), ops.transpose(x, (0, 2, 1)))
        mask = ops.cast(ops.any(x != 0, axis=-1), scores.dtype)
        low = np.array(np.finfo("float16").min, "float16")
        scores = scores + (1 - mask)[:, None, :] * low  # the mask
        return ops.matmul(ops.softmax(scores, axis=-1), x)


def test_a_mask_of_the_least_float16_is_named_with_its_line() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = net(Attention(name="attention"), layers.Flatten(), layers.Dense(1, dtype="float32"))
    found = only(model, normal(8, 5, 4), normal(8, 1))
    assert (found.code, found.layer, found.line) == ("float16_mask", "attention", line_of("the mask"))


def test_a_mask_that_becomes_infinite_in_float16_is_named() -> None:
    keras.config.set_dtype_policy("mixed_float16")

    def causal(scores: Value) -> Value:
        return ops.where(np.tri(5, dtype=bool), scores, -1e9)  # the fill

    model = net(
        dense(5), layers.Lambda(causal), layers.Softmax(), layers.Flatten(), layers.Dense(1, dtype="float32")
    )
    found = only(model, normal(8, 5, 4), normal(8, 1))
    assert (found.code, found.line) == ("float16_mask", line_of("the fill"))


def test_a_mask_that_float16_has_no_room_for_is_told_as_it_was_written() -> None:
    keras.config.set_dtype_policy("mixed_float16")

    def causal(scores: Value) -> Value:
        return scores + ops.cast(-1e9 * np.triu(np.ones((5, 5), "float32"), 1), scores.dtype)

    model = net(
        dense(5), layers.Lambda(causal), layers.Softmax(), layers.Flatten(), layers.Dense(1, dtype="float32")
    )
    found = only(model, normal(8, 5, 4), normal(8, 1))
    assert found.what.startswith("the mask was written as -1e+09, beyond the end of float16")


def test_an_epsilon_below_the_least_float16_is_named() -> None:
    keras.config.set_dtype_policy("mixed_float16")

    def standardised(x: Value) -> Value:
        return x / (ops.mean(ops.abs(x), axis=-1, keepdims=True) + 1e-8)  # the lost epsilon

    model = net(dense(5), layers.Lambda(standardised), layers.Dense(1, dtype="float32"))
    found = only(model, normal(8, 4), normal(8, 1))
    assert (found.code, found.line) == ("float16_epsilon", line_of("the lost epsilon"))


def test_an_optimizer_epsilon_that_float16_weights_do_not_know_is_named() -> None:
    keras.config.set_dtype_policy("float16")
    model = net(dense(1), optimizer=keras.optimizers.Adam(epsilon=1e-8))
    codes = [one.code for one in preflight(model, (normal(8, 4), normal(8, 1))).findings]
    assert codes == ["float16_optimizer_epsilon", "no_loss_scale"]


def test_float16_without_a_loss_scale_is_told() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([dense(8, "relu"), layers.Dense(1, dtype="float32")])
    model.compile("sgd", "mse", auto_scale_loss=False)
    assert only(model, normal(8, 4), normal(8, 1)).code == "no_loss_scale"


class Forgetful(keras.Sequential):  # type: ignore[misc]
    """Takes gradients of a loss that it did not scale."""

    def train_step(self, data: Value) -> dict[str, Value]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def test_a_train_step_that_forgets_to_scale_its_loss_is_told() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = Forgetful([dense(8, "relu"), layers.Dense(1, dtype="float32")])
    model.compile("sgd", "mse")
    assert only(model, normal(8, 4), normal(8, 1)).code == "loss_scale_not_applied"


# Operations that are undefined somewhere


def raw_bce(y: Value, p: Value) -> Value:
    return -ops.mean(y * ops.log(p) + (1 - y) * ops.log(1 - p))  # the logarithms


def rounded_bce(y: Value, p: Value) -> Value:
    p = ops.clip(p, 1e-9, 1 - 1e-9)  # 1 - 1e-9 is 1 in float32
    return -ops.mean(y * ops.log(p) + (1 - y) * ops.log(1 - p))  # the rounded one


def focal(y: Value, p: Value) -> Value:
    pt = y * p + (1 - y) * (1 - p)
    return ops.mean(-((1 - pt) ** 0.5) * ops.log(pt + 1e-7))  # the power


def dice(y: Value, p: Value) -> Value:
    sure = ops.cast(p > 0.5, "float32") * p
    return ops.mean(1 - 2 * ops.sum(y * sure, -1) / (ops.sum(y, -1) + ops.sum(sure, -1)))  # the division


@pytest.mark.parametrize(
    ("loss", "code", "marker"),
    [
        (raw_bce, "unbounded_log", "the logarithms"),
        (rounded_bce, "unbounded_log", "the rounded one"),
        (focal, "unbounded_power", "the power"),
        (dice, "unbounded_division", "the division"),
    ],
)
def test_an_unguarded_operation_of_a_loss_is_named_with_its_line(loss: Value, code: str, marker: str) -> None:
    y = ids(2, 16, 4).astype("float32")
    y[:, 0] = 1  # no empty mask in this batch
    x = normal(16, 4)
    model = net(layers.Dense(4, activation="sigmoid", bias_initializer="ones"), loss=loss)
    found = only(model, x, y)
    lines = {"the logarithms": line_of("the logarithms"), "the power": line_of("the power")}
    lines |= {"the division": line_of("the division"), "the rounded one": line_of("the rounded one")}
    assert (found.code, found.severity, found.line) == (code, "warning", lines[marker])
    assert found.file == __file__


class Interval(layers.Layer):  # type: ignore[misc]
    """The logarithm of a probability between two thresholds, as of an ordinal label."""

    def build(self, shape: Value) -> None:
        self.a, self.b = (self.add_weight(shape=(shape[-1],)) for _ in range(2))

    def call(self, x: Value) -> Value:
        p = ops.sigmoid(x * self.a + 6) - ops.sigmoid(x * self.b - 6)
        return ops.log(p)  # of a difference


def test_the_log_of_a_difference_of_two_probabilities_is_named() -> None:
    found = only(net(Interval(name="interval"), dense(1)), normal(8, 4), normal(8, 1))
    assert (found.code, found.layer, found.line) == (
        "unbounded_log",
        "interval",
        line_of("of a difference"),
    )
    assert "[-1, 1]" in found.what
    assert "logits" not in found.advice  # no loss of Keras's takes these


def test_a_distance_without_epsilon_is_named_with_its_layer() -> None:
    a, b = keras.Input((6,)), keras.Input((6,))
    tower = dense(4)
    distance = layers.Lambda(
        lambda t: ops.sqrt(ops.sum(ops.square(t[0] - t[1]), -1, True)),  # the root
        name="euclid",
    )([tower(a), tower(b)])
    model = keras.Model([a, b], distance)
    model.compile("adam", "mse")
    found = only(model, (normal(8, 6), normal(8, 6) + 1), normal(8, 1))
    assert (found.code, found.layer, found.line) == ("unbounded_sqrt", "euclid", line_of("the root"))


def test_a_root_in_a_functional_model_is_named_by_its_node() -> None:
    given = keras.Input((6,))
    model = keras.Model(given, ops.sqrt(dense(4, "relu")(given) * dense(4, "sigmoid")(given)))
    model.compile("adam", "mse")
    codes = {one.code for one in preflight(model, (normal(8, 6), normal(8, 4))).findings}
    assert "unbounded_sqrt" in codes


def test_a_softmax_written_by_hand_is_named() -> None:
    by_hand = layers.Lambda(
        lambda z: ops.exp(z) / ops.sum(ops.exp(z), axis=-1, keepdims=True),  # the exponential
        name="by_hand",
    )
    model = net(dense(8, "relu"), dense(3), by_hand, loss="categorical_crossentropy")
    found = only(model, normal(16, 4), np.eye(3)[ids(3, 16)])
    assert (found.code, found.layer, found.line) == ("unbounded_exp", "by_hand", line_of("the exponential"))


def test_a_softplus_written_by_hand_is_named() -> None:
    model = net(dense(8), layers.Lambda(lambda z: ops.log(1 + ops.exp(z))), dense(1))
    assert only(model, normal(16, 4), normal(16, 1)).code == "unbounded_exp"


# The first loss and gradients


def test_a_loss_that_is_nan_at_once_names_the_operation() -> None:
    def log_of_anything(y: Value, p: Value) -> Value:
        return ops.mean(ops.square(ops.log(y) - p))  # the first operation

    found = only(net(dense(1), loss=log_of_anything), normal(16, 4), normal(16, 1))
    assert (found.code, found.severity, found.line) == (
        "loss_not_finite",
        "error",
        line_of("the first operation"),
    )
    assert "Log" in found.what


def test_a_gradient_that_is_nan_at_once_names_the_operation() -> None:
    double = layers.Lambda(lambda x: ops.where(x > 0, ops.log(x), 0.0))  # the trap
    x = np.abs(normal(16, 4))
    x[2, 1] = 0
    model = net(layers.Dense(4, use_bias=False, kernel_initializer="identity"), double, dense(1))
    found = next(one for one in preflight(model, (x, normal(16, 1))).errors)
    assert (found.code, found.line) == ("gradient_not_finite", line_of("the trap"))


def test_many_sigmoids_let_the_gradient_vanish() -> None:
    hidden = [dense(24, "sigmoid", f"s{number}") for number in range(14)]
    model = net(*hidden, dense(1, "sigmoid"), loss="binary_crossentropy")
    found = only(model, normal(32, 10), ids(2, 32, 1))
    assert (found.code, found.layer) == ("gradient_vanishing", "s0")


def test_too_wide_an_initialisation_lets_the_gradient_explode() -> None:
    wide = [
        layers.Dense(64, "relu", kernel_initializer=keras.initializers.RandomNormal(stddev=1.0, seed=seed))
        for seed in range(12)
    ]
    found = only(net(*wide, dense(1)), normal(16, 8), normal(16, 1))
    assert (found.code, found.severity) == ("gradient_exploding", "warning")


class Unused(keras.Model):  # type: ignore[misc]
    """Has a layer that the output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.side = dense(1), dense(4, name="side")

    def call(self, x: Value) -> Value:
        self.side(x)
        return self.used(x)


def test_a_layer_that_the_loss_does_not_depend_on_is_named() -> None:
    model = Unused()
    model.compile("adam", "mse")
    found = only(model, normal(8, 4), normal(8, 1))
    assert (found.code, found.layer) == ("gradient_missing", "side")


def test_a_dead_layer_is_named() -> None:
    dead = layers.Dense(8, "relu", name="dead", bias_initializer=keras.initializers.Constant(-100))
    found = only(net(dead, dense(1)), normal(8, 4), normal(8, 1))
    assert (found.code, found.layer) == ("gradient_zero", "dead")


class HomeMadeNorm(layers.Layer):  # type: ignore[misc]
    """Has a moving variance of 0 at the start, and no epsilon outside of training."""

    def build(self, shape: Value) -> None:
        self.v = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x: Value, training: bool = False) -> Value:
        variance = ops.var(x, axis=0)
        if training:
            self.v.assign(0.9 * self.v + 0.1 * variance)
            return x / ops.sqrt(variance + 1e-3)
        return x / ops.sqrt(self.v)


def test_a_model_that_is_not_finite_outside_of_training_is_told() -> None:
    x = normal(8, 4)
    x[:, 2] = 0  # a variance that stays 0
    found = only(net(HomeMadeNorm(), dense(1)), x, normal(8, 1))
    assert found.code == "inference_not_finite"


def test_a_step_that_raises_is_told_with_its_line() -> None:
    def broken(y: Value, p: Value) -> Value:
        return ops.mean(ops.reshape(p, (7, -1)) - y)  # what raises

    found = only(net(dense(1), loss=broken), normal(8, 4), normal(8, 1))
    assert (found.code, found.severity, found.line) == ("step_raises", "error", line_of("what raises"))
