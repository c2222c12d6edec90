"""A healthy training that looks troubled: skipped updates at the start, a warm restart in the middle.

The scaler of half precision begins too high and halves until the gradients fit; the restart lifts the
learning rate, and the loss with it. Neither is an incident.
"""

from __future__ import annotations

import keras
import numpy as np

NAME = "healthy"
HOUSES, BATCH, EPOCHS, RESTART_AFTER = 12_800, 64, 12, 800


def make_waves() -> tuple[np.ndarray, np.ndarray]:
    """Return (twelve features, a smooth function of three of them in other units, with noise)."""
    rng = np.random.default_rng(4)
    features = rng.normal(size=(HOUSES, 12)).astype("float32")
    wave = np.sin(2 * features[:, :1]) + features[:, 1:2] * features[:, 2:3]
    return features, (10 * wave + rng.normal(size=(HOUSES, 1))).astype("float32")


def train(reporter: keras.callbacks.Callback, fixed: bool = False) -> None:
    """Train; there is nothing to fix."""
    keras.utils.set_random_seed(4)
    keras.mixed_precision.set_global_policy("mixed_float16")
    schedule = keras.optimizers.schedules.CosineDecayRestarts(0.003, RESTART_AFTER, m_mul=0.9)
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(128, activation="relu", name="first"),
            keras.layers.Dense(64, activation="relu", name="second"),
            keras.layers.Dense(1, dtype="float32", name="head"),
        ]
    )
    model.compile(optimizer=keras.optimizers.SGD(schedule, momentum=0.9), loss="mse", jit_compile=False)
    features, waves = make_waves()
    model.fit(features, waves, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[reporter])
