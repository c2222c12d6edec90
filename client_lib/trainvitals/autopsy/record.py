"""Recording: every operation of one eager step, with who made what was not finite, and what it was made of.

It keeps no tensor alive: only numbers that identify them, and summaries of what may be the origin.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.elementwise import explaining
from trainvitals.autopsy.finite import badness_of
from trainvitals.autopsy.internals import every_operation, identity_of, untaped
from trainvitals.autopsy.numbers import FINITE, NAN, bad_elements, operand
from trainvitals.autopsy.report import MAX_OPERANDS, Operand
from trainvitals.autopsy.rows import Rows, bad_rows
from trainvitals.autopsy.source import Differentiated, Place, Stack
from trainvitals.probe.types import Value

MAX_OPERATIONS = 300_000  # about 1 kB each; what comes later is not seen, and the report says so
MAX_LOOK_BACK = 5_000  # operations, for one whose tensors the tape has not kept
MAX_EVIDENCE = 500  # summaries of possible origins
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a report shows of an operation's tensors."""

    inputs: tuple[Operand, ...]
    output: Operand
    n_bad: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that ran.

    `causes` are the earlier operations whose non-finite results explain its own, `leaves` identify non-finite
    tensors that none of them made. An operation with neither made something non-finite from finite numbers.
    """

    number: int
    kind: str
    place: Place
    forward: int  # of a gradient: the number of the operation that it belongs to; else -1
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    badness: int
    causes: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    evidence: Evidence | None = None
    rows: Rows | None = None
    makes_nan: bool = False  # from numbers of which none was a NaN


class Recording:
    """Watches a step; afterwards `operations` are what ran and `maker` says which of them made a tensor."""

    def __init__(self, variables: Mapping[int, Value]) -> None:
        """`variables`: those that the step may read, by the identity of their handle."""
        self.operations: list[Operation] = []
        self.maker: dict[int, int] = {}  # tensor -> number of its operation
        self.bad_variables: dict[int, int] = {}  # handle -> number of the operation that left it bad
        self.unclear: set[int] = set()  # tensors from nowhere that may be a variable, read unseen
        self.unkept: dict[int, int] = {}  # what nobody named: handle of a variable, or tensor -> how bad
        self.is_cut = False
        self.failure: Exception | None = None
        self._variables = dict(variables)
        self._shapes = {(one.dtype, tuple(one.shape)) for one in variables.values() if one.trainable}
        self._badness: dict[int, int] = {}  # tensor -> how bad
        self._stack = Stack()
        self._is_busy = False
        self._n_evidence = 0
        self._last_forward = -1  # the gradients of a tape come in the reverse order of its operations

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every operation of this thread."""
        with every_operation(self._see):
            yield

    def badness(self, tensor: Value) -> int:
        """Return how bad a tensor is; looked at once."""
        identity = identity_of(tensor)
        known = self._badness.get(identity)
        if known is None:
            was_busy, self._is_busy = self._is_busy, True
            try:
                known = badness_of(tensor)
            finally:
                self._is_busy = was_busy
            if identity >= 0:
                self._badness[identity] = known
        return known

    def _see(self, kind: str, inputs: Value, outputs: Value) -> None:
        if self._is_busy or self.failure is not None:  # our own look at a tensor is not the user's step
            return
        if len(self.operations) >= MAX_OPERATIONS:
            self.is_cut = True
            return
        self._is_busy = True
        try:
            with untaped():
                self._record(kind, _tensors(inputs), _tensors(outputs))
        except Exception as error:  # raised here it would end the step in the middle
            self.failure = error
        finally:
            self._is_busy = False

    def _record(self, kind: str, inputs: list[Value], outputs: list[Value]) -> None:
        place, differentiated = self._stack.place(sys._getframe(1))
        number = len(self.operations)
        forward = self._forward_of(place, differentiated, inputs)
        self._note_unclear(inputs)
        written = inputs[0] if not outputs and inputs and inputs[0].dtype == tf.resource else None
        results = outputs if written is None else [_variable_value(written, inputs)]
        worst = max(map(self.badness, results), default=FINITE)
        operation = self._operation(number, kind, place, forward, inputs, results, worst)
        self.operations.append(operation)
        for output in outputs:
            self.maker[identity_of(output)] = number
        if written is not None:
            self._note_write(identity_of(written), number, worst)

    def _note_unclear(self, inputs: list[Value]) -> None:
        for tensor in inputs:
            if (tensor.dtype, tuple(tensor.shape)) in self._shapes and identity_of(tensor) not in self.maker:
                self.unclear.add(identity_of(tensor))

    def _forward_of(self, place: Place, differentiated: Differentiated | None, inputs: list[Value]) -> int:
        if place.direction != "backward":
            self._last_forward = len(self.operations)
            return -1
        found = -1 if differentiated is None else self._differentiated(differentiated)
        if found >= 0:
            self._last_forward = found
            return found
        if place.line is not None:  # in a gradient function of the user's own
            return -1
        makers = (self.maker.get(identity_of(tensor), -1) for tensor in inputs)
        return min((self._forward_or_self(maker) for maker in makers if maker >= 0), default=-1)

    def _differentiated(self, differentiated: Differentiated) -> int:
        for output in differentiated.outputs:
            if (maker := self.maker.get(identity_of(output), -1)) >= 0:
                return maker
        wanted = [identity_of(tensor) for tensor in differentiated.inputs]  # -1: not kept by the tape
        nearest = range(self._last_forward, max(-1, self._last_forward - MAX_LOOK_BACK), -1)
        for number in (number for number in nearest if number < len(self.operations)):
            operation = self.operations[number]
            if operation.kind == differentiated.kind and _agree(wanted, operation.inputs):
                return number
        return -1

    def _forward_or_self(self, number: int) -> int:
        operation = self.operations[number]
        return operation.forward if operation.place.direction == "backward" else number

    def _note_write(self, handle: int, number: int, worst: int) -> None:
        if worst == FINITE:
            self.bad_variables.pop(handle, None)
        else:
            self.bad_variables[handle] = number

    def _operation(
        self,
        number: int,
        kind: str,
        place: Place,
        forward: int,
        inputs: list[Value],
        results: list[Value],
        worst: int,
    ) -> Operation:
        made = tuple(map(identity_of, results))
        operation = Operation(number, kind, place, forward, tuple(map(identity_of, inputs)), made, worst)
        if worst == FINITE:
            return operation
        if kind in _READS:
            self._note_unkept(inputs[0], worst)
        bad = [tensor for tensor in inputs if self._is_bad(tensor)]
        result = next(result for result in results if self.badness(result) == worst)
        causes, leaves = self._explain(explaining(kind, inputs, bad, result))
        makes_nan = worst == NAN and all(self.badness(tensor) != NAN for tensor in bad)
        evidence = self._evidence(inputs, result) if makes_nan or not (causes or leaves) else None
        return replace(
            operation,
            causes=causes,
            leaves=leaves,
            evidence=evidence,
            makes_nan=makes_nan,
            rows=bad_rows(np.asarray(result)),
        )

    def _note_unkept(self, handle: Value, worst: int) -> None:
        """Take note of a variable that nobody named, and that this step has not written: a leaf."""
        identity = identity_of(handle)
        if identity not in self._variables and identity not in self.bad_variables:
            self.unkept[identity] = worst

    def _is_bad(self, tensor: Value) -> bool:
        if tensor.dtype != tf.resource:
            return self.badness(tensor) != FINITE
        handle = identity_of(tensor)
        if handle in self.bad_variables or handle in self.unkept:
            return True
        variable = self._variables.get(handle)
        return variable is not None and self.badness(variable) != FINITE

    def _explain(self, bad: list[Value]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        causes: list[int] = []
        leaves: list[int] = []
        for tensor in bad:
            identity = identity_of(tensor)
            maker = self.bad_variables.get(identity, self.maker.get(identity))
            if maker is None and tensor.dtype != tf.resource:
                identity = self._variable_like(tensor, identity)
                maker = self.bad_variables.get(identity)
            if maker is None and identity not in self._variables and tensor.dtype != tf.resource:
                self.unkept[identity] = self.badness(tensor)
            (leaves if maker is None else causes).append(identity if maker is None else maker)
        return tuple(dict.fromkeys(causes)), tuple(dict.fromkeys(leaves))

    def _variable_like(self, tensor: Value, identity: int) -> int:
        """Return the handle of the variable that was read as `tensor`: some reads are no operation."""
        array = np.asarray(tensor)
        for handle, variable in self._variables.items():
            if variable.dtype != tensor.dtype or variable.shape != tensor.shape:
                continue
            if np.asarray(variable.read_value()).tobytes() == array.tobytes():
                return handle
        return identity

    def _evidence(self, inputs: list[Value], result: Value) -> Evidence | None:
        if self._n_evidence >= MAX_EVIDENCE:
            return None
        self._n_evidence += 1
        shown = [tensor for tensor in inputs if tensor.dtype not in (tf.resource, tf.variant)]
        n_bad = int(bad_elements(np.asarray(result)).sum())
        operands = [operand(str(place), tensor) for place, tensor in enumerate(shown[:MAX_OPERANDS])]
        return Evidence(tuple(operands), operand("output", result), n_bad)


def _agree(wanted: list[int], given: tuple[int, ...]) -> bool:
    return all(want in (-1, got) for want, got in zip(wanted, given, strict=False))


def _tensors(values: Value) -> list[Value]:
    listed = values if isinstance(values, (list, tuple)) else [values]
    return [value for value in listed if isinstance(value, tf.Tensor)]


def _variable_value(handle: Value, inputs: list[Value]) -> Value:
    """Return the value that a variable has after it was written to; its kind is that of what was written."""
    floats = [tensor.dtype for tensor in inputs if tensor.dtype.is_floating or tensor.dtype.is_complex]
    if not floats:
        return tf.constant(0)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=floats[-1])
