"""Capture: keeps the failing step: its batch, and the state that the model was in before it.

Nothing is copied while nothing fails. What the forward pass may change (BatchNorm's statistics, seeds) is
read at the start of the step, which takes a reference; the rest is read in the branch that a suspicious step
takes, before the optimizer changes it. A queue of one element takes it all, so that only the first such step
since `arm` is kept, whatever its shapes are. No queue works within XLA: there `compiled.py` does the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import tensorflow as tf

from trainvitals.probe.handles import Handles
from trainvitals.probe.optimizers import optimizers_of, variables_of
from trainvitals.probe.template import Template
from trainvitals.probe.types import Model, Tensor, Value

_log = logging.getLogger("trainvitals")

OFF, ARMED, ARMED_FOR_SKIPS = 0, 1, 2  # the last also takes what a loss scaler skips
WeightsFrom = Literal["before_step", "mostly_before_step", "after_step"]
_INNER_GRAPHS = ("CondBranchFuncGraph", "WhileBodyFuncGraph")
MAX_PLANS = 16  # traces that would keep different things; a training that has more captures no further ones


@dataclass(frozen=True, slots=True)
class Captured:
    """One failing step."""

    step: int
    data: Any  # as `train_step` got it
    state: list[tuple[Any, Any]]  # (variable, value before the step)
    weights_from: WeightsFrom = "before_step"


@dataclass(frozen=True, slots=True)
class Start:
    """What is held of a step from its start on, while it is traced."""

    data: Any
    state: tuple[tuple[Any, Tensor], ...]
    handles: Handles | None = None  # of variables that do not change before the branch has read them

    def value_of(self, variable: Value) -> Tensor:
        """Return the value that a variable had at the start; to be called in the branch."""
        held = next((value for one, value in self.state if one is variable), None)
        if held is not None:
            return held
        if self.handles is not None and variable in self.handles:
            return self.handles.read(variable)
        return current(variable)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one queue holds: the step, the batch's tensors, the variables."""

    queue: Any
    template: Template | None  # None: of a part that is not the last, which has the batch
    variables: tuple[Any, ...]

    def take(self) -> Captured:
        step, *values = self.queue.dequeue()
        place = len(values) - len(self.variables)
        state = list(zip(self.variables, values[place:], strict=True))
        data = None if self.template is None else self.template.join(values[:place])
        return Captured(int(step), data, state)


@dataclass(frozen=True, slots=True)
class Part:
    """The part of the gradients that a branch looks at: its weights are kept there.

    A part that is not the last keeps nothing else. The last leaves out `others`, the weights of other parts,
    and what the optimizer holds for each weight: reading them there would hold up their updates in every
    step. What it leaves out is after the step what the update made of it, if that part was finite.
    """

    weights: tuple[Any, ...] = ()
    others: tuple[Any, ...] = ()
    is_last: bool = True


WHOLE = Part()  # all in one


class Recorder(Protocol):
    """What keeps failing steps: `Capture`, or `CompiledCapture` under XLA."""

    reason: str  # why `take` had nothing, where there is a reason

    def note_start(self, data: Value) -> Start:
        """Hold what the step may have changed by the time it fails; to be called before it runs."""

    def store(self, start: Start, step: Tensor, is_bad: Tensor, is_skip: Tensor, part: Part = WHOLE) -> None:
        """Keep the step if it is the first that `is_bad` (or `is_skip`), before the optimizer's update."""

    def begin(self, step: int) -> None:
        """Wait for the next failing step; the coming one is `step`."""

    def settle(self) -> None:
        """Adapt to what is known after some steps."""

    def arm(self, *, for_skips: bool = False) -> None:
        """Forget what is kept and wait for the next failing step."""

    def take(self) -> Captured | None:
        """Return the first step that was kept, and keep no other until the next `arm`."""


