"""One replay: the step run eagerly from the state before it, and the stage at which it went non-finite."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.finite import badness_of
from trainvitals.autopsy.internals import can_see_operations, identity_of
from trainvitals.autopsy.layerwise import LayerWatch
from trainvitals.autopsy.numbers import FINITE, Array
from trainvitals.autopsy.record import Recording
from trainvitals.autopsy.scene import Scene
from trainvitals.autopsy.spy import Enough, Spy, spying
from trainvitals.autopsy.state import Keeper, assign, components, random_states
from trainvitals.probe.types import Value

Stage = Literal["", "loss", "gradient", "weight"]


@dataclass(frozen=True, slots=True)
class Mode:
    """How a step is replayed."""

    is_recorded: bool = False
    is_unscaled: bool = False  # with a loss scale of 1
    is_differentiated: bool = False  # by us, where the user's function only computes a loss


@dataclass(slots=True)
class Attempt:
    """How one replay went; `bad` is what went non-finite first: losses, gradients or weights."""

    mode: Mode
    stage: Stage = ""
    bad: list[int] = field(default_factory=list)  # tensors; at the stage "weight" the handles of variables
    scale: float = 1.0
    recording: Recording | None = None
    layer: tuple[Value, ...] | None = None  # the innermost layer that turned bad, where nothing was recorded
    error: Exception | None = None
    has_only_loss: bool = False  # it returned one, and asked for no gradient
    has_gradients: bool = False  # it asked for some, or we did


class Replayer:
    """Runs the step of a scene again and again; whoever holds it must restore the state afterwards."""

    def __init__(self, scene: Scene, keeper: Keeper) -> None:
        self._scene = scene
        self._keeper = keeper
        self.of_handle: dict[int, Value] = {}  # the variable that a handle belongs to
        self._parts: dict[int, tf.Variable] = {}
        for variable in scene.variables:
            for part in components(variable):
                handle = identity_of(part.handle)
                self.of_handle[handle] = variable
                self._parts[handle] = part
        self._weights = _handles(scene.weights)
        self._statistics = _handles(scene.statistics)

    def attempt(self, data: Value, mode: Mode) -> Attempt:
        """Run the step once from the state before it."""
        self._rewind()
        if mode.is_unscaled:
            assign([(one.dynamic_scale, 1.0) for one in self._scalers()])
        sound = [one for one in self._statistics if not self._is_bad(one)]
        recording = Recording(self._parts) if mode.is_recorded and can_see_operations() else None
        layers = LayerWatch() if mode.is_recorded and recording is None else None
        spy = Spy()
        attempt = Attempt(mode, recording=recording)
        run = self._differentiated if mode.is_differentiated else self._scene.run
        badness = badness_of if recording is None else recording.badness
        with ExitStack() as stack:
            for context in (random_states(), eagerly(), spying(spy, badness)):
                stack.enter_context(context)
            if recording is not None:
                stack.enter_context(recording.watching())
            if layers is not None:
                stack.enter_context(layers.watching())
            returned = None
            with suppress(Enough):
                try:
                    returned = run_the_step(run, data)
                except Exception as error:  # it may well: a label out of range does
                    attempt.error = error
        attempt.scale = spy.scale
        attempt.layer = None if layers is None else layers.first_bad
        loss = _returned_loss(returned)
        attempt.has_gradients = spy.has_gradients
        attempt.has_only_loss = bool(loss) and not spy.has_gradients
        attempt.stage, attempt.bad = self._judge(spy, loss, sound)
        return attempt

    def _differentiated(self, data: Value) -> Value:
        with tf.GradientTape() as tape:
            loss = _returned_loss(self._scene.run(data))
        tape.gradient(loss, [part for one in self._scene.weights for part in components(one)])
        return loss

    def _rewind(self) -> None:
        self._keeper.restore()
        assign(self._scene.state)

    def value_before(self, variable: Value) -> Array:
        """Return what a variable held before the step."""
        self._rewind()
        return np.asarray(components(variable)[0])

    def bad_before(self) -> list[Value]:
        """Return the variables that were not finite before the step: weights, then all others."""
        self._rewind()
        handles = dict.fromkeys([*self._weights, *self._parts])
        return [self.of_handle[one] for one in handles if self._is_bad(one)]

    def _scalers(self) -> list[Value]:
        return [
            one
            for one in self._scene.all_optimizers
            if getattr(one, "built", False) and hasattr(one, "dynamic_scale")
        ]

    def _judge(self, spy: Spy, returned: list[Value], sound: list[int]) -> tuple[Stage, list[int]]:
        if spy.bad_losses:
            return "loss", spy.bad_losses
        if bad := [identity_of(one) for one in returned if badness_of(one) != FINITE]:
            return "loss", bad
        if spy.bad_gradients:
            return "gradient", spy.bad_gradients
        weights = list(filter(self._is_bad, self._weights)) or list(filter(self._is_bad, sound))
        return ("weight", weights) if weights else ("", [])

    def _is_bad(self, handle: int) -> bool:
        return badness_of(self._parts[handle]) != FINITE


def _handles(variables: Sequence[Value]) -> list[int]:
    return [identity_of(part.handle) for one in variables for part in components(one)]


def run_the_step(run: Value, data: Value) -> Value:
    """Call the user's step; what is further out on the stack than this is not part of it."""
    return run(data)


@contextmanager
def eagerly() -> Iterator[None]:
    """Run the bodies of `tf.function` as they are written, and so without XLA; those of this thread alone.

    `tf.config.run_functions_eagerly` is for the whole process: another training would change its rounding.
    """
    owner = threading.get_ident()
    holder = type(tf.function(_returned_loss))
    original = holder.__call__

    @functools.wraps(original)
    def call(self: Value, *args: Value, **kwargs: Value) -> Value:
        chosen = self.python_function if threading.get_ident() == owner else functools.partial(original, self)
        return chosen(*args, **kwargs)

    holder.__call__ = call
    try:
        yield
    finally:
        holder.__call__ = original


def _returned_loss(returned: Value) -> list[Value]:
    """Return the loss of a loop's function: it returns that, or that first; a `train_step` returns a dict."""
    if isinstance(returned, (tuple, list)):
        returned = returned[0] if returned else None
    if isinstance(returned, Mapping) or returned is None:
        return []
    flat: Sequence[Value] = tf.nest.flatten(returned)
    return [one for one in flat if isinstance(one, tf.Tensor)]
