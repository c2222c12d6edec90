"""Attention in half precision whose mask overflows: fine for hundreds of steps, then NaN out of the blue.

Orders on a market attend to the orders of the other side. The mask adds the lowest float16 to the scores of
the padding, which is right until a score itself falls below -16: -65504 - 16 rounds to -inf. Where every
order of a market is padding, the softmax of nothing but -inf is NaN.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import ops

NAME = "float16 mask"
MARKETS, ORDERS, WIDTH, BATCH = 38_400, 10, 4, 32
PAD = -4.0  # what stands where there is no order
EMPTY_EVERY = 200  # one market in so many has no order at all
LOWEST = float(np.finfo(np.float16).min)


def make_markets() -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return ((orders, which are real), the mean price on the other side of each order)."""
    rng = np.random.default_rng(1)
    side, price = rng.choice([-1.0, 1.0], (MARKETS, ORDERS)), rng.normal(size=(MARKETS, ORDERS))
    real = np.arange(ORDERS) < rng.integers(2, ORDERS + 1, MARKETS)[:, None]
    real[::EMPTY_EVERY] = False
    other = (side[:, :, None] != side[:, None, :]) & real[:, None, :]
    answer = (other * price[:, None, :]).sum(-1) / np.maximum(other.sum(-1), 1) * real
    rest = rng.normal(size=(MARKETS, ORDERS, WIDTH - 2))
    orders = np.concatenate([side[..., None], price[..., None], rest], -1) * real[..., None]
    orders[..., 0] += PAD * ~real
    return (orders.astype("float16"), real.astype("float16")), answer[..., None].astype("float32")


class MaskedAttention(keras.layers.Layer):
    """One head of attention that adds `lowest` to the scores of what the mask excludes."""

    def __init__(self, lowest: float, name: str) -> None:
        super().__init__(name=name)
        self.lowest = lowest

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Make the two projections."""
        small = keras.initializers.RandomNormal(stddev=0.1, seed=1)
        self.query = self.add_weight(shape=(WIDTH, WIDTH), initializer=small, name="query")
        self.key = self.add_weight(shape=(WIDTH, WIDTH), initializer=small.clone(), name="key")

    def call(self, orders: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        """Return, for each order, the mean of the orders it attends to."""
        query, key = ops.matmul(orders, self.query), ops.matmul(orders, self.key)
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1)))
        scores += self.lowest * (1 - ops.cast(real, scores.dtype))[:, None, :]
        return ops.matmul(ops.softmax(scores), orders)


class Matcher(keras.Model):
    """Attention, then a head in float32; trained by a step of its own."""

    def __init__(self, lowest: float) -> None:
        super().__init__()
        self.attention = MaskedAttention(lowest, name="attention")
        self.head = keras.layers.Dense(1, dtype="float32", name="head")

    def call(self, market: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Return one price for each order."""
        return self.head(self.attention(*market))

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Do what `fit` would: scaled loss, gradients, update."""
        market, answer = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(market, answer, self(market, training=True))
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def train(reporter: keras.callbacks.Callback, fixed: bool = False) -> None:
    """Train with the lowest float16 in the mask; `fixed`: with half of it."""
    keras.utils.set_random_seed(1)
    keras.mixed_precision.set_global_policy("mixed_float16")
    model = Matcher(LOWEST / 2 if fixed else LOWEST)
    model.compile(optimizer=keras.optimizers.Adam(0.005), loss="mse", jit_compile=False)
    markets, answers = make_markets()
    model.fit(markets, answers, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[reporter])
