"""Step: the user's own step, run once on the batch, eagerly and without its update."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from trainvitals.autopsy.finite import badness_of
from trainvitals.autopsy.numbers import FINITE
from trainvitals.autopsy.replay import eagerly, run_the_step
from trainvitals.autopsy.spy import scale_of
from trainvitals.preflight.given import Given
from trainvitals.preflight.losses import LossCall, losses_seen
from trainvitals.preflight.trace import Trace
from trainvitals.probe.optimizers import inner_of
from trainvitals.probe.types import Value

_SCALE_FACTOR = 32.0  # between two loss scales that are tried, until no gradient overflows


@dataclass(slots=True)
class Outcome:
    """How the step went; each of its fields is as far as the step came."""

    trace: Trace
    calls: list[LossCall] = field(default_factory=list)
    outputs: Value = None
    loss: Value = None
    gradients: list[tuple[Value, Value]] | None = None  # variable, gradient without its loss scale; or None
    error: Exception | None = None
    has_no_loss: bool = False  # nothing to compute one with: not compiled
    is_custom: bool = False  # a train_step of the user's
    has_unscaled: bool = False  # a scaler was handed gradients of a loss that it never scaled

    @property
    def is_finite(self) -> bool:
        """Whether nothing that came out is NaN or Infinity."""
        values = [self.loss, *tf.nest.flatten(self.outputs), *(one for _, one in self.gradients or ())]
        return all(badness_of(dense(one)) == FINITE for one in values if _is_tensor(one))


def has_own_step(model: Value) -> bool:
    """Tell whether the model has a `train_step` of the user's."""
    return getattr(type(model), "train_step", None) is not keras.Model.train_step


def loss_function(model: Value) -> Callable[[Value], Value]:
    """Return the forward pass and the loss of a model as a function of the batch."""

    def loss_of(data: Value) -> Value:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        return _loss(model, x, y, called(model, x, is_training=True), weight)

    return loss_of


def custom_step(model: Value) -> Callable[[Value], Value]:
    """Return the user's own step as a function that may take its batch apart, as some do."""
    return lambda data: model.train_step(tf.nest.map_structure(lambda one: one, data))


def called(model: Value, x: Value, *, is_training: bool) -> Value:
    """Call the model as Keras's step does."""
    has_argument = getattr(model, "_call_has_training_arg", True)
    return model(x, training=is_training) if has_argument else model(x)


def _loss(model: Value, x: Value, y: Value, outputs: Value, weight: Value) -> Value:
    given = {"x": x, "y": y, "y_pred": outputs, "sample_weight": weight}
    if "training" in inspect.signature(model.compute_loss).parameters:
        given["training"] = True
    return model.compute_loss(**given)


def run(model: Value, given: Given, trace: Trace) -> Outcome:
    """Run the step; whoever calls this must keep and restore the state around it."""
    outcome = Outcome(trace, is_custom=has_own_step(model))
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Keras's own advice comes again in `fit`
        stack.enter_context(eagerly())
        try:
            (_run_custom if outcome.is_custom else _run_standard)(model, given, outcome)
        except Exception as error:  # it is the user's code: whatever it raises is a finding
            outcome.error = error
    return outcome


def _run_standard(model: Value, given: Given, outcome: Outcome) -> None:
    x, y, weight = given.x, given.y, given.sample_weight
    outcome.has_no_loss = not getattr(model, "compiled", False)

    def forward(data: Value) -> None:
        outcome.outputs = called(model, data, is_training=True)
        if not outcome.has_no_loss:
            try:
                outcome.loss = _loss(model, x, y, outcome.outputs, weight)
            except ValueError as error:
                if "No loss to compute" not in str(error):
                    raise
                outcome.has_no_loss = True

    with tf.GradientTape(persistent=True) as tape, losses_seen(outcome.calls), outcome.trace.watching():
        run_the_step(forward, x)
    if outcome.loss is not None and model.trainable_variables:
        outcome.gradients = _gradients(tape, outcome.loss, model)


