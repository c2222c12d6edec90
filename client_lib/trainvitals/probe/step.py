"""One training step while it is traced (or run eagerly): what its hooks saw, and the row that is made of it.

A row is `[step, step of the loss, loss, batch size]`, then one block for each call of an optimizer's `apply`:
`[step, loss scale, learning rate, input, label, weight non-finite, n half sums, n counts, optimizer step]`.
`apply` may sit in a graph of its own (a `tf.cond` every k-th step): its numbers then go through a slot
variable, and a loss or block whose step is not the row's step did not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from trainvitals.probe import measure
from trainvitals.probe.operations import OWN_SCOPE, risky_operations
from trainvitals.probe.optimizers import learning_rate_of, loss_scale_of, optimizer_step_of, scaling_of
from trainvitals.probe.types import Optimizer, Tensor, Value

ROW_HEAD = 4
BLOCK_HEAD = 3
# Where the raw loss is looked for, best first. What the step returns is last: mostly it is a running mean.
LOSS_SOURCES = ("scale_loss", "scale_loss of another optimizer", "loss metric", "compute_loss", "returned")


@dataclass(frozen=True, slots=True)
class Block:
    """What one call of `apply` adds to a row: the variables with a gradient, and how to read the rest."""

    variables: tuple[Any, ...]
    scaling: str  # "", "static" or "dynamic"
    is_main: bool  # of the optimizer that the model was compiled with
    has_rate: bool

    @property
    def width(self) -> int:
        """Return how many numbers the block takes in a row."""
        return BLOCK_HEAD + measure.EXTRAS + 2 * len(self.variables) + 1


@dataclass(frozen=True, slots=True)
class RowShape:
    """What a row of one traced step holds."""

    blocks: tuple[Block, ...]
    has_loss: bool

    @property
    def width(self) -> int:
        """Return how many numbers a row takes."""
        return ROW_HEAD + sum(block.width for block in self.blocks)

    @property
    def key(self) -> object:
        """Return what two traces of the same step have in common: they share a ring."""
        blocks = tuple(
            (
                tuple(id(variable) for variable in block.variables),
                block.scaling,
                block.is_main,
                block.has_rate,
            )
            for block in self.blocks
        )
        return blocks, self.has_loss


@dataclass(slots=True)
class StepTrace:
    """The notes of one step. `counter` is its int64 step; `slot(key, width)` gives a variable for numbers."""

    data: Any
    counter: Any
    slot: Callable[[object, int], Any]
    use_xla: bool = False
    main_optimizer: Value = None
    losses: dict[str, Tensor] = field(
        default_factory=dict
    )  # a slot variable `[step, loss]` where out of reach
    blocks: list[tuple[Block, Any, Tensor]] = field(default_factory=list)
    operations: dict[str, list[str]] | None = None
    graph: Value = field(default_factory=lambda: _graph())
    step: Tensor = None  # the counter, read once

    def __post_init__(self) -> None:
        with tf.name_scope(OWN_SCOPE):
            self.step = _f64(self.counter.read_value())

    def note_loss(self, source: str, loss: Tensor) -> None:
        """Remember the loss that `source` was given; the last one of a source counts."""
        if loss is None:
            return
        if _graph() is self.graph:
            self.losses[source] = loss
            return
        with tf.name_scope(OWN_SCOPE):
            slot = self.slot(("loss", source), 2)
            slot.assign(tf.stack([self._step_here(), _scalar(source, loss)]))
        self.losses[source] = slot

    def note_apply(self, optimizer: Optimizer, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Measure what `apply` is given; to be called before the optimizer's own `apply`."""
        pairs = [pair for pair in zip(gradients, variables, strict=False) if measure.is_measurable(pair[0])]
        if self.operations is None:
            self.operations = risky_operations()
        if not pairs:
            return
        with tf.name_scope(OWN_SCOPE):
            rate = learning_rate_of(optimizer)
            block = Block(
                variables=tuple(variable for _, variable in pairs),
                scaling=scaling_of(optimizer),
                is_main=optimizer is self.main_optimizer,
                has_rate=rate is not None,
            )
            numbers = self._numbers(pairs)
            head = [self._step_here(), loss_scale_of(optimizer), 0.0 if rate is None else rate]
            numbers = tf.concat([tf.stack([_f64(value) for value in head]), numbers], 0)
            if _graph() is not self.graph:
                slot = self.slot(("apply", len(self.blocks)), block.width - 1)
                slot.assign(numbers)
                numbers = slot
        self.blocks.append((block, optimizer, numbers))

    def _step_here(self) -> Tensor:
        return self.step if _graph() is self.graph else _f64(self.counter.read_value())

    def _numbers(self, pairs: Sequence[tuple[Any, Any]]) -> Tensor:
        is_inside = _graph() is self.graph  # elsewhere the batch and the loss may be out of reach
        loss = self.losses.get("scale_loss") if is_inside else None
        inputs, labels = _batch_parts(self.data) if is_inside else (None, None)
        return measure.gradient_numbers(
            [measure.dense(gradient, self.use_xla) for gradient, _ in pairs],
            None if loss is None or isinstance(loss, tf.Variable) else measure.as_scalar(loss),
            inputs,
            labels,
            [getattr(variable, "value", variable) for _, variable in pairs],
            use_xla=self.use_xla,
        )

    def finish(self, result: Value) -> tuple[RowShape, Tensor, str]:
        """Return the row's shape, the row, and where its loss comes from ("" when it has none)."""
        if "loss metric" not in self.losses and isinstance(result, dict) and result.get("loss") is not None:
            self.note_loss("returned", result["loss"])
        source = next((name for name in LOSS_SOURCES if name in self.losses), "")
        with tf.name_scope(OWN_SCOPE):
            step = self.step
            head = [tf.stack([step, step, tf.constant(0.0, tf.float64), _batch_size(self.data)])]
            if source:
                head = [self._loss_head(step, source)]
            blocks = []
            for _, optimizer, numbers in self.blocks:
                blocks += [tf.convert_to_tensor(numbers), _f64(optimizer_step_of(optimizer))[tf.newaxis]]
            row = tf.concat(head + blocks, 0) if blocks else head[0]
        return RowShape(tuple(block for block, _, _ in self.blocks), bool(source)), row, source

    def _loss_head(self, step: Tensor, source: str) -> Tensor:
        loss = self.losses[source]
        if isinstance(loss, tf.Variable):
            pair = tf.convert_to_tensor(loss)
            return tf.concat([step[tf.newaxis], pair, _batch_size(self.data)[tf.newaxis]], 0)
        return tf.stack([step, step, _scalar(source, loss), _batch_size(self.data)])


