"""A ring of rows in device memory: the graph writes one for each step, the host reads them now and then.

A row is a float64 vector that begins with its step. The ring is a plain variable: no model, optimizer or
checkpoint knows of it.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainvitals.probe.types import Tensor
from trainvitals.wire import FloatArray

SMALLEST_CAPACITY = 128
USUAL_CAPACITY = 512  # at 0.5 ms a step the host comes by every 200 rows
USUAL_BYTES = 256 << 10  # that many rows only where they are narrow: each read copies all of them
EMPTY = -1.0  # a step that no row has


class Ring:
    """`capacity` rows of `width` numbers; the oldest are overwritten."""

    def __init__(self, width: int, capacity: int) -> None:
        self.width = width
        self.capacity = capacity
        with tf.init_scope():
            self._rows = tf.Variable(
                tf.fill([capacity, width], tf.constant(EMPTY, tf.float64)),
                trainable=False,
                name="trainvitals_ring",
            )
        self._seen = -1

    def write(self, step: Tensor, row: Tensor) -> None:
        """Put `row` in the place of int64 `step`; to be called in the graph or eagerly."""
        place = tf.math.floormod(step, self.capacity)
        tf.raw_ops.ResourceScatterUpdate(resource=self._rows.handle, indices=place, updates=row)

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.assign(tf.fill([self.capacity, self.width], tf.constant(EMPTY, tf.float64)))
        self._seen = -1

    def read(self) -> FloatArray:
        """Return the rows that are new since the last read, `[n, width]`, in order of their steps."""
        rows = self.rows()
        rows = rows[rows[:, 0] > self._seen]
        if len(rows):
            self._seen = int(rows[-1, 0])
        return rows

    def rows(self) -> FloatArray:
        """Return all rows that it holds, in order of their steps."""
        # One operation; `Variable.numpy()` makes two. It copies, since the graph scatters into the variable.
        tensor = tf.raw_ops.ReadVariableOp(resource=self._rows.handle, dtype=tf.float64)
        rows: FloatArray = tensor.numpy()
        rows = rows[rows[:, 0] > EMPTY]
        return rows[np.argsort(rows[:, 0], kind="stable")]


def capacity_for(steps_per_execution: int, width: int) -> int:
    """Return how many rows hold two executions, so that none is overwritten before the host comes by."""
    usual = min(USUAL_CAPACITY, USUAL_BYTES // (8 * width))
    return max(SMALLEST_CAPACITY, usual, 2 * steps_per_execution)
