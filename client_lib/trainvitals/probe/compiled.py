"""The capture of a step that XLA compiles: a spare variable for each variable, and the last batches.

The spares are written in a branch that takes no gradient: with one that does, XLA rounds the user's own step
otherwise. They need memory on the device from the start, which is why there is a cap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from trainvitals.probe.batches import Batches
from trainvitals.probe.capture import (
    ARMED,
    ARMED_FOR_SKIPS,
    OFF,
    Capture,
    Captured,
    Recorder,
    Start,
    current,
    moving_of,
    state_of,
)
from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Tensor, Value

MEMORY_SHARE = 0.05  # of the device: what the spares may take
NOTHING = -1  # no step is kept


class CompiledCapture:
    """Captures like `Capture`, within XLA; `remember` belongs where the compiled step is called."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._batches = Batches()
        self._spares: dict[int, tuple[Any, Any]] = {}
        self._has_weights = True
        with tf.init_scope():
            self._level = tf.Variable(ARMED, dtype=tf.int64, trainable=False, name="trainvitals_armed")
            self._kept = tf.Variable(NOTHING, dtype=tf.int64, trainable=False, name="trainvitals_kept")
        self.reason = ""

    def remember(self, data: Value) -> None:
        """Hold the batch of the coming step."""
        self._batches.remember(data)

    def note_start(self, data: Value) -> Start:
        """Hold what the step may have changed by the time it fails; to be called before it runs."""
        return Start(data, tuple((one, current(one)) for one in moving_of(self._model)))

    def store(self, start: Start, step: Tensor, is_bad: Tensor, is_skip: Tensor) -> None:
        """Keep the step if nothing is kept yet; to be called before the update, outside of any branch."""
        held = {id(variable): value for variable, value in start.state}
        variables = self._affordable()

        def keep() -> Tensor:
            for variable in variables:
                value = held[id(variable)] if id(variable) in held else current(variable)
                self._spares[id(variable)][1].assign(value)
            self._kept.assign(step)
            return tf.constant(0)

        level = self._level.read_value()
        is_wanted = tf.logical_or(
            tf.logical_and(is_bad, level >= ARMED), tf.logical_and(is_skip, tf.equal(level, ARMED_FOR_SKIPS))
        )
        is_free = self._kept.read_value() < 0
        tf.cond(tf.logical_and(is_wanted, is_free), keep, lambda: tf.constant(0))

    def begin(self, step: int) -> None:
        """Wait for the next failing step, of which the first is `step`."""
        self.arm()
        self._batches.begin(step)

    def settle(self) -> None:
        """Adapt to what is known after some steps."""
        self._batches.settle()

    def arm(self, *, for_skips: bool = False) -> None:
        """Forget what is kept and wait for the next failing step."""
        self._kept.assign(NOTHING)
        self._level.assign(ARMED_FOR_SKIPS if for_skips else ARMED)

    def take(self) -> Captured | None:
        """Return the first step that was kept, and keep no other until the next `arm`."""
        self._level.assign(OFF)
        step = int(self._kept)
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
        state = [(variable, spare.read_value()) for variable, spare in self._spares.values()]
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
        with tf.init_scope():
            for variable in variables:
                if id(variable) not in self._spares:
                    # The optimizer's variables come with the first trace, and in a later one `tf.Variable`
                    # refuses to make ours; the class that it stands for does not ask.
                    make = type(self._kept)
                    spare = make(
                        tf.zeros(variable.shape, variable.dtype), trainable=False, name="trainvitals_spare"
                    )
                    self._spares[id(variable)] = variable, spare
        return variables


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
            capture.remember(data)
            return step(data)

        return convert(one_step)  # type: ignore[no-any-return]

    with attribute(model, "_autoconvert_optionals", converting):
        yield


def device_memory() -> int:
    """Return how many bytes the device has on which a model is trained."""
    if tf.config.list_logical_devices("GPU"):
        from tensorflow.python.client import device_lib  # no public function tells

        return int(
            min(one.memory_limit for one in device_lib.list_local_devices() if one.device_type == "GPU")
        )
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # no such name on this system
        return 4 << 30


def size_of(variables: Sequence[Any]) -> int:
    """Return how many bytes variables take."""
    return sum(
        int(tf.TensorShape(one.shape).num_elements() or 0) * tf.as_dtype(one.dtype).size for one in variables
    )