def _graph() -> Value:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _scalar(source: str, loss: Tensor) -> Tensor:
    """Return the loss as one number: a metric takes the mean of what it is given, an optimizer the sum."""
    return measure.as_scalar(tf.reduce_mean(tf.convert_to_tensor(loss)) if source == "loss metric" else loss)


def _f64(value: Value) -> Tensor:
    return tf.cast(value, tf.float64)


def _batch_size(data: Value) -> Tensor:
    """Return the length of the batch's first tensor, or 0 where it has none."""
    first = next((part for part in tf.nest.flatten(data) if getattr(part, "shape", None) is not None), None)
    if first is None or first.shape.rank in (None, 0):
        return tf.constant(0.0, tf.float64)
    known = first.shape[0]
    return tf.constant(float(known), tf.float64) if known is not None else _f64(tf.shape(first)[0])


def _batch_parts(data: Value) -> tuple[list[Any], list[Any]]:
    """Return the floating point tensors of the batch: inputs and labels."""
    try:
        inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
    except ValueError:  # a batch of another make: all of it counts as input
        inputs, labels = data, None
    return (
        [part for part in tf.nest.flatten(inputs) if measure.is_measurable(part)],
        [part for part in tf.nest.flatten(labels) if measure.is_measurable(part)],
    )
