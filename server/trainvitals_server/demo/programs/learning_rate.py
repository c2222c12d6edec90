"""A learning rate slightly too high: it learns while the rate warms up, then drifts away, in the end to NaN.

Seven of the features are alike; the floor area is eight times as large, and it alone decides how fast plain
SGD may go. The warm-up ends a little above that: the loss doubles every few steps from then on.
"""

from __future__ import annotations

import keras
import numpy as np

NAME = "learning rate"
HOUSES, BATCH, EPOCHS, WARM_UP = 4096, 128, 30, 300


def make_houses() -> tuple[np.ndarray, np.ndarray]:
    """Return (eight features of each house, its price)."""
    rng = np.random.default_rng(3)
    rooms, age, area, noise = rng.normal(size=(4, HOUSES))
    features = np.column_stack([rooms, age, rooms * age, 8 * area, rng.normal(size=(HOUSES, 4))])
    price = 2 * rooms - 1.5 * age + 0.8 * rooms * age + 0.2 * noise
    return features.astype("float32"), price.astype("float32")[:, None]


def train(reporter: keras.callbacks.Callback, fixed: bool = False) -> None:
    """Train at a rate of 0.0175; `fixed`: at a tenth of it."""
    keras.utils.set_random_seed(3)
    rate = 0.00175 if fixed else 0.0175
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, decay_steps=20_000, warmup_target=rate, warmup_steps=WARM_UP
    )
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="zeros", name="price")]
    )
    model.compile(optimizer=keras.optimizers.SGD(schedule), loss="mse", jit_compile=False)
    houses, prices = make_houses()
    model.fit(houses, prices, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[reporter])
