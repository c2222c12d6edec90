"""Handles: the variables that a rarely taken branch reads, as one input of it.

A branch that takes variables one by one costs a fraction of a microsecond for each, and TensorFlow lets
everything that later changes one of them wait for the branch, operation by operation: with a small model that
is more than all else that is measured. Packed, they are one tensor that TensorFlow knows nothing of. Then
nothing is ordered by itself: what changes them later must have an input that comes after the branch, which
`pinned` gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import tensorflow as tf

from trainvitals.probe.types import Tensor, Value


class Handles:
    """The packed handles of some variables; made while a step is traced, read within a branch of it."""

    def __init__(self, variables: Sequence[Any]) -> None:
        inner = [_inner(variable) for variable in variables]
        self._places = {id(variable): place for place, variable in enumerate(variables)}
        self._dtypes = [one.dtype for one in inner]
        self._shapes = [one.shape for one in inner]
        with tf.init_scope(), tf.device("CPU:0"):
            self._packed = tf.raw_ops.Pack(values=[one.handle for one in inner], axis=0)
        self._unpacked: dict[int, list[Tensor]] = {}  # by graph

    @classmethod
    def of(cls, variables: Sequence[Any]) -> Self | None:
        """Return the handles, or None where they cannot be packed."""
        if not variables or tf.executing_eagerly() or tf.config.list_logical_devices("GPU"):
            return None
        return cls(variables)

    def __contains__(self, variable: object) -> bool:
        return id(variable) in self._places

    def read(self, variable: Value) -> Tensor:
        """Return the value that a variable has when the branch runs.

        Raises:
            KeyError: if its handle is not among these.
        """
        place = self._places[id(variable)]
        graph = tf.compat.v1.get_default_graph()
        if id(graph) not in self._unpacked:
            self._unpacked[id(graph)] = tf.raw_ops.Unpack(value=self._packed, num=len(self._dtypes), axis=0)
        handle = self._unpacked[id(graph)][place]
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=self._dtypes[place])
        value.set_shape(self._shapes[place])
        return value


def pinned(gradients: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Return the same gradients, which are there only after the operations `after`."""
    dense = [getattr(one, "values", one) for one in gradients]  # of IndexedSlices: the values
    with tf.control_dependencies(after):
        later = tf.raw_ops.IdentityN(input=dense)
    return [
        tf.IndexedSlices(value, one.indices, one.dense_shape) if isinstance(one, tf.IndexedSlices) else value
        for one, value in zip(gradients, later, strict=True)
    ]


def _inner(variable: Value) -> Value:
    return variable if isinstance(variable, tf.Variable) else variable.value
