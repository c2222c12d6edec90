"""The capture of a step that XLA compiles: spare variables for all variables, and the last batches.

The spares are written in a branch that takes no gradient: with one that does, XLA rounds the user's own step
otherwise. They need memory on the device from the start, which is why there is a cap. There is one for each
dtype: every variable that a compiled step may write costs some microseconds, written or not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import tensorflow as tf

from trainvitals.probe.batches import Batches
from trainvitals.probe.capture import (
    ARMED,
    ARMED_FOR_SKIPS,
    OFF,
    WHOLE,
    Capture,
    Captured,
    Part,
    Recorder,
    Start,
    current,
    moving_of,
    state_of,
    unharmed,
)
from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Tensor, Value

MEMORY_SHARE = 0.05  # of the device: what the spares may take
SMALL_DEVICE_BYTES = 4 << 30  # where nobody tells
NOTHING = -1  # no step is kept


class CompiledCapture:
    """Captures like `Capture`, within XLA; `remember` belongs where the compiled step is called."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._batches = Batches()
        self._spares: dict[object, list[_Spare]] = {}
        self._kept_spares: list[_Spare] = []  # of the last trace
        self._has_weights = True
        with tf.init_scope():
            # How much is to be kept, and the step that is.
            self._kept = tf.Variable(
                [ARMED, NOTHING], dtype=tf.int64, trainable=False, name="trainvitals_kept"
            )
        self.reason = ""

    def remember(self, data: Value) -> None:
        """Hold the batch of the coming step."""
        self._batches.remember(data)

    def note_start(self, data: Value) -> Start:
        """Hold what the step may have changed by the time it fails; to be called before it runs."""
        return Start(data, tuple((one, current(one)) for one in moving_of(self._model)))

    def store(self, start: Start, step: Tensor, is_bad: Tensor, is_skip: Tensor, part: Part = WHOLE) -> None:
        """Keep the step if nothing is kept yet; to be called before the update, outside of any branch."""
        held = {id(variable): value for variable, value in start.state}
        spares = self._spares_of(self._affordable())
        self._kept_spares = spares
        level, kept = tf.unstack(self._kept.read_value())

        def keep() -> Tensor:
            for spare in spares:
                spare.write(held)
            self._kept.assign(tf.stack([level, step]))
            return tf.constant(0)

        is_wanted = tf.logical_or(
            tf.logical_and(is_bad, level >= ARMED), tf.logical_and(is_skip, tf.equal(level, ARMED_FOR_SKIPS))
        )
        tf.cond(tf.logical_and(is_wanted, kept < 0), keep, lambda: tf.constant(0))

    def begin(self, step: int) -> None:
        """Wait for the next failing step, of which the first is `step`."""
        self.arm()
        self._batches.begin(step)

    def settle(self) -> None:
        """Adapt to what is known after some steps."""
        self._batches.settle()

    def arm(self, *, for_skips: bool = False) -> None:
        """Forget what is kept and wait for the next failing step."""
        self._kept.assign([ARMED_FOR_SKIPS if for_skips else ARMED, NOTHING])

    def take(self) -> Captured | None:
        """Return the first step that was kept, and keep no other until the next `arm`."""
        self.reason = ""
        step = int(self._kept[1])
        self._kept.assign([OFF, NOTHING])
        if step < 0:
            return None
        data = self._batches.find(step)
        if data is None:
            self.reason = (
                "its batch was no longer held"
                if self._batches.is_fed
                else "this version of Keras has no place where a batch can be kept under XLA"
            )
            return None
        state = [pair for spare in self._kept_spares for pair in spare.read()]
        return Captured(step, data, state, "before_step" if self._has_weights else "after_step")

    def _affordable(self) -> list[Any]:
        """Return the variables that have a spare: all, or without the optimizers', or the small ones."""
        trainable = self._model.trainable_variables
        small = moving_of(self._model)
        limit = MEMORY_SHARE * device_memory()
        for variables in (state_of(self._model), [*trainable, *small], small):
            if size_of(variables) <= limit:
                break
        else:
            variables = []
        self._has_weights = len(variables) >= len(trainable) + len(small)
        return variables

    def _spares_of(self, variables: Sequence[Any]) -> list[_Spare]:
        key = tuple(id(variable) for variable in variables)
        if key not in self._spares:
            dtypes = dict.fromkeys(tf.as_dtype(variable.dtype) for variable in variables)
            self._spares[key] = [
                _Spare.of(
                    [one for one in variables if tf.as_dtype(one.dtype) == dtype], dtype, type(self._kept)
                )
                for dtype in dtypes
            ]
        return self._spares[key]


@dataclass(frozen=True, slots=True)
class _Spare:
    """Room for variables of one dtype, one after the other."""

    variables: tuple[Any, ...]
    values: Any

    @classmethod
    def of(cls, variables: Sequence[Any], dtype: Any, make: type[Any]) -> Self:  # noqa: ANN401
        """Make the room.

        The optimizer's variables come with the first trace, and in a later one `tf.Variable` refuses to make
        ours; the class that it stands for, `make`, does not ask.
        """
        length = sum(_length(variable) for variable in variables)
        with tf.init_scope():
            values = make(tf.zeros([length], dtype), trainable=False, name="trainvitals_spare")
        return cls(tuple(variables), values)

    def write(self, held: Mapping[int, Tensor]) -> None:
        """Put the variables' values in, those that are held instead of the current ones."""
        values = [held[id(one)] if id(one) in held else current(one) for one in self.variables]
        self.values.assign(tf.concat([tf.reshape(value, [-1]) for value in values], 0))

    def read(self) -> list[tuple[Any, Any]]:
        """Return each variable with its value."""
        parts = tf.split(self.values.read_value(), [_length(one) for one in self.variables])
        return [(one, tf.reshape(part, one.shape)) for one, part in zip(self.variables, parts, strict=True)]


def capture_of(model: Model) -> Recorder | None:
    """Return what captures the failing steps of `model`; nothing does where several replicas train."""
    if model.distribute_strategy.num_replicas_in_sync > 1:
        return None
    return CompiledCapture(model) if model.jit_compile else Capture(model)


@contextmanager
def fed(model: Model, capture: Recorder | None) -> Iterator[None]:
    """Let `capture` see each batch of the train function that is made meanwhile.

    Keras wraps the compiled step by this method of the model; older ones have no such place.
    """
    convert = getattr(model, "_autoconvert_optionals", None)
    if convert is None or not isinstance(capture, CompiledCapture):
        yield
        return

    def converting(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def one_step(data: Value) -> Value:
            with unharmed():
                capture.remember(data)
            return step(data)

        return convert(one_step)  # type: ignore[no-any-return]

    with attribute(model, "_autoconvert_optionals", converting):
        yield


def device_memory() -> int:
    """Return how many bytes the device has on which a model is trained."""
    if tf.config.list_logical_devices("GPU"):
        try:
            from tensorflow.python.client import device_lib  # no public function tells

            return min(int(one.memory_limit) for one in device_lib.list_local_devices() if "GPU" in one.name)
        except (ImportError, AttributeError, ValueError):
            return SMALL_DEVICE_BYTES
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no such name on this system
        return SMALL_DEVICE_BYTES


def size_of(variables: Sequence[Any]) -> int:
    """Return how many bytes variables take."""
    return sum(_length(one) * int(tf.as_dtype(one.dtype).size) for one in variables)


def _length(variable: Value) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() or 0)
