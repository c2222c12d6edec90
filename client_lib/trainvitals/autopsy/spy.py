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


class Enough(BaseException):
    """Ends a step that has shown what it was replayed for; no `except Exception` of the user's stops it."""


@dataclass(slots=True)
class Spy:
    """What was seen first to be not finite, losses or gradients of weights: the identities of tensors."""

    bad_losses: list[int] = field(default_factory=list)
    bad_gradients: list[int] = field(default_factory=list)
    has_gradients: bool = False  # the step asked for some
    scale: float = 1.0  # of a loss scaler that skips updates; the last one that was asked
    thread: int = field(default_factory=threading.get_ident)
    _scaled: dict[int, tuple[int, int]] = field(default_factory=dict)  # scaled loss -> raw one, its badness

    def note_scaling(self, raw: Value, scaled: Value, badness: Badness) -> None:
        """Look at a loss that is about to be scaled, be it by 1."""
        if badness(raw) != FINITE:
            self._end(self.bad_losses, [identity_of(raw)])
        if identity_of(raw) != identity_of(scaled):
            self._scaled[identity_of(scaled)] = (identity_of(raw), badness(raw))

    def note_targets(self, targets: list[Value], badness: Badness) -> None:
        """Look at losses that are about to be differentiated."""
        self.has_gradients = True
        raw = [self._scaled.get(identity_of(one), (identity_of(one), badness(one))) for one in targets]
        self._end(self.bad_losses, [identity for identity, bad in raw if bad != FINITE])

    def note_gradients(self, gradients: list[Value], badness: Badness) -> None:
        """Look at the gradients that came out."""
        self._end(self.bad_gradients, [identity_of(one) for one in gradients if badness(one) != FINITE])

    def _end(self, seen: list[int], bad: list[int]) -> None:
        if bad and not (self.bad_losses or self.bad_gradients):
            seen.extend(bad)
            raise Enough


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
        if threading.get_ident() != spy.thread or not _has_variable(sources):
            return original(self, target, sources, *args, **kwargs)
        spy.note_targets(_tensors(target), badness)
        gradients = original(self, target, sources, *args, **kwargs)
        spy.note_gradients(_tensors(gradients), badness)
        return gradients

    return gradient


def _has_variable(sources: Value) -> bool:
    """The gradient of an input, as in a gradient penalty, is a step on the way to a loss."""
    return any(isinstance(one, tf.Variable | keras.Variable) for one in tf.nest.flatten(sources))


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
