"""The fallback where TensorFlow does not show its operations: which layer turned bad first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from trainvitals.autopsy.finite import badness_of
from trainvitals.autopsy.numbers import FINITE
from trainvitals.probe.types import Value


class LayerWatch:
    """Looks at what goes into and comes out of each layer; `first_bad` is a chain, outermost first."""

    def __init__(self) -> None:
        self.first_bad: tuple[Value, ...] | None = None
        self._chain: list[Value] = []
        self._thread = threading.get_ident()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every call of a layer on this thread."""
        original = keras.layers.Layer.__call__
        watch = self

        @functools.wraps(original)
        def watched(layer: Value, *args: Value, **kwargs: Value) -> Value:
            if threading.get_ident() != watch._thread:
                return original(layer, *args, **kwargs)
            watch._chain.append(layer)
            try:
                outputs = original(layer, *args, **kwargs)
                watch._compare((args, kwargs), outputs)
            finally:
                watch._chain.pop()
            return outputs

        keras.layers.Layer.__call__ = watched
        try:
            yield
        finally:
            keras.layers.Layer.__call__ = original

    def _compare(self, inputs: Value, outputs: Value) -> None:
        """An inner layer returns before the one around it: the first that fits is the innermost."""
        if self.first_bad is None and not _is_bad(inputs) and _is_bad(outputs):
            self.first_bad = tuple(self._chain)


def _is_bad(values: Value) -> bool:
    flat = tf.nest.flatten(values)
    return any(badness_of(one) != FINITE for one in flat if isinstance(one, tf.Tensor))
