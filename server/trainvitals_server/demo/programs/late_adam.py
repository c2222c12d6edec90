"""Adam with too small an epsilon: the loss sits at zero for two thousand steps, then jumps.

With nothing left to learn the gradients fade, and with them Adam's memory of their size. What is left, a
rounding error of 1e-12, is then divided by itself: a full step in a direction that means nothing.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

NAME = "late Adam"
MAPS, SIDE, CHANNELS, CLASSES, STEPS = 32, 4, 4, 4, 3000


def make_maps() -> tuple[np.ndarray, np.ndarray]:
    """Return (maps of 4 x 4 pixels, the class of each pixel at twice the resolution)."""
    rng = np.random.default_rng(2)
    kind = rng.integers(0, CLASSES, (MAPS, SIDE, SIDE))
    centre = 2 * rng.normal(size=(CLASSES, CHANNELS))
    maps = centre[kind] + 0.3 * rng.normal(size=(MAPS, SIDE, SIDE, CHANNELS))
    return maps.astype("float32"), kind.repeat(2, axis=1).repeat(2, axis=2)


def train(reporter: keras.callbacks.Callback, fixed: bool = False) -> None:
    """Train with epsilon 1e-16; `fixed`: with 1e-4."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, CHANNELS)),
            keras.layers.Conv2D(8, 1, activation="relu", name="mix"),
            keras.layers.Conv2D(8, 1, activation="relu", name="mix_again"),
            keras.layers.Conv2DTranspose(CLASSES, 2, strides=2, name="upsample"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.02, beta_2=0.9, epsilon=1e-4 if fixed else 1e-16),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    whole_set = tf.data.Dataset.from_tensors(make_maps()).repeat()
    model.fit(whole_set, steps_per_epoch=STEPS, verbose=0, shuffle=False, callbacks=[reporter])
