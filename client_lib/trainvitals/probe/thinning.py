"""Thinning: the norm pass of a heavy model runs in every k-th step only; the host sets k.

A pass over gradients of many megabytes costs what memory takes to move them, however little the step computes
with them. Whether that may become too much is decided when the step is traced, by their size; models below it
have no operation more. How often the pass runs is a variable, so that no other k needs another trace. In the
steps without it all half sums are `NOT_MEASURED`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.probe import measure
from trainvitals.probe.capture import current
from trainvitals.probe.parts import elements_of
from trainvitals.probe.row import NOT_MEASURED
from trainvitals.probe.seldom import either
from trainvitals.probe.types import Tensor

# A million numbers of float32. A laptop's memory moves that in half a millisecond; a model so large that does
# not take fifty for a step moves its weights and does little else.
HEAVY_BYTES = 4 << 20
TIMED_VARIABLES = 8  # the largest ones stand for all
TIMES = 3


class Thinning:
    """In which steps the norm passes of one model run. Only the training thread may set it."""

    def __init__(self) -> None:
        with tf.init_scope():
            self._interval = tf.Variable(1, dtype=tf.int64, trainable=False, name="trainvitals_interval")
        self._known = 1
        self.variables: list[Any] = []  # whose gradients may be left out; known once a step has been traced

    def takes(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Return whether these gradients are so large that their pass may be left out; it remembers them."""
        sizes = [_bytes_of(*pair) for pair in zip(gradients, variables, strict=True)]
        if sum(sizes) < HEAVY_BYTES:
            return False
        known = {id(one) for one in self.variables}
        self.variables += [one for one in variables if id(one) not in known]
        return True

    def is_due(self, step: Tensor) -> Tensor:
        """Return whether the pass runs in `step`; to be called in the graph."""
        return tf.equal(tf.math.floormod(step, self._interval.read_value()), 0)

    def set(self, interval: int) -> None:
        """Let the pass run every `interval` steps."""
        if interval != self._known:
            self._interval.assign(interval)
            self._known = interval

    @property
    def interval(self) -> int:
        """Return every how many steps the pass runs."""
        return self._known


def sums_where(is_due: Tensor, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the half sum of each gradient where `is_due`, else `NOT_MEASURED` for each."""
    kind = tf.float64 if any(one.dtype == tf.float64 for one in gradients) else tf.float32
    count = len(gradients)
    sums = either(
        is_due,
        lambda: tf.cast(measure.half_sums(gradients), kind),
        lambda: tf.fill([count], tf.constant(NOT_MEASURED, kind)),
    )
    return tf.unstack(sums, num=count)  # type: ignore[no-any-return]


def pass_seconds(variables: Sequence[Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return about how long the sums of squares of gradients like `variables` take.

    The same sums are taken of the weights, which are as large: alone, while nothing else runs. Within a step
    they compete for memory with it, or run beside something that does not need any.
    """
    largest = sorted(variables, key=elements_of, reverse=True)[:TIMED_VARIABLES]
    values = [current(one) for one in largest]
    seconds = min(_timed(values, clock) for _ in range(TIMES))
    return seconds * sum(map(elements_of, variables)) / max(sum(map(elements_of, largest)), 1)


def _timed(values: Sequence[Tensor], clock: Callable[[], float]) -> float:
    began = clock()
    np.asarray(measure.half_sums(values))  # waits until they are there
    return clock() - began


def _bytes_of(gradient: Any, variable: Any) -> int:  # noqa: ANN401
    """Return how large a gradient is; one of rows that share an index, of unknown number, counts as small."""
    if not isinstance(gradient, tf.IndexedSlices):
        return elements_of(variable) * int(gradient.dtype.size)
    return int(gradient.values.shape.num_elements() or 0) * int(gradient.dtype.size)
