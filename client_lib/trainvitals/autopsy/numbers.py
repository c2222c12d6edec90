"""How bad a tensor is, and what a report says of it: dtype, shape, range, counts. Values in, values out."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from trainvitals.autopsy.report import Operand
from trainvitals.probe.types import Value

FINITE, INFINITE, NAN = 0, 1, 2  # in the order in which badness wins: a NaN stays a NaN

Array = npt.NDArray[Value]
Bools = npt.NDArray[np.bool_]


def array_of(tensor: Value) -> Array | None:
    """Return the tensor's numbers, on the host and where possible not copied; None if it holds none."""
    dtype = getattr(tensor, "dtype", None)
    if not (getattr(dtype, "is_floating", False) or getattr(dtype, "is_complex", False)):
        return None
    return np.asarray(tensor)


def badness_of_array(array: Array) -> int:
    """Return the worst element of an array."""
    if bool(np.isfinite(array).all()):
        return FINITE
    return NAN if bool(np.isnan(array).any()) else INFINITE


def bad_elements(array: Array) -> Bools:
    """Return where an array is not finite; nowhere, for one of integers, text or objects."""
    if array.dtype.kind in "iubSUOMm" or array.dtype.names:
        return np.zeros(array.shape, np.bool_)
    return np.asarray(~np.isfinite(array))


def operand(name: str, tensor: Value) -> Operand:
    """Return what a report says of one tensor or array."""
    array = np.asarray(tensor)
    dtype = str(getattr(getattr(tensor, "dtype", None), "name", array.dtype))
    shape = tuple(int(size) for size in array.shape)
    if array.dtype.kind in "SUOMmb" or array.dtype.names:
        return Operand(name=name, dtype=dtype, shape=shape)
    if array.dtype.kind in "iu":
        low, high = _range(array)
        return Operand(name=name, dtype=dtype, shape=shape, min=low, max=high)
    return _of_floats(name, dtype, shape, array)


def _of_floats(name: str, dtype: str, shape: tuple[int, ...], array: Array) -> Operand:
    finite = np.isfinite(array)
    isnan = np.isnan(array)
    real = np.real(array)
    low, high = _range(real if bool(finite.all()) else real[finite])
    return Operand(
        name=name,
        dtype=dtype,
        shape=shape,
        min=low,
        max=high,
        n_nan=int(isnan.sum()),
        n_posinf=int((~finite & ~isnan & (real > 0)).sum()),
        n_neginf=int((~finite & ~isnan & (real <= 0)).sum()),
    )


def _range(array: Array) -> tuple[float | None, float | None]:
    if array.size == 0:
        return None, None
    low, high = float(array.min()), float(array.max())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