class Capture:
    """The captured step of one model.

    `note_start` and `store` go into the graph, the rest is for the training thread. After `take`, nothing is
    captured until `arm` is called again.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._plans: dict[object, _Plan] = {}
        self.reason = ""  # why `take` had nothing, where there is one
        with tf.init_scope(), tf.device("CPU:0"):
            self._level = tf.Variable(ARMED, dtype=tf.int32, trainable=False, name="trainvitals_armed")

    def note_start(self, data: Value) -> Start:
        """Hold what the step may have changed by the time it fails; to be called before it runs."""
        return Start(data, tuple((one, current(one)) for one in moving_of(self._model)))

    def store(self, start: Start, step: Tensor, is_bad: Tensor, is_skip: Tensor, part: Part = WHOLE) -> None:
        """Keep the step if nothing is kept yet; to be called in a rarely taken branch, before the update.

        Args:
            start: From `note_start`.
            step: Its int64 number.
            is_bad: Whether it is to be kept.
            is_skip: Whether it is so only where a loss scaler's skips are looked at.
            part: What this branch keeps of it.
        """
        variables = self._kept_by(part)
        template, tensors = Template.of(start.data) if part.is_last else (None, [])
        plan = self._plan(template, tensors, variables)
        if plan is None:
            return

        def keep() -> Tensor:
            values = [start.value_of(one) for one in variables]
            plan.queue.enqueue([step, *tensors, *values])
            return tf.constant(0)

        level = self._level.read_value()
        is_wanted = tf.logical_or(
            tf.logical_and(is_bad, level >= ARMED), tf.logical_and(is_skip, tf.equal(level, ARMED_FOR_SKIPS))
        )
        is_free = tf.equal(plan.queue.size(), 0)
        tf.cond(tf.logical_and(is_wanted, is_free), keep, lambda: tf.constant(0))

    def arm(self, *, for_skips: bool = False) -> None:
        """Forget what is kept and wait for the next failing step."""
        for plan in self._plans.values():
            if plan.queue.size():
                plan.queue.dequeue()
        self._level.assign(ARMED_FOR_SKIPS if for_skips else ARMED)

    def begin(self, step: int) -> None:
        """Wait for the next failing step, of which the first is `step`."""
        self.arm()

    def settle(self) -> None:
        """Adapt to what is known after some steps: nothing here."""

    def take(self) -> Captured | None:
        """Return the first step that was kept, and keep no other until the next `arm`."""
        self._level.assign(OFF)
        found = [plan.take() for plan in self._plans.values() if plan.queue.size()]
        whole = [captured for captured in found if captured.data is not None]
        first = min(whole, key=lambda captured: captured.step, default=None)
        return None if first is None else self._completed(first, [one for one in found if one.data is None])

    def _completed(self, first: Captured, parts: list[Captured]) -> Captured:
        """Add what the other parts kept: of the same step, or of the later one in which they went bad.

        Up to that later step all updates of such a part were finite, so its weights are those of before the
        failing step but for these updates. By now they may be spoilt.
        """
        state = [*first.state, *(pair for part in parts if part.step >= first.step for pair in part.state)]
        at_once = [first, *(part for part in parts if part.step == first.step)]
        exact = {id(variable) for one in at_once for variable, _ in one.state}
        is_exact = all(id(weight) in exact for weight in self._model.trainable_variables)
        return replace(first, state=state, weights_from="before_step" if is_exact else "mostly_before_step")

    def _kept_by(self, part: Part) -> list[Any]:
        if not part.is_last:
            return list(part.weights)
        if not part.others:
            return state_of(self._model)
        left_out = {id(weight) for weight in part.others}
        left_out |= {
            id(slot) for one in optimizers_of(self._model) for slot in one.variables if _is_large(slot)
        }
        return [one for one in state_of(self._model) if id(one) not in left_out]

    def _plan(self, template: Template | None, tensors: list[Tensor], variables: list[Any]) -> _Plan | None:
        dtypes = [tf.int64, *(tensor.dtype for tensor in tensors), *(_dtype(one) for one in variables)]
        key = (
            str(template and template.skeleton),
            tuple(dtypes),
            tuple(id(variable) for variable in variables),
        )
        if key not in self._plans and len(self._plans) < MAX_PLANS:
            with tf.init_scope(), tf.device("CPU:0"):
                queue = tf.queue.FIFOQueue(1, dtypes)
            self._plans[key] = _Plan(queue, template, tuple(variables))
        return self._plans.get(key)


def moving_of(model: Model) -> list[Any]:
    """Return what the forward pass itself changes: statistics and seeds, but no frozen weights."""
    frozen = _frozen(model)
    return [one for one in model.non_trainable_variables if id(one) not in frozen]


def _frozen(model: Model) -> set[int]:
    """Return the ids of weights that are not trained: they are what they were, and there may be many."""
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
    weights = [one for layer in layers for one in getattr(layer, "_trainable_variables", ())]
    return {id(one) for one in weights if not one.trainable}


def state_of(model: Model) -> list[Any]:
    """Return all variables that a step may change: the model's and its optimizers'."""
    frozen = _frozen(model)
    found = [one for one in model.variables if id(one) not in frozen]
    for optimizer in optimizers_of(model):
        found += variables_of(optimizer)
    return list({id(variable): variable for variable in found}.values())


def current(variable: Value) -> Tensor:
    """Return the value of a variable, Keras's or TensorFlow's."""
    return tf.convert_to_tensor(inside(variable))


def inside(variable: Value) -> Value:
    """Return the TensorFlow variable of a Keras one."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def _dtype(variable: Value) -> Any:  # noqa: ANN401 - TensorFlow has no types
    return tf.as_dtype(variable.dtype)


def _is_large(variable: Value) -> bool:
    return len(variable.shape) > 0


@contextmanager
def unharmed() -> Iterator[None]:
    """Keep a failure to capture out of the measurement and of the training: one line in the log."""
    try:
        yield
    except Exception:  # an odd batch or variable of the user's may raise anything
        _log.warning("trainvitals cannot keep a failing step of this training", exc_info=True)


def signs(loss: Tensor | None, has_bad_gradient: Tensor, scaling: str) -> tuple[Tensor, Tensor]:
    """Return whether a step failed, and whether a scaler skips it.

    A loss scaler skips steps in good health: under one, only a loss that is not finite is a failure.
    """
    is_bad = tf.constant(False) if scaling == "dynamic" else has_bad_gradient
    if loss is not None:
        is_bad = tf.logical_or(is_bad, tf.logical_not(tf.math.is_finite(loss)))
    return is_bad, has_bad_gradient


def is_reached(graph: Value) -> bool:
    """Return whether the tensors of `graph` can be used here: in it, or in a branch or loop within it."""
    here = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while here is not graph and here is not None and type(here).__name__ in _INNER_GRAPHS:
        here = here.outer_graph
    return here is graph
