"""One training step while it is traced (or run eagerly): what its hooks saw, and the row that is made of it.

What a row holds says `row.py`. `apply` may sit in a graph of its own (a `tf.cond` every k-th step): its
numbers then go through a slot variable, and a loss or block whose step is not the row's step did not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import keras
import tensorflow as tf

from trainvitals.probe import measure
from trainvitals.probe.capture import WHOLE, Part, Recorder, current, inside, is_reached, signs, unharmed
from trainvitals.probe.dials import Dials
from trainvitals.probe.handles import Handles, pinned
from trainvitals.probe.kinds import takes_unscaled
from trainvitals.probe.operations import OWN_SCOPE, risky_operations
from trainvitals.probe.optimizers import (
    changes_by_gradients_only,
    learning_rate_of,
    loss_scale_of,
    optimizer_step_of,
    scaling_of,
)
from trainvitals.probe.parts import elements_of, parts_of
from trainvitals.probe.row import BLOCK_HEAD, SMALLEST_SAFE_SUM, part_width
from trainvitals.probe.row_shape import Block, RowShape
from trainvitals.probe.suspicion import Keep, Suspicion
from trainvitals.probe.thinning import Thinning, sums_where
from trainvitals.probe.types import Optimizer, Tensor, Value

# Where the raw loss is looked for, best first. What the step returns is last: mostly it is a running mean.
LOSS_SOURCES = ("scale_loss", "scale_loss of another optimizer", "loss metric", "compute_loss", "returned")


class Trace(Protocol):
    """Who takes the notes of a step, of one replica or of the only one; the hooks tell it."""

    def known_loss(self) -> Tensor | None:
        """Return the raw loss as far as it is known by now and within reach."""

    def note_loss(self, source: str, loss: Tensor) -> None:
        """Remember the loss that `source` was given."""

    def note_apply(
        self, optimizer: Optimizer, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Measure what `apply` is to be given; return what to give it."""