def _gradients(tape: Value, loss: Value, model: Value) -> list[tuple[Value, Value]]:
    """Return unscaled gradients, taken at the largest loss scale at which none overflows."""
    scale = initial_scale(model.optimizer)
    variables = list(model.trainable_variables)
    while True:
        factor = tf.ones_like(loss) * tf.cast(scale, loss.dtype)
        found = tape.gradient(loss, variables, output_gradients=factor)
        if scale <= 1 or all(badness_of(dense(one)) == FINITE for one in found if one is not None):
            pairs = zip(variables, found, strict=True)
            return [(variable, _unscaled(one, scale)) for variable, one in pairs]
        scale = max(scale / _SCALE_FACTOR, 1.0)


def initial_scale(optimizer: Value) -> float:
    """Return the loss scale with which the optimizer begins."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return scale_of(optimizer)
    return float(getattr(optimizer, "loss_scale_factor", None) or 1.0)


def _unscaled(gradient: Value, scale: float) -> Value:
    if gradient is None:
        return None
    return dense(gradient) / tf.cast(scale, gradient.dtype) if scale != 1 else dense(gradient)


def _run_custom(model: Value, given: Given, outcome: Outcome) -> None:
    scaled: set[int] = set()
    applied: list[tuple[Value, Value, Value]] = []
    with ExitStack() as stack:
        stack.enter_context(scalings_seen(scaled))
        stack.enter_context(updates_held_back(applied))
        stack.enter_context(losses_seen(outcome.calls))
        stack.enter_context(outcome.trace.watching())
        run_the_step(custom_step(model), given.run.data)
    outcome.gradients = []
    for optimizer, gradients, variables in applied:
        is_scaler = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        outcome.has_unscaled |= is_scaler and id(optimizer) not in scaled
        scale = initial_scale(optimizer) if id(optimizer) in scaled else 1.0
        pairs = zip(variables, gradients, strict=False)
        outcome.gradients += [(variable, _unscaled(one, scale)) for variable, one in pairs]


@contextmanager
def updates_held_back(applied: list[tuple[Value, Value, Value]]) -> Iterator[None]:
    """Put what this thread hands to an optimizer into `applied`, and let no optimizer do anything."""
    owner = threading.get_ident()

    def wrapped(original: Callable[..., Value]) -> Callable[..., Value]:
        @functools.wraps(original)
        def apply(self: Value, grads: Value, trainable_variables: Value = None, **kwargs: Value) -> Value:
            if threading.get_ident() != owner:
                return original(self, grads, trainable_variables, **kwargs)
            variables = trainable_variables
            if variables is None:
                variables = getattr(inner_of(self), "_trainable_variables", ())
            applied.append((self, list(grads), list(variables)))
            return None

        return apply

    with _replaced("apply", wrapped):
        yield


@contextmanager
def scalings_seen(scaled: set[int]) -> Iterator[None]:
    """Put the optimizers that this thread asks to scale a loss into `scaled`."""

    def wrapped(original: Callable[..., Value]) -> Callable[..., Value]:
        @functools.wraps(original)
        def scale_loss(self: Value, loss: Value) -> Value:
            scaled.add(id(self))
            return original(self, loss)

        return scale_loss

    with _replaced("scale_loss", wrapped):
        yield


@contextmanager
def _replaced(name: str, wrapped: Callable[[Callable[..., Value]], Callable[..., Value]]) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in _optimizer_kinds():
            if name in vars(kind):
                original = vars(kind)[name]
                setattr(kind, name, wrapped(original))
                stack.callback(setattr, kind, name, original)
        yield


def _optimizer_kinds() -> list[type]:
    """Return the classes that an optimizer may have its methods from."""
    base: type = keras.optimizers.Optimizer
    known = dict.fromkeys(base.__mro__)
    waiting = [base]
    while waiting:
        kind = waiting.pop()
        known[kind] = None
        below: list[type] = kind.__subclasses__()
        waiting.extend(one for one in below if one not in known)
    return list(known)


def dense(value: Value) -> Value:
    """Return a gradient in one piece, also that of an embedding."""
    return tf.convert_to_tensor(value) if isinstance(value, tf.IndexedSlices) else value


def _is_tensor(value: Value) -> bool:
    return isinstance(value, tf.Tensor | tf.IndexedSlices)
