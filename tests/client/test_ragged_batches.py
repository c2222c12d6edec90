"""Ragged and sparse batches are measured like any other: their values are looked at, not their make."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from training import reporting
from trainvitals.probe.types import Value

pytestmark = pytest.mark.tensorflow
SIZE, STEPS, BAD = 8, 6, 3


def lengthy() -> Value:
    """Return rows of different lengths, of which the batch of step BAD has one with a NaN and an infinity."""
    rows = [[1.0] * (1 + place % 4) for place in range(SIZE * STEPS)]
    rows[BAD * SIZE + 2] = [1.0, np.nan, np.inf]
    return tf.ragged.constant(rows, dtype=tf.float32)


def thin() -> Value:
    table = np.eye(SIZE * STEPS, 4, dtype="float32")
    table[BAD * SIZE + 2, :2] = np.nan, np.inf
    return tf.sparse.from_dense(table)


class Model(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.head = keras.layers.Dense(1)
        self.head.build((None, 1))

    def call(self, x: Value) -> Value:
        return self.head(x)

    def train_step(self, data: Value) -> Value:
        x, y = data
        if isinstance(x, tf.RaggedTensor):
            sums = tf.reduce_sum(x, axis=1, keepdims=True)
        else:
            sums = tf.sparse.reduce_sum(x, axis=1, keepdims=True)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(tf.reshape(sums, [-1, 1])) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("make", [lengthy, thin])
def test_what_is_not_finite_in_them_is_counted_in_its_step(make: Value) -> None:
    data = tf.data.Dataset.from_tensor_slices((make(), np.ones((SIZE * STEPS, 1), "float32"))).batch(SIZE)
    model = Model()
    model.compile("sgd")
    reporter, sent = reporting()
    model.fit(data, shuffle=False, verbose=0, callbacks=[reporter])
    assert sent.steps == list(range(STEPS))
    assert sent.series("input_nonfinite")[BAD] == 2
    assert sent.series("batch_size") == dict.fromkeys(range(STEPS), SIZE)