@dataclass(slots=True)
class StepTrace:
    """The notes of one step.

    `counter` is its int64 step; `slot(key, width)` gives a variable for numbers, `details(key, width)` a
    ring.
    """

    data: Any
    counter: Any
    slot: Callable[[object, int], Any]
    details: Callable[[object, int], Any]
    capture: Recorder | None = None
    use_xla: bool = False
    main_optimizer: Value = None
    is_heeded: bool = False  # `apply` is given what `note_apply` returns
    dials: Dials | None = None
    losses: dict[str, Tensor] = field(
        default_factory=dict
    )  # a slot variable `[step, loss]` where out of reach
    blocks: list[_Applied] = field(default_factory=list)
    operations: dict[str, list[str]] | None = None
    graph: Value = field(default_factory=lambda: _graph())
    number: Tensor = None  # the counter, read once
    step: Tensor = None  # the same as float64
    start: Value = None  # what the capture holds from the start on
    branches: list[Any] = field(default_factory=list)  # which read variables by their handles

    def __post_init__(self) -> None:
        with tf.name_scope(OWN_SCOPE):
            self.number = self.counter.read_value()
            self.step = _f64(self.number)

    def hold(self) -> None:
        """Hold what the capture needs of the step's start; to be called before it runs."""
        if self.capture is not None:
            with unharmed(), tf.name_scope(OWN_SCOPE):
                self.start = self.capture.note_start(self.data)

    def known_loss(self) -> Tensor | None:
        """Return the raw loss as far as it is known by now and within reach."""
        if not is_reached(self.graph):
            return None
        known = [self.losses[source] for source in LOSS_SOURCES if source in self.losses]
        return next((loss for loss in known if not isinstance(loss, tf.Variable)), None)

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

    def note_apply(
        self, optimizer: Optimizer, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Measure what `apply` is to be given, before it is called; return the gradients to give it."""
        given = list(gradients)
        pairs = [pair for pair in zip(given, variables, strict=False) if measure.is_measurable(pair[0])]
        if self.operations is None:
            self.operations = risky_operations()
        if not pairs:
            return given
        measured, variables = [gradient for gradient, _ in pairs], tuple(variable for _, variable in pairs)
        with tf.name_scope(OWN_SCOPE):
            rate = learning_rate_of(optimizer)
            scaling, is_thinned = scaling_of(optimizer), self._is_thinned(measured, variables)
            block = Block(
                variables=variables,
                scaling=scaling,
                is_main=optimizer is self.main_optimizer,
                has_rate=rate is not None,
                is_whole=self.use_xla,
                is_unscaled=takes_unscaled(optimizer),
                details=() if self.use_xla else self._rings_of(variables),
                tells_skip=is_thinned and scaling == "dynamic",
                is_thinned=is_thinned,
            )
            head = [self._step_here(), loss_scale_of(optimizer), 0.0 if rate is None else rate]
            handles = self._handles_of(optimizer, variables)
            numbers = self._numbers(measured, block, handles, self._start_of(optimizer, handles))
            applied = _Applied(block, optimizer, [_f64(value) for value in head], numbers)
            if _graph() is not self.graph:
                slot = self.slot(("apply", len(self.blocks)), block.width - 1)
                slot.assign(tf.concat([tf.stack(applied.head), applied.numbers], 0))
                applied = _Applied(block, optimizer, slot, slot)
        self.blocks.append(applied)
        after = iter(measured)
        return [next(after) if measure.is_measurable(gradient) else gradient for gradient in given]

    def _step_here(self) -> Tensor:
        return self.step if _graph() is self.graph else _f64(self.counter.read_value())

    def _handles_of(self, optimizer: Optimizer, variables: Sequence[Any]) -> Handles | None:
        """Return the handles of what changes only once `apply` has its gradients, where that is known."""
        is_possible = self.is_heeded and not self.use_xla and _graph() is self.graph
        if not is_possible or not changes_by_gradients_only(optimizer):
            return None
        earlier = {id(variable) for applied in self.blocks for variable in applied.block.variables}
        if any(id(variable) in earlier for variable in variables):
            return None
        return Handles.of([*variables, *(one for one in optimizer.variables if not _is_scalar(one))])

    def _start_of(self, optimizer: Optimizer, handles: Handles | None) -> Value:
        """Return what is held of the start; with handles also the scalars, which change without gradients."""
        if handles is None or self.start is None:
            return self.start
        scalars = [(one, current(one)) for one in optimizer.variables if _is_scalar(one)]
        return replace(self.start, state=(*self.start.state, *scalars), handles=handles)

    def _numbers(self, measured: list[Any], block: Block, handles: Handles | None, start: Value) -> Tensor:
        """Return the numbers of a block; `measured` are its gradients, of which later ones take the place."""
        is_inside = _graph() is self.graph  # elsewhere the batch and the loss may be out of reach
        loss = self._loss_for(block) if is_inside else None
        gradients = [measure.dense(gradient, self.use_xla) for gradient in measured]
        batch = batch_parts(self.data) if is_inside else (None, None)
        keep = self._keeping(loss, block, start)
        if self.use_xla:
            weights = [inside(variable) for variable in block.variables]
            numbers = measure.details_in_one_pass(gradients, loss, (*batch, weights))
            has_bad = measure.has_bad(numbers, len(gradients))
            keep(self.counter.read_value(), has_bad, slice(0, len(gradients)))
            return numbers
        number = (lambda: self.number) if is_inside else self.counter.read_value
        smallest = SMALLEST_SAFE_SUM if self.dials is None else self.dials.smallest()
        is_measured = None
        if block.is_thinned and self._thinning is not None:
            is_measured = tf.logical_or(self._thinning.is_due(self.number), tf.math.is_inf(smallest))
            sums = [sums_where(is_measured, gradients[part]) for part, _ in reversed(block.details)]
            halves = [half for part in sums for half in part]
        else:
            halves = [measure.half_sum(gradient) for gradient in gradients]
        suspicion = Suspicion(
            gradients, halves, block.variables, loss, batch, handles, number, keep, smallest, is_measured
        )
        for part, ring in block.details:
            branch = suspicion.watch(part, ring)
            if handles is not None:
                # A later part's branch may read what an earlier part changes; the parts come in the order
                # of backpropagation, so that the branches before have mostly run, and waiting costs nothing.
                self.branches.append(branch)
                measured[part] = pinned(measured[part], self.branches)
        return _f64(measure.stacked(halves))

    def _is_thinned(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        if self._thinning is None or self.use_xla or _graph() is not self.graph:
            return False
        return self._thinning.takes(gradients, variables)

    @property
    def _thinning(self) -> Thinning | None:
        return None if self.dials is None else self.dials.thinning

    def _loss_for(self, block: Block) -> Tensor | None:
        """Return the loss whose being finite is checked; without sums of squares, any that is known."""
        loss = self.losses.get("scale_loss")
        if loss is None and block.is_thinned:
            loss = self.known_loss()
        return None if loss is None or isinstance(loss, tf.Variable) else self._watched(loss)

    def _watched(self, loss: Tensor) -> Tensor:
        return measure.as_scalar(loss) if self.use_xla else measure.whole(loss)

    def _rings_of(self, variables: Sequence[Any]) -> tuple[tuple[slice, Any], ...]:
        parts = parts_of([elements_of(variable) for variable in variables])
        place = (len(self.blocks), *(id(variable) for variable in variables))
        widths = [1 + part_width(part.stop - part.start) for part in parts]
        rings = [self.details((place, part.start), width) for part, width in zip(parts, widths, strict=True)]
        return tuple(zip(parts, rings, strict=True))

    def _keeping(self, loss: Tensor | None, block: Block, start: Value) -> Keep:
        """Return what captures a failing step, given its number and details; nothing does where none can."""
        capture = self.capture
        if capture is None or not is_reached(self.graph):
            return lambda step, has_bad_gradient, part: None

        def keep(step: Tensor, has_bad_gradient: Tensor, part: slice) -> None:
            with unharmed():
                bad = signs(loss, has_bad_gradient, block.scaling)
                capture.store(start, step, *bad, _part_of(block, part))

        return keep

    def finish(self, result: Value) -> tuple[RowShape, Tensor, str]:
        """Return the row's shape, the row, and where its loss comes from ("" when it has none)."""
        if "loss metric" not in self.losses and isinstance(result, dict) and result.get("loss") is not None:
            self.note_loss("returned", result["loss"])
        source = next((name for name in LOSS_SOURCES if name in self.losses), "")
        with tf.name_scope(OWN_SCOPE):
            pieces = _joined([self._loss_pieces(source), *[_pieces(applied) for applied in self.blocks]])
            row = tf.concat(pieces, 0) if len(pieces) > 1 else pieces[0]
        return RowShape(tuple(applied.block for applied in self.blocks), bool(source)), row, source

    def _loss_pieces(self, source: str) -> _Pieces:
        if not source:
            return [[self.step, self.step, _f64(0.0), batch_size(self.data)]]
        loss = self.losses[source]
        if isinstance(loss, tf.Variable):
            return [[self.step], tf.convert_to_tensor(loss), [batch_size(self.data)]]
        return [[self.step, self.step, _scalar(source, loss), batch_size(self.data)]]


def _part_of(block: Block, part: slice) -> Part:
    if part.stop - part.start == len(block.variables):
        return WHOLE
    return Part(block.variables[part], block.variables[part.stop :], is_last=part.start == 0)


@dataclass(frozen=True, slots=True)
class _Applied:
    """One call of `apply`: the scalars at the head of its block and the numbers after them.

    Where it ran in a graph of its own, both are the slot variable that holds all of them.
    """

    block: Block
    optimizer: Any
    head: Any
    numbers: Tensor


_Pieces: TypeAlias = list[Any]  # of a row: float64 vectors, and lists of float64 scalars


def _pieces(applied: _Applied) -> _Pieces:
    step = _f64(optimizer_step_of(applied.optimizer))  # after the update
    if isinstance(applied.head, tf.Variable):
        numbers = tf.convert_to_tensor(applied.head)
        return [numbers[: BLOCK_HEAD - 1], [step], numbers[BLOCK_HEAD - 1 :]]
    skip = [_has_skipped(applied)] * applied.block.tells_skip
    return (
        [[*applied.head, step], applied.numbers, skip] if skip else [[*applied.head, step], applied.numbers]
    )


def _has_skipped(applied: _Applied) -> Tensor:
    """Return 1.0 if the loss scaler has skipped the update, which is when it lowers its scale, else 0.0."""
    return _f64(_f64(loss_scale_of(applied.optimizer)) < applied.head[1])


def _joined(parts: list[_Pieces]) -> list[Tensor]:
    """Return the vectors of a row; scalars that lie side by side are packed at once."""
    vectors: list[Tensor] = []
    scalars: list[Tensor] = []
    for piece in [piece for pieces in parts for piece in pieces]:
        if isinstance(piece, list):
            scalars += piece
            continue
        vectors += [tf.stack(scalars), piece] if scalars else [piece]
        scalars = []
    return [*vectors, tf.stack(scalars)] if scalars else vectors


def _graph() -> Value:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _scalar(source: str, loss: Tensor) -> Tensor:
    """Return the loss as one number: a metric takes the mean of what it is given, an optimizer the sum."""
    return measure.as_scalar(tf.reduce_mean(tf.convert_to_tensor(loss)) if source == "loss metric" else loss)


def _is_scalar(variable: Value) -> bool:
    return len(variable.shape) == 0


def _f64(value: Value) -> Tensor:
    return tf.cast(value, tf.float64)


def batch_size(data: Value) -> Tensor:
    """Return the length of the batch's first tensor, or 0 where it has none."""
    first = next((part for part in tf.nest.flatten(data) if getattr(part, "shape", None) is not None), None)
    if first is None or first.shape.rank in (None, 0):
        return tf.constant(0.0, tf.float64)
    known = first.shape[0]
    return tf.constant(float(known), tf.float64) if known is not None else _f64(tf.shape(first)[0])


def batch_parts(data: Value) -> tuple[list[Any], list[Any]]:
    """Return the floating point tensors of the batch: inputs and labels."""
    try:
        inputs, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
    except ValueError:  # a batch of another make: all of it counts as input
        inputs, labels = data, None
    return (
        [part for part in tf.nest.flatten(inputs, expand_composites=True) if measure.is_measurable(part)],
        [part for part in tf.nest.flatten(labels, expand_composites=True) if measure.is_measurable(part)],
    )
