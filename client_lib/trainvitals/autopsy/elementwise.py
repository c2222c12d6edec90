"""Which non-finite inputs explain a non-finite output, element by element where that can be told.

A mask of -Infinity beside a NaN, the side of a `where` that was not selected, a divisor of Infinity: they
are not finite either, but they are not why.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainvitals.autopsy.numbers import Array, Bools, array_of, bad_elements
from trainvitals.probe.types import Value

_ELEMENTWISE = frozenset(
    {
        "Add",
        "AddV2",
        "AddN",
        "Sub",
        "Mul",
        "MulNoNan",
        "Div",
        "DivNoNan",
        "RealDiv",
        "Maximum",
        "Minimum",
        "Pow",
    }
    | {"SquaredDifference", "Xlogy", "Xlog1py", "Xdivy", "Atan2", "FloorMod"}
)
_SELECTING = frozenset({"Select", "SelectV2"})


def explaining(kind: str, inputs: Sequence[Value], bad: Sequence[Value], result: Value) -> list[Value]:
    """Return those of the `bad` inputs that explain the bad elements of `result`; all where it is unclear."""
    array = array_of(result)
    if array is None or len(bad) < 1:
        return list(bad)
    if kind in _SELECTING and len(inputs) == 3:
        return _selected(inputs, bad, array) or list(bad)
    if kind in _ELEMENTWISE:
        return _touching(bad, array) or list(bad)
    return _worst(bad, array)


def _selected(inputs: Sequence[Value], bad: Sequence[Value], result: Array) -> list[Value]:
    chosen = np.asarray(inputs[0])
    if chosen.ndim == 1 < result.ndim and chosen.shape == result.shape[:1]:
        chosen = chosen.reshape((-1,) + (1,) * (result.ndim - 1))  # the older `Select` takes whole rows
    condition = _spread(chosen, result.shape)
    if condition is None:
        return []
    sides = ((inputs[1], condition), (inputs[2], ~condition))
    return [side for side, is_taken in sides if _is_in(side, bad) and _meets(side, is_taken, result.shape)]


def _touching(bad: Sequence[Value], result: Array) -> list[Value]:
    """A NaN explains a NaN; only where no input has one, infinities do."""
    isnan = np.isnan(result)
    nans = [tensor for tensor in bad if _meets(tensor, isnan, result.shape, only_nan=True)]
    if nans:
        return nans
    at = bad_elements(result)
    return [tensor for tensor in bad if _meets(tensor, at, result.shape)]


def _worst(bad: Sequence[Value], result: Array) -> list[Value]:
    if bool(np.isnan(result).any()):
        nans = [tensor for tensor in bad if _has_nan(tensor)]
        # A variable's handle cannot be looked into here: it stays a suspect.
        return nans + [tensor for tensor in bad if array_of(tensor) is None] or list(bad)
    return list(bad)


def _meets(tensor: Value, at: Bools, shape: tuple[int, ...], only_nan: bool = False) -> bool:
    array = array_of(tensor)
    if array is None:
        return not only_nan
    elements = _spread(np.isnan(array) if only_nan else bad_elements(array), shape)
    return elements is None or bool((elements & at).any())


def _spread(elements: Array, shape: tuple[int, ...]) -> Bools | None:
    try:
        return np.broadcast_to(elements.astype(np.bool_), shape)
    except ValueError:
        return None


def _has_nan(tensor: Value) -> bool:
    array = array_of(tensor)
    return array is not None and bool(np.isnan(array).any())


def _is_in(tensor: Value, tensors: Sequence[Value]) -> bool:
    return any(tensor is other for other in tensors)
