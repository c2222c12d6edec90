"""Brake: keeps the update of a step that went non-finite out of the model (`on_nonfinite="stop"`, `"skip"`).

Such a step leaves nothing behind: no update, and BatchNorm's statistics, seeds and metrics are what they
were before it, as if its batch had not been in the data. After a "stop" all further steps are like that, to
the end of a multi-step execution and until the host ends the training. A loss scaler's own skips are its own
affair: under one, only a loss that is not finite counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from trainvitals.probe import measure
from trainvitals.probe.capture import current, moving_of, state_of
from trainvitals.probe.optimizers import optimizers_of, scaling_of
from trainvitals.probe.types import Model, Optimizer, Tensor, Value

NEVER = -1


@dataclass(slots=True)
class BrakedStep:
    """One step while it is traced: what is held of its start."""

    held: list[tuple[Any, Tensor]]


class Brake:
    """The brake of one model.

    `begin` and `stopped_at` are for the training thread, the rest goes into the graph.
    """

    def __init__(self, model: Model, *, stops: bool) -> None:
        self._model = model
        self.stops = stops
        with tf.init_scope():
            self._stopped_at = tf.Variable(
                NEVER, dtype=tf.int64, trainable=False, name="trainvitals_stopped_at"
            )
            self._is_bad = tf.Variable(False, trainable=False, name="trainvitals_is_bad")

    def begin(self) -> None:
        """Let updates through again."""
        self._stopped_at.assign(NEVER)

    @property
    def stopped_at(self) -> int | None:
        """The step whose update was the first to be kept out, where all later ones are, too."""
        step = int(self._stopped_at)
        return None if step == NEVER else step

    def note_start(self) -> BrakedStep:
        """Hold what the step may change; to be called before it runs."""
        self._is_bad.assign(self._stopped_at.read_value() != NEVER)
        model = self._model
        variables = [*moving_of(model), *model.metrics_variables]
        if len(optimizers_of(model)) > 1 or _has_own_step(model):
            # Another `apply` of the same step may be done by the time that one is kept out.
            variables += state_of(model)
        unique = {id(variable): variable for variable in variables}.values()
        return BrakedStep([(variable, tf.identity(current(variable))) for variable in unique])

    def apply(
        self,
        update: Callable[[], Value],
        optimizer: Optimizer,
        gradients: Sequence[Any],
        variables: Sequence[Any] | None,
        loss: Tensor | None,
    ) -> None:
        """Call `update`, the optimizer's own `apply`, unless the step is bad."""
        if not optimizer.built and variables is not None:  # it may make no variables in a branch
            with keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(list(variables))
            optimizer.built = True
        is_bad = _is_bad(loss, gradients, is_scaled=scaling_of(optimizer) == "dynamic")
        is_bad = tf.logical_or(self._is_bad.read_value(), is_bad)
        self._is_bad.assign(is_bad)

        def updating() -> Tensor:
            update()
            return tf.constant(0)

        tf.cond(is_bad, lambda: tf.constant(0), updating)

    def finish(self, step: BrakedStep, number: Tensor, result: Value) -> Value:
        """Undo what a bad step did apart from its update; return what `train_step` is to return."""

        def undo() -> Tensor:
            for variable, value in step.held:
                variable.assign(value)
            if self.stops:
                before = self._stopped_at.read_value()
                self._stopped_at.assign(tf.where(tf.equal(before, NEVER), number, before))
            return tf.constant(0)

        tf.cond(self._is_bad.read_value(), undo, lambda: tf.constant(0))
        return self._metrics_again(result)

    def _metrics_again(self, result: Value) -> Value:
        """Return the metrics as they are after `undo`: one NaN would stay in the running means all epoch."""
        if not isinstance(result, dict):
            return result
        fresh = self._model.get_metrics_result()
        return fresh if isinstance(fresh, dict) and fresh.keys() == result.keys() else result


def _has_own_step(model: Model) -> bool:
    return type(model).train_step is not keras.Model.train_step


def _is_bad(loss: Tensor | None, gradients: Sequence[Any], *, is_scaled: bool) -> Tensor:
    is_bad = tf.constant(False)
    if loss is not None:
        is_bad = tf.logical_not(tf.reduce_all(tf.math.is_finite(loss)))
    if is_scaled:
        return is_bad
    parts = [getattr(one, "values", one) for one in gradients if measure.is_measurable(one)]
    if not parts:
        return is_bad
    halves = measure.half_sums(parts)

    def exactly() -> Tensor:  # a sum of squares can overflow without a bad element
        return tf.reduce_any([tf.reduce_any(tf.logical_not(tf.math.is_finite(part))) for part in parts])

    has_bad = tf.cond(tf.math.is_finite(tf.reduce_sum(halves)), lambda: tf.constant(False), exactly)
    return tf.logical_or(is_bad, has_bad)
