"""The probe of a loop of the user's own: one compiled function takes loss and gradients and writes a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainvitals import wire
from trainvitals.identity import program_facts
from trainvitals.odd import refuse_masked
from trainvitals.probe import measure
from trainvitals.probe.compiled_steps import operations_of_steps
from trainvitals.probe.decode import BlockShape, Decoded, decode
from trainvitals.probe.environment import device, optimizer_settings, versions
from trainvitals.probe.kinds import takes_unscaled
from trainvitals.probe.layout import Layout
from trainvitals.probe.merge import SCALE, scale_moved
from trainvitals.probe.operations import OWN_SCOPE
from trainvitals.probe.optimizers import (
    inner_of,
    learning_rate_of,
    loss_scale_of,
    optimizer_step_of,
    scaling_of,
)
from trainvitals.probe.parts import elements_of_all
from trainvitals.probe.ring import Ring
from trainvitals.probe.row import ROW_HEAD, part_width
from trainvitals.probe.seldom import seldom
from trainvitals.probe.types import Optimizer, Tensor, Value
from trainvitals.wire import FloatArray, IntArray

CAPACITY = 256
MAX_MAKERS = 32  # each is a compiled function with two rings, some MiB, and keeps its variables


class NoRoomError(Exception):
    """Gradients of ever new variables, as of a model for each trial: they cannot all be kept in mind."""

    def __str__(self) -> str:
        return f"gradients were given for {MAX_MAKERS} sets of variables by now: use a new Reporter"


class LoopProbe:
    """Writes rows for `Reporter.step` and gives them back as series."""

    capacity = CAPACITY

    def __init__(self) -> None:
        self.layout = Layout()
        self._makers: dict[object, _Maker] = {}
        self._optimizer: Value = None
        self._operations: dict[str, list[str]] = {}

    def write(
        self,
        step: int,
        loss: Tensor,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        optimizer: Optimizer,
        loss_scale: float | None,
    ) -> None:
        """Put one row into a ring.

        Raises:
            ValueError: if gradients and variables are not of one length.
            NoRoomError: if too many sets of variables or optimizers were given; a loss alone will do.
        """
        if gradients and len(gradients) != len(variables):
            raise ValueError(f"{len(gradients)} gradients for {len(variables)} variables: give one for each")
        tensors = [as_tensor(gradient) for gradient in gradients]
        pairs = [pair for pair in zip(tensors, variables, strict=False) if measure.is_measurable(pair[0])]
        self._optimizer = optimizer if optimizer is not None else self._optimizer
        key = (
            tuple(id(variable) for _, variable in pairs), id(optimizer), loss is None, loss_scale is None
        )  # fmt: skip
        if key not in self._makers:
            if len(self._makers) >= MAX_MAKERS and (pairs or optimizer is not None):
                raise NoRoomError
            self._makers[key] = self._maker(
                [variable for _, variable in pairs], loss is not None, optimizer, loss_scale
            )
        self._makers[key](step, loss, [gradient for gradient, _ in pairs], loss_scale)

    def read(self) -> list[Decoded]:
        """Return the series of all steps since the last read."""
        pieces = []
        for maker in self._makers.values():
            rows = maker.ring.read()
            if len(rows):
                pieces.append(
                    decode(_with_used_scale(rows, maker), [maker.shape], maker.has_loss, self.layout.groups)
                )
        return sorted(pieces, key=lambda piece: int(piece.steps[0]))

    def environment(
        self,
        optimizer: Optimizer,
        config: dict[str, wire.Scalar],
        operations: dict[str, list[str]] | None = None,
    ) -> wire.Environment:
        """Return what is known of the loop, and of the compiled steps that train its variables."""
        if operations or not self._operations:
            self._operations = operations or operations_of_steps(self.layout.variables)
        optimizer = optimizer if optimizer is not None else self._optimizer
        return wire.Environment(
            versions=versions(),
            dtype_policy=keras.mixed_precision.dtype_policy().name,
            optimizer=type(inner_of(optimizer)).__name__ if optimizer is not None else "",
            optimizer_config=optimizer_settings(optimizer),
            loss_scaling=bool(scaling_of(optimizer)),
            device=device(),
            operations=self._operations,
            config=config,
            **program_facts(),
        )

    def _maker(
        self, variables: Sequence[Any], has_loss: bool, optimizer: Optimizer, loss_scale: float | None
    ) -> _Maker:
        places = self.layout.places(variables)
        scaling = "static" if loss_scale is not None else scaling_of(optimizer)
        has_rate = optimizer is not None and learning_rate_of(optimizer) is not None
        return _Maker(places, elements_of_all(variables), scaling, has_rate, has_loss, optimizer)


class _Maker:
    """Makes rows of one shape, by one compiled function."""

    def __init__(
        self,
        places: IntArray,
        elements: IntArray,
        scaling: str,
        has_rate: bool,
        has_loss: bool,
        optimizer: Optimizer,
    ) -> None:
        self._details = Ring(1 + part_width(len(places)), CAPACITY)
        self.shape = BlockShape(
            places,
            scaling,
            True,
            has_rate,
            [(slice(0, len(places)), self._details.rows)],
            scaling == "dynamic" and takes_unscaled(optimizer),
            elements=elements,
        )
        self.has_loss = has_loss
        self._optimizer = optimizer
        self.ring = Ring(ROW_HEAD + self.shape.width + 1, CAPACITY)  # 1: the scaler's step
        self._write: Callable[..., Any] = tf.function(self._row, autograph=False, reduce_retracing=True)

    def __call__(self, step: int, loss: Tensor, gradients: Sequence[Any], loss_scale: float | None) -> None:
        self._write(
            tf.constant(step, tf.int64),
            tf.constant(0.0, tf.float64) if loss is None else as_tensor(loss),
            list(gradients),
            tf.constant(1.0 if loss_scale is None else loss_scale, tf.float64),
        )

    def _row(self, step: Tensor, loss: Tensor, gradients: list[Any], own_scale: Tensor) -> None:
        with tf.name_scope(OWN_SCOPE):
            number, scalar = _f64(step), measure.as_scalar(loss)
            optimizer = self._optimizer
            rate = learning_rate_of(optimizer) if self.shape.has_rate else 0.0
            scale = own_scale if self.shape.scaling != "dynamic" else loss_scale_of(optimizer)
            updates = -1 if optimizer is None else optimizer_step_of(optimizer)
            head = [number, number, scalar, 0.0, number, scale, rate, updates]
            tail = [scaler_step_of(optimizer)]
            numbers = [self._numbers(step, gradients, scalar)] if gradients else []
            stacked = [tf.stack([_f64(value) for value in part]) for part in (head, tail)]
            self.ring.write(step, tf.concat([stacked[0], *numbers, stacked[1]], 0))

    def _numbers(self, step: Tensor, gradients: list[Any], loss: Tensor) -> Tensor:
        # The batch is not known here, and the weights are those after the update, not those before it.
        spread = [measure.dense(gradient, use_xla=False) for gradient in gradients]
        known_loss = loss if self.has_loss else None
        halves = measure.half_sums(spread)

        def write_details() -> None:
            numbers = measure.details(spread, halves, known_loss, (None, None, None))
            self._details.write(step, tf.concat([_f64(step)[tf.newaxis], numbers], 0))

        seldom(measure.is_suspicious(halves, known_loss), write_details)
        return _f64(halves)


def _with_used_scale(rows: FloatArray, maker: _Maker) -> FloatArray:
    """Return rows with the loss scale that the step was made with: it is read after `apply` has moved it."""
    if maker.shape.scaling != "dynamic":
        return rows
    rows = rows.copy()
    rows[:, SCALE] *= scale_moved(rows, [maker.shape], rows[:, -1])
    return rows


def scaler_step_of(optimizer: Optimizer) -> Tensor:
    """Return how many steps a loss scaler has made with its scale: 0 where it has just doubled it."""
    counter = getattr(optimizer, "step_counter", getattr(optimizer, "dynamic_counter", None))  # of tf_keras
    return _f64(1) if counter is None else _f64(tf.convert_to_tensor(counter))


def _f64(value: Value) -> Tensor:
    return tf.cast(value, tf.float64)


def as_tensor(value: Value) -> Value:
    """Return what a compiled function takes; arrays of other makes go through numpy.

    Raises:
        TypeError, ValueError, OverflowError: if it is not made of numbers.
    """
    if value is None:
        return None
    if not isinstance(value, tf.Tensor | tf.Variable | tf.IndexedSlices):
        refuse_masked(value)
        # TensorFlow takes no integers beyond 64 bits.
        value = tf.convert_to_tensor(np.asarray(float(value) if isinstance(value, int) else value))
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        raise TypeError(f"made of {value.dtype.name}, not of real numbers")
    return value
