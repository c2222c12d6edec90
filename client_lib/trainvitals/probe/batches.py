"""The last batches, by reference: for XLA, in which nothing of an unknown shape can be kept.

They are taken outside of the compiled step, where a batch is still in the host's memory, and none is copied.
How many there are depends on their size; the host looks for the one it needs when it has read the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from trainvitals.probe.template import Template
from trainvitals.probe.types import Tensor, Value

MAX_BYTES = 256 << 20  # of all batches that are held
FEWEST = 8  # while their size is only guessed
MAX_COUNT = 256  # the rows of two reads
UNKNOWN_LENGTH = 64  # a guess
MEASURE_EVERY = 100  # reads, about five seconds: batches may grow in the middle of a fit
CAPACITY = 1 << 20  # of the queue: it must never be full, for then a step would wait
NO_STEP = -1


class Batches:
    """A queue for each make of batch. `remember` goes into the graph, the rest is for the training thread."""

    def __init__(self) -> None:
        self.is_fed = False  # `remember` was called: this Keras has the place for it
        self._queues: dict[object, tuple[Template, Any, list[Any]]] = {}
        self._is_measured = False
        self._reads = 0
        self._count = MAX_COUNT
        with tf.init_scope(), tf.device("CPU:0"):
            self._next = tf.Variable(0, dtype=tf.int64, trainable=False, name="trainvitals_next")

    def remember(self, data: Value) -> None:
        """Hold this batch instead of the oldest one."""
        self.is_fed = True
        template, tensors = Template.of(data)
        queue = self._queue(template, tensors)
        with tf.device("CPU:0"):
            step = self._next.read_value()
            self._next.assign_add(1)
            queue.enqueue([step, *tensors])
            queue.dequeue()  # after that: it never finds the queue empty, and so never waits

    def begin(self, step: int) -> None:
        """Number the coming batches from `step` on; what is held is forgotten, and may be of another size."""
        self._next.assign(step)
        self._is_measured, self._reads = False, 0
        for _, queue, dtypes in self._queues.values():
            _drained(queue)
            _refill(queue, dtypes, [], self._count)

    def settle(self) -> None:
        """Hold as many as fit, once it is known how large they are; look again now and then."""
        self._reads += 1
        if not self._queues or (self._is_measured and self._reads % MEASURE_EVERY):
            return
        held = {key: _drained(queue) for key, (_, queue, _) in self._queues.items()}
        largest = max((_size(one) for found in held.values() for one in found), default=0)
        if largest:
            self._is_measured = True
            self._count = max(1, min(MAX_COUNT, MAX_BYTES // largest))
        for key, (_, queue, dtypes) in self._queues.items():
            _refill(queue, dtypes, held[key], self._count)

    def find(self, step: int) -> Value | None:
        """Return the batch of `step`, or None when it is gone; the other ones are let go."""
        found = None
        for template, queue, dtypes in self._queues.values():
            for number, *tensors in _drained(queue):
                if int(number) == step:
                    found = template.join(tensors)
            _refill(queue, dtypes, [], self._count)
        return found

    def _queue(self, template: Template, tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401 - a queue of TensorFlow's
        dtypes = [tf.int64, *(tensor.dtype for tensor in tensors)]
        key = str(template.skeleton), tuple(dtypes)
        if key not in self._queues:
            if not self._is_measured:
                self._count = min(self._count, max(FEWEST, MAX_BYTES // max(_guessed(tensors), 1)))
            with tf.init_scope(), tf.device("CPU:0"):
                queue = tf.queue.FIFOQueue(CAPACITY, dtypes)
                _refill(queue, dtypes, [], self._count)
            self._queues[key] = template, queue, dtypes
        return self._queues[key][1]


def _drained(queue: Any) -> list[list[Tensor]]:  # noqa: ANN401
    """Take all elements out, and return those that hold a batch."""
    found = [queue.dequeue() for _ in range(int(queue.size()))]
    lists = [list(one) if isinstance(one, list | tuple) else [one] for one in found]
    return [one for one in lists if int(one[0]) != NO_STEP]


def _refill(queue: Any, dtypes: Sequence[Any], elements: list[list[Tensor]], count: int) -> None:  # noqa: ANN401
    empty = [tf.constant(NO_STEP, tf.int64), *(_nothing(dtype) for dtype in dtypes[1:])]
    kept = elements[-count:]
    for element in [*[empty] * (count - len(kept)), *kept]:
        queue.enqueue(element)


def _nothing(dtype: Any) -> Tensor:  # noqa: ANN401
    return tf.constant("") if dtype == tf.string else tf.zeros([], dtype)


def _guessed(tensors: Sequence[Tensor]) -> int:
    """Return about how many bytes a batch takes whose shapes are known only in part."""
    shapes = [tensor.shape.as_list() if tensor.shape.rank is not None else [None] for tensor in tensors]
    sizes = [math.prod(UNKNOWN_LENGTH if one is None else one for one in shape) for shape in shapes]
    return sum(size * (tensor.dtype.size or 64) for size, tensor in zip(sizes, tensors, strict=True))


def _size(element: list[Tensor]) -> int:
    return sum(int(tf.size(tensor)) * (tensor.dtype.size or 64) for tensor in element[1:])
