"""What a step differentiates: its losses and gradients, as they pass a `GradientTape` and `scale_loss`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import keras
import tensorflow as tf

from trainvitals.autopsy.internals import identity_of
from trainvitals.autopsy.numbers import FINITE
from trainvitals.probe.types import Value

Badness = Callable[[Value], int]


@dataclass(slots=True)
class Spy:
    """What was seen: numbers that identify tensors, in the order in which they came."""

    bad_losses: list[int] = field(default_factory=list)
    bad_gradients: list[int] = field(default_factory=list)
    scale: float = 1.0  # of a loss scaler that skips updates; the last one that was asked
    thread: int = field(default_factory=threading.get_ident)
    _scaled: dict[int, tuple[int, int]] = field(default_factory=dict)  # scaled loss -> raw one, its badness

    def note_scaling(self, raw: Value, scaled: Value, badness: Badness) -> None:
        """Remember a loss that is about to be scaled, be it by 1."""
        if badness(raw) != FINITE:
            self._add_bad_loss(identity_of(raw))
        if identity_of(raw) != identity_of(scaled):
            self._scaled[identity_of(scaled)] = (identity_of(raw), badness(raw))

    def note_gradients(self, targets: list[Value], gradients: list[Value], badness: Badness) -> None:
        """Remember what was differentiated and what came out."""
        for target in targets:
            identity, bad = self._scaled.get(identity_of(target), (identity_of(target), badness(target)))
            if bad != FINITE:
                self._add_bad_loss(identity)
        self.bad_gradients += [identity_of(one) for one in gradients if badness(one) != FINITE]

    def _add_bad_loss(self, identity: int) -> None:
        if identity not in self.bad_losses:
            self.bad_losses.append(identity)


@contextmanager
def spying(spy: Spy, badness: Badness) -> Iterator[None]:
    """Let `spy` see each gradient that the step asks for."""
    with ExitStack() as stack:
        stack.enter_context(
            _replaced(tf.GradientTape, "gradient", functools.partial(_gradient, spy, badness))
        )
        for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
            if holder := next((one for one in kind.__mro__ if "scale_loss" in vars(one)), None):
                stack.enter_context(
                    _replaced(holder, "scale_loss", functools.partial(_scaling, spy, badness))
                )
        yield


def _gradient(spy: Spy, badness: Badness, original: Callable[..., Value]) -> Callable[..., Value]:
    @functools.wraps(original)
    def gradient(self: Value, target: Value, sources: Value, *args: Value, **kwargs: Value) -> Value:
        gradients = original(self, target, sources, *args, **kwargs)
        if threading.get_ident() != spy.thread:
            return gradients
        spy.note_gradients(_tensors(target), _tensors(gradients), badness)
        return gradients

    return gradient


def _scaling(spy: Spy, badness: Badness, original: Callable[..., Value]) -> Callable[..., Value]:
    @functools.wraps(original)
    def scale_loss(self: Value, loss: Value) -> Value:
        scaled = original(self, loss)
        if threading.get_ident() != spy.thread:
            return scaled
        if isinstance(self, keras.optimizers.LossScaleOptimizer):
            spy.scale = scale_of(self)
        if isinstance(loss, tf.Tensor) and isinstance(scaled, tf.Tensor):
            spy.note_scaling(loss, scaled, badness)
        return scaled

    return scale_loss


def scale_of(optimizer: Value) -> float:
    """Return the scale of a `LossScaleOptimizer`."""
    return float(optimizer.dynamic_scale.numpy() if optimizer.built else optimizer.initial_scale)


def _tensors(values: Value) -> list[Value]:
    flat = tf.nest.flatten(values, expand_composites=True)
    return [value for value in flat if isinstance(value, tf.Tensor)]


@contextmanager
def _replaced(
    holder: Value, name: str, wrapped: Callable[[Callable[..., Value]], Callable[..., Value]]
) -> Iterator[None]:
    original = vars(holder)[name]
    setattr(holder, name, wrapped(original))
    try:
        yield
    finally:
        setattr(holder, name, original)
