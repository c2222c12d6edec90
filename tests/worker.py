"""One of several processes that train one model together, with `TF_CONFIG`.

`python worker.py BAD_RANK RANK...`: the worker of rank BAD_RANK has a NaN among its own labels, in its third
batch; those of the other ranks have a reporter. It prints what the weights are in the end.
"""

from __future__ import annotations

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow

from training import Array, batch, small_model  # noqa: E402 - they begin with TensorFlow, too
from trainvitals import HealthReporter  # noqa: E402

WORKERS = 2
SIZE = 16  # of a batch of all of them
STEPS = 6


class Model(keras.Sequential):  # type: ignore[misc]
    """Helps `fit` past two faults of Keras 3.15, which is not made for several workers."""

    def _maybe_symbolic_build(self, iterator: object = None, data_batch: object = None) -> None:
        with STRATEGY.scope():
            self.optimizer.build(self.trainable_variables)

    def train_step(self, data: object) -> dict[str, tf.Tensor]:
        """Return vectors: of a scalar it wants to take the mean along an axis."""
        return {name: value[tf.newaxis] for name, value in super().train_step(data).items()}


def rows_of(rank: int) -> tuple[Array, Array]:
    """Return the rows of a worker, of which it takes a part: Keras counts batches of `SIZE` all the same."""
    return batch(STEPS * SIZE, seed=rank)


def main(bad_rank: int, reporting: list[int]) -> None:
    """Train with rows of its own."""
    rank = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    x, y = rows_of(rank)
    if rank == bad_rank:
        y[2 * SIZE // WORKERS + 1, 0] = np.nan
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(SIZE).with_options(options)
    with STRATEGY.scope():
        model = Model(small_model().layers)
        model.build((None, x.shape[1]))
        model.compile("sgd", "mse")
    callbacks = [HealthReporter(console=False)] if rank in reporting else []
    model.fit(data, shuffle=False, verbose=0, callbacks=callbacks)
    sys.stdout.write(f"WEIGHTS {[one.tobytes().hex() for one in model.get_weights()]}")


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(rank) for rank in sys.argv[2:]])
