"""The first bad operation: from what ended up non-finite back to where it began. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainvitals.autopsy.numbers import FINITE
from trainvitals.autopsy.record import Operation, Recording
from trainvitals.autopsy.source import Line
from trainvitals.probe.types import Value

MAX_TAKEN = 1000
_SELECTING = frozenset({"Select", "SelectV2"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where it began: the operation that made it, or that first took a `leaf` which none here made."""

    operation: Operation
    leaf: int | None = None


def find_origin(recording: Recording, starts: Iterable[int], known: Iterable[int]) -> Origin | None:
    """Return the earliest origin of what the operations of the numbers `starts` made.

    `known` identifies tensors and variables that count as origins: parts of the batch, variables. A leaf
    that is neither is a constant of the user's, as a mask of -Infinity: then the operation counts that made a
    NaN of it, or took it.
    """
    path = _path(recording, starts)
    listed = frozenset(known)
    makers = [Origin(operation) for operation in path if not operation.causes and not operation.leaves]
    leaves = [Origin(one, leaf) for one in path for leaf in one.leaves if leaf in listed]
    found = makers + leaves
    if not found:
        found = [Origin(operation) for operation in path if operation.makes_nan]
    if not found:
        found = [Origin(operation) for operation in path if operation.leaves]
    return min(found, key=lambda origin: origin.operation.number, default=None)


def _path(recording: Recording, starts: Iterable[int]) -> list[Operation]:
    """Return every operation that has part in it, walking back along what was not finite."""
    seen: set[int] = set()
    waiting = list(starts)
    while waiting:
        number = waiting.pop()
        if number not in seen and recording.operations[number].badness != FINITE:
            seen.add(number)
            waiting.extend(recording.operations[number].causes)
    return [recording.operations[number] for number in seen]


def outcome_of(recording: Recording, starts: Iterable[int], origin: Operation) -> list[Operation]:
    """Return what became of an origin: itself, and in their order those on the path that it spoilt."""
    spoilt = {origin.number: origin}
    for operation in sorted(_path(recording, starts), key=lambda one: one.number):
        if any(cause in spoilt for cause in operation.causes):
            spoilt[operation.number] = operation
    return list(spoilt.values())


def roots_of(recording: Recording, operation: Operation) -> set[int]:
    """Return what identifies the tensors and variables that an operation was computed from."""
    roots: set[int] = set()
    seen: set[int] = set()
    waiting = [operation]
    while waiting:
        for tensor in waiting.pop().inputs:
            maker = recording.maker.get(tensor)
            if maker is None:
                roots.add(tensor)
            elif maker not in seen:
                seen.add(maker)
                waiting.append(recording.operations[maker])
    return roots


def leads_to(recording: Recording, start: int, operation: Operation) -> bool:
    """Tell whether `operation` is on the path of one start."""
    return any(one.number == operation.number for one in _path(recording, [start]))


def forward_of(recording: Recording, operation: Operation) -> Operation | None:
    """Return the operation of the forward pass whose gradient this is, through gradients of gradients."""
    seen = set()
    while operation.place.direction == "backward" and operation.forward >= 0:
        if operation.number in seen:
            return None
        seen.add(operation.number)
        operation = recording.operations[operation.forward]
    return operation if seen else None


def layers_of(recording: Recording, operation: Operation) -> tuple[Value, ...]:
    """Return the layers around an operation, or around the operation whose gradient it is."""
    if operation.place.direction != "backward":
        return operation.place.layers
    forward = forward_of(recording, operation) or _taker(recording, operation)
    return () if forward is None else forward.place.layers


def _taker(recording: Recording, operation: Operation) -> Operation | None:
    """Return the first operation of the forward pass that took a tensor which a gradient is made from."""
    taken: set[int] = set()
    waiting = [operation]
    while waiting and len(taken) < MAX_TAKEN:
        for tensor in waiting.pop().inputs:
            maker = recording.maker.get(tensor, -1)
            if maker >= 0 and recording.operations[maker].place.direction == "backward":
                if recording.operations[maker].forward < 0:
                    waiting.append(recording.operations[maker])
            else:
                taken.add(tensor)
    forward = (one for one in recording.operations if one.place.direction == "forward")
    return next((one for one in forward if one.place.layers and taken.intersection(one.inputs)), None)


def line_of(recording: Recording, operation: Operation) -> Line | None:
    """Return the user's line: its own, or that of the operation whose gradient it is."""
    if operation.place.line is not None:
        return operation.place.line
    forward = forward_of(recording, operation)
    return None if forward is None else forward.place.line


def is_unselected(recording: Recording, origin: Operation) -> bool:
    """Tell whether a `where` dropped on the way forward what this gradient is of, or this result."""
    if origin.place.direction == "forward":
        return _is_dropped(recording, origin)
    forward = forward_of(recording, origin)
    if forward is None or not (forward.badness != FINITE or _meets_zero(recording.operations, origin)):
        return False
    reached = set(forward.outputs)
    for operation in recording.operations[forward.number + 1 :]:
        if operation.place.direction == "backward":
            return False
        if reached.intersection(operation.inputs):
            if operation.kind in _SELECTING:
                return bool(reached.intersection(operation.inputs[1:]))
            reached.update(operation.outputs)
    return False


def _is_dropped(recording: Recording, origin: Operation) -> bool:
    """Tell whether what an operation of the forward pass spoilt ends where a `where` takes the other side."""
    spoilt = set(origin.outputs)
    for operation in recording.operations[origin.number + 1 :]:
        if operation.place.direction == "backward":
            return False
        if not spoilt.intersection(operation.inputs):
            continue
        if operation.badness != FINITE:
            spoilt.update(operation.outputs)
        elif operation.kind in _SELECTING:
            return True
    return False


def _meets_zero(operations: Sequence[Operation], origin: Operation) -> bool:
    """The gradient that came in was zero there: zero by zero, or zero times the Infinity of `origin`.

    A later operation's own zero, as the slope of `abs` at zero, is another matter.
    """
    if origin.makes_nan:
        return True
    takers = (one for one in operations[origin.number + 1 :] if origin.number in one.causes)
    return any(one.makes_nan and one.forward == origin.forward for one in takers)
