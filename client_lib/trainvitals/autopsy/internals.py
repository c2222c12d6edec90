"""What the replay needs of TensorFlow and has no public name: every operation seen, nothing taped, own seeds.

The only file of the client that imports from `tensorflow.python`. Where a later TensorFlow moves these names,
`can_see_operations` is False and the replay looks at whole layers instead.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from trainvitals.probe.types import Value

try:
    from tensorflow.python.framework import op_callbacks as _op_callbacks
except ImportError:
    _op_callbacks = None
try:
    from tensorflow.python.eager import record as _record
except ImportError:
    _record = None
try:
    from tensorflow.python.framework import random_seed as _random_seed
except ImportError:
    _random_seed = None

# kind, inputs, outputs of one operation that has just run
See = Callable[[str, Value, Value], None]
_MAX_SEED = 2**31 - 1


def can_see_operations() -> bool:
    """Tell whether `every_operation` works with this TensorFlow."""
    return hasattr(_op_callbacks, "add_op_callback") and hasattr(_op_callbacks, "remove_op_callback")


@contextmanager
def every_operation(see: See) -> Iterator[None]:
    """Call `see` after each operation that runs eagerly on this thread; it must not raise."""

    def callback(
        kind: str | bytes,
        inputs: Value,
        attributes: Value,
        outputs: Value,
        op_name: Value = None,
        graph: Value = None,
    ) -> None:
        if graph is None:
            see(kind.decode() if isinstance(kind, bytes) else kind, inputs, outputs)

    _op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        _op_callbacks.remove_op_callback(callback)


def untaped() -> Value:
    """Return a context in which no gradient tape of the user's records."""
    stop = getattr(_record, "stop_recording", None)
    return nullcontext() if stop is None else stop()


@contextmanager
def own_seeds() -> Iterator[None]:
    """Give random operations seeds of their own: no seed and no kernel of the user's moves on."""
    original = getattr(_random_seed, "get_seed", None)
    if original is None:
        yield
        return
    source = random.Random(0)
    owner = threading.get_ident()

    def get_seed(op_seed: Value) -> Value:
        if threading.get_ident() != owner:
            return original(op_seed)
        return source.randrange(1, _MAX_SEED), source.randrange(1, _MAX_SEED)

    _random_seed.get_seed = get_seed
    try:
        yield
    finally:
        _random_seed.get_seed = original


def identity_of(tensor: Value) -> int:
    """Return a number that no other eager tensor of this process has or will have; -1 where there is none."""
    number = getattr(tensor, "_id", None)
    return number if isinstance(number, int) else -1
