"""Observed: the rows that a compiled function of the user's writes, by `Reporter.observe` within it.

What one optimizer does in a step is a part of it. The part that was traced first begins a step each time that
it runs; the others join that step, or begin one of their own where they have been in it already. The graph
counts, so that a call of the function may make no step, one or many. The host puts together what belongs to
one step when it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from trainvitals.probe.apart import apart
from trainvitals.probe.capture import Recorder, Start
from trainvitals.probe.decode import BlockShape, Decoded
from trainvitals.probe.layout import Layout
from trainvitals.probe.loop import as_tensor, scaler_step_of
from trainvitals.probe.merge import Table, latest_step, merged
from trainvitals.probe.operations import OWN_SCOPE
from trainvitals.probe.optimizers import inner_of
from trainvitals.probe.parts import elements_of_all
from trainvitals.probe.ring import Ring
from trainvitals.probe.row import BLOCK_HEAD, ROW_HEAD
from trainvitals.probe.row_shape import Block, RowShape
from trainvitals.probe.step import StepTrace
from trainvitals.probe.tracing import is_one_of_several_replicas, is_within_xla, was_applied
from trainvitals.probe.types import Optimizer, Tensor, Value

FEWEST_ROWS, MOST_ROWS = 256, 1024  # of a ring
MOST_BYTES = 4 << 20
MAX_TABLES = 64  # of all traces: each has a ring


@dataclass(frozen=True, slots=True)
class Given:
    """What `observe` was given; flat lists."""

    loss: Tensor
    gradients: Sequence[Any]
    variables: Sequence[Any]
    optimizer: Optimizer
    loss_scale: Tensor
    metrics: Mapping[str, Tensor]
    batch: Value


@dataclass(frozen=True, slots=True)
class Part:
    """What one optimizer does in a step. `last` is its last step; None of the part that begins steps."""

    number: int
    optimizer: Optimizer
    variables: tuple[Any, ...]
    last: Value


@dataclass(frozen=True, slots=True)
class ByHand:
    """Stands in for an optimizer that has no loss scale or no step of its own."""

    loss_scale_factor: Tensor
    inner_optimizer: Value


@dataclass(frozen=True, slots=True)
class NoOptimizer:
    """Stands in where no optimizer was named."""

    iterations: int = -1


@dataclass(slots=True)
class _Step:
    """The number of a step, as a trace takes its counter."""

    number: Tensor

    def read_value(self) -> Tensor:
        return self.number


@dataclass(slots=True)
class Observed:
    """The rows of all functions that observe for one reporter."""

    layout: Layout
    operations: dict[str, list[str]] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)  # (first, last): overwritten before a read
    _next: Value = None  # the step that begins next; a variable
    _parts: dict[object, Part] = field(default_factory=dict)
    _tables: dict[object, Table] = field(default_factory=dict)
    _details: dict[object, Ring] = field(default_factory=dict)
    _expected: int = 0

    @property
    def is_used(self) -> bool:
        """Return whether any function observes."""
        return bool(self._tables)

    def check_room(self) -> None:
        """Refuse further steps where there are many already: each holds its variables and a ring.

        Raises:
            ValueError: if there is no room.
        """
        if max(len(self._tables), len(self._parts)) >= MAX_TABLES:
            raise ValueError(f"it was traced for {MAX_TABLES} different steps: use a new Reporter")

    @property
    def capacity(self) -> int:
        """Return how many steps fit between two reads."""
        return min((table.ring.capacity for table in self._tables.values()), default=MOST_ROWS)

    @property
    def next_step(self) -> int:
        """Return the step after the last one that was read."""
        return self._expected

    @property
    def optimizers(self) -> list[Any]:
        """Return the optimizers of all parts."""
        found = [part.optimizer for part in self._parts.values() if part.optimizer is not None]
        return list({id(one): one for one in found}.values())

    @property
    def variables(self) -> list[Any]:
        """Return the variables of all parts."""
        found = [variable for part in self._parts.values() for variable in part.variables]
        return list({id(one): one for one in found}.values())

    def begin(self, step: int) -> None:
        """Let the next step be `step`."""
        if self._next is None:
            self._next = apart(lambda: _counter(step))
        else:
            self._next.assign(step)
        self._expected = step

    def trace(
        self, given: Given, capture: Recorder | None = None, moving: Sequence[tuple[Any, Tensor]] = ()
    ) -> None:
        """Put a row of this step into the graph, and the step into `capture` if it fails.

        Args:
            given: What is known of the step.
            capture: Where the step is kept.
            moving: Variables that the step has changed by now, with what they held before it.

        Raises:
            ValueError: if something does not fit; then the graph writes nothing.
        """
        if len(given.gradients) != len(given.variables):
            raise ValueError(
                f"{len(given.gradients)} gradients for {len(given.variables)} variables: give one for each"
            )
        if is_one_of_several_replicas():
            raise ValueError(
                "observe was called in each of several replicas: call it outside of strategy.run, "
                "with the loss and gradients of all"
            )
        part = self._part(given)
        is_after = given.optimizer is not None and was_applied(given.optimizer)
        with tf.name_scope(OWN_SCOPE):
            step = self._step_of(part)
        optimizer = _stand_in(given)
        trace = StepTrace(
            () if given.batch is None else given.batch,
            _Step(step),
            _no_slot,
            lambda key, width: self._details_ring((part.number, key), width, _capacity(given)),
            capture,
            use_xla=is_within_xla(),
            main_optimizer=optimizer if part.last is None else None,
        )
        if capture is not None:
            trace.start = Start(given.batch, tuple(moving))
        if given.loss is not None:
            trace.note_loss("scale_loss", given.loss)
        if given.gradients:
            trace.note_apply(optimizer, given.gradients, given.variables)
        self._write(part, trace, step, given, is_after)

    def read(self) -> list[Decoded]:
        """Return the series of all steps since the last read, in pieces of rising steps."""
        read = [(table, table.ring.read()) for table in self._tables.values()]
        read = [(table, rows) for table, rows in read if len(rows)]
        if not read:
            return []
        last = latest_step(read)
        for part in self._parts.values():
            if part.last is not None:
                part.last.assign(last)  # these steps are told: nothing may join them any more
        with_loss = [table.number for table in self._tables.values() if table.has_loss]
        pieces = merged(read, self.layout.groups, self._expected, min(with_loss, default=0))
        first = int(pieces[0].steps[0])
        if first > self._expected:
            self.lost.append((self._expected, first - 1))
        self._expected = last + 1
        return pieces

    def _part(self, given: Given) -> Part:
        key = id(given.optimizer), tuple(id(variable) for variable in given.variables)
        if key not in self._parts:
            told = self._expected - 1
            last = apart(lambda: _counter(told)) if self._parts else None
            self._parts[key] = Part(len(self._parts), given.optimizer, tuple(given.variables), last)
        return self._parts[key]

    def _step_of(self, part: Part) -> Tensor:
        coming = self._next.read_value()
        return coming if part.last is None else tf.maximum(coming - 1, part.last.read_value() + 1)

    def _write(self, part: Part, trace: StepTrace, step: Tensor, given: Given, is_after: bool) -> None:
        shape, row, _ = trace.finish(None)
        with tf.name_scope(OWN_SCOPE):
            extras = [scaler_step_of(given.optimizer), *(_number(one) for one in given.metrics.values())]
            row = tf.concat([row, tf.stack(extras)], 0)
            self._table(part, shape, given, is_after).ring.write(step, row)
            with tf.control_dependencies([row]):  # data that ends within the function make no step
                if part.last is None:
                    self._next.assign(step + 1)
                else:
                    part.last.assign(step)
                    self._next.assign(tf.maximum(self._next.read_value(), step + 1))
        if trace.operations and not self.operations:
            self.operations = trace.operations
            self.layout.has_changed = True

    def _table(self, part: Part, shape: RowShape, given: Given, is_after: bool) -> Table:
        key = part.number, shape.key, tuple(given.metrics), is_after, given.batch is None
        if key in self._tables:
            return self._tables[key]
        width = shape.width + 1 + len(given.metrics)
        self._tables[key] = Table(
            number=part.number,
            is_main=part.last is None,
            optimizer=given.optimizer,
            blocks=tuple(self._block_shape(block, part) for block in shape.blocks),
            ring=apart(lambda: Ring(width, _capacity(given))),
            has_loss=shape.has_loss,
            has_batch=given.batch is not None,
            is_after=is_after,
            metrics=tuple(given.metrics),
        )
        self.layout.places(())  # there is one, though it may be empty
        return self._tables[key]

    def _block_shape(self, block: Block, part: Part) -> BlockShape:
        return BlockShape(
            self.layout.places(block.variables),
            block.scaling,
            part.last is None,
            block.has_rate,
            None if block.is_whole else [(cut, ring.rows) for cut, ring in block.details],
            block.is_unscaled,
            elements=elements_of_all(block.variables),
        )

    def _details_ring(self, key: object, width: int, capacity: int) -> Ring:
        if (key, width) not in self._details:
            self._details[key, width] = apart(lambda: Ring(width, capacity))
        return self._details[key, width]


def flat(values: Value) -> list[Any]:
    """Return gradients or variables, of whatever structure a tape was given, as a list."""
    return [] if values is None else list(tf.nest.flatten(values))


def as_single(value: Value) -> Tensor:
    """Return a tensor of one number.

    Raises:
        TypeError, ValueError, OverflowError: if it is none.
    """
    tensor = as_tensor(value)
    if tensor.shape.rank != 0:
        raise ValueError(f"a tensor of shape {tensor.shape} is no single number")
    return tensor


def as_value(value: Value) -> Tensor:
    """Return a tensor that stays what it is."""
    return tf.convert_to_tensor(as_tensor(value))


def _capacity(given: Given) -> int:
    width = ROW_HEAD + BLOCK_HEAD + 2 * len(given.variables) + len(given.metrics)
    return max(FEWEST_ROWS, min(MOST_ROWS, MOST_BYTES // (8 * width)))


def _stand_in(given: Given) -> Optimizer:
    optimizer = given.optimizer
    if not hasattr(inner_of(optimizer), "iterations"):
        optimizer = NoOptimizer()
    if given.loss_scale is None:
        return optimizer
    return ByHand(given.loss_scale, inner_of(optimizer))


def _number(value: Value) -> Tensor:
    return tf.cast(tf.convert_to_tensor(value), tf.float64)


def _counter(value: int) -> Value:
    return tf.Variable(value, dtype=tf.int64, trainable=False, name="trainvitals_step")


def _no_slot(key: object, width: int) -> Value:
    raise RuntimeError("observe is in one graph from its beginning to its end")
