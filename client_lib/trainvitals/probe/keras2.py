"""The way into Keras 2, as `tf_keras`: what its optimizers and train function do otherwise than Keras 3's.

`apply_gradients` gets gradients that are no longer scaled, a loss is scaled in `get_scaled_loss`, and the
train function goes through autograph.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from trainvitals.probe.kinds import inner_of, is_a
from trainvitals.probe.late import LateProbe
from trainvitals.probe.step import Trace
from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Optimizer, Value

_ARTIFACT = "autograph_info__"  # autograph calls what has this as it is, and goes on within


class OldProbe(LateProbe):
    """What is measured of one model of tf_keras."""

    _is_unscaled = False  # the gradients, in the step that was traced last

    heeds = False
    can_watch_outputs = False  # autograph rewrites what a layer's `call` is

    @property
    def capacity(self) -> int:
        """Return how many steps fit between two reads."""
        with tf.init_scope():  # `steps_per_execution` is a variable, and this is asked in the graph, too
            return super().capacity

    def _trace(self, model: Model) -> Callable[..., Any]:
        kept = getattr(model, "train_tf_function", None)
        traced = super()._trace(model)
        model.train_tf_function = kept
        return traced

    def _step_of(self, model: Model) -> Callable[[Any], Any]:
        original = model.train_step

        def train_step(data: Value) -> Value:
            return self._train_step(_converted(original), data)

        setattr(train_step, _ARTIFACT, {})
        return train_step

    def _hook_optimizer(self, stack: ExitStack, trace: Trace, optimizer: Optimizer) -> None:
        apply_gradients = optimizer.apply_gradients

        def hooked(grads_and_vars: Value, *args: Value, **kwargs: Value) -> Value:
            pairs = list(grads_and_vars)
            with self._guard():
                gradients, variables = [one for one, _ in pairs], [one for _, one in pairs]
                trace.note_apply(optimizer, gradients, variables)
            return apply_gradients(pairs, *args, **kwargs)

        stack.enter_context(attribute(optimizer, "apply_gradients", hooked))
        is_main = optimizer is self._model.optimizer
        source = "scale_loss" if is_main else "scale_loss of another optimizer"
        if inner_of(optimizer) is not optimizer:
            self._hook_unscaling(stack, optimizer)
        takes_loss = ["minimize"] + ["get_scaled_loss"] * (inner_of(optimizer) is not optimizer)
        for name in takes_loss:
            self._hook_loss(stack, trace, optimizer, name, source)

    def _hook_loss(
        self, stack: ExitStack, trace: Trace, optimizer: Optimizer, name: str, source: str
    ) -> None:
        original = getattr(optimizer, name)

        def hooked(loss: Value, *args: Value, **kwargs: Value) -> Value:
            if not callable(loss):
                with self._guard():
                    trace.note_loss(source, loss)
            return original(loss, *args, **kwargs)

        stack.enter_context(attribute(optimizer, name, hooked))

    def _hook_unscaling(self, stack: ExitStack, optimizer: Optimizer) -> None:
        unscale = optimizer.get_unscaled_gradients
        self._is_unscaled = False

        def hooked(grads: Value) -> Value:
            self._is_unscaled = True
            return unscale(grads)

        stack.enter_context(attribute(optimizer, "get_unscaled_gradients", hooked))

    def _remark_scaling(self, *, is_scaled: bool) -> None:
        if is_scaled and not self._is_unscaled:
            self._tell("train_step never called optimizer.get_unscaled_gradients: they keep the loss scale.")
        if self._is_unscaled and not is_scaled:
            self._tell("train_step never called optimizer.get_scaled_loss, yet it divides by the loss scale.")

    def _hook_losses(self, stack: ExitStack, trace: Trace) -> None:
        super()._hook_losses(stack, trace)
        for metric in self._model.metrics:
            if metric.name == "loss" and is_a(metric, "Mean"):
                self._hook_metric(stack, trace, metric)


def _converted(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `step` as autograph calls it for tf_keras: its `if` and `for` may ask tensors."""
    autograph = tf.__internal__.autograph
    context = autograph.control_status_ctx()
    if context.status.name != "ENABLED":
        return step
    return autograph.tf_convert(step, context)  # type: ignore[no-any-return]
