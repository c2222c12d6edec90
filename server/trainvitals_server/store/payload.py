"""The bytes of a stored block: raw rows of one series, or buckets of one level of its pyramid."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from trainvitals.wire import Column, Dtype, IntArray
from trainvitals_server.series import NO_STEP, Buckets, Points, Values

_STEP = "<i8"
_COUNT = "<u4"  # rows of a bucket, and how far into it its extremes are: below the widest level


class _Rows(msgspec.Struct, frozen=True, array_like=True):
    """Rows `first_step`, + 1, ... or those in `steps`; `layers` is 0 for a series without layers."""

    first_step: int
    count: int
    layers: int
    column: Column
    steps: bytes | None = None


class _Summaries(msgspec.Struct, frozen=True, array_like=True):
    """Buckets: `steps` [2, n], `values` [4, n(, layers)], `counts` [n], `cells` [6, n(, layers)]."""

    count: int
    layers: int
    dtype: str
    steps: bytes
    values: bytes
    counts: bytes
    cells: bytes


_rows_decoder = msgspec.msgpack.Decoder(_Rows)
_summaries_decoder = msgspec.msgpack.Decoder(_Summaries)


def encode_points(points: Points) -> bytes:
    """Return the bytes of raw rows; there is at least one."""
    steps = points.steps
    is_dense = int(steps[-1] - steps[0]) + 1 == len(steps)
    rows = _Rows(
        int(steps[0]),
        len(steps),
        _layers(points.values),
        Column.pack(points.values, points.present, cast(Dtype, points.values.dtype.str[1:])),
        None if is_dense else steps.astype(_STEP).tobytes(),
    )
    return msgspec.msgpack.encode(rows)


def decode_points(data: bytes) -> Points:
    """Return the rows that `encode_points` wrote."""
    rows = _rows_decoder.decode(data)
    if rows.steps is None:
        steps = np.arange(rows.first_step, rows.first_step + rows.count, dtype=np.int64)
    else:
        steps = np.frombuffer(rows.steps, dtype=_STEP).astype(np.int64)
    shape = _shape(rows.count, rows.layers)
    values, present = rows.column.unpack(rows.count * max(rows.layers, 1))
    return Points(steps, values.reshape(shape), present.reshape(shape))


def encode_buckets(buckets: Buckets) -> bytes:
    """Return the bytes of buckets of one width."""
    dtype = buckets.first.dtype.str[1:]
    offsets = [_offset(buckets, at) for at in (buckets.argmin, buckets.argmax)]
    numbers = [buckets.n_nan, buckets.n_posinf, buckets.n_neginf, buckets.n_missing]
    summaries = _Summaries(
        len(buckets),
        _layers(buckets.first),
        dtype,
        np.stack([buckets.step, buckets.last_step]).astype(_STEP).tobytes(),
        np.stack([buckets.first, buckets.last, buckets.min, buckets.max]).astype("<" + dtype).tobytes(),
        buckets.count.astype(_COUNT).tobytes(),
        np.stack([*offsets, *numbers]).astype(_COUNT).tobytes(),
    )
    return msgspec.msgpack.encode(summaries)


def decode_buckets(data: bytes) -> Buckets:
    """Return the buckets that `encode_buckets` wrote."""
    found = _summaries_decoder.decode(data)
    shape = _shape(found.count, found.layers)
    step, last_step = np.frombuffer(found.steps, dtype=_STEP).astype(np.int64).reshape(2, -1)
    first, last, low, high = np.frombuffer(found.values, dtype="<" + found.dtype).reshape(4, *shape)
    cells = np.frombuffer(found.cells, dtype=_COUNT).astype(np.int64).reshape(6, *shape)
    argmin, argmax, n_nan, n_posinf, n_neginf, n_missing = cells
    count = np.frombuffer(found.counts, dtype=_COUNT).astype(np.int64)
    buckets = Buckets(
        step, last_step, count, first, last, low, argmin, high, argmax, n_nan, n_posinf, n_neginf, n_missing
    )
    start, is_finite = step.reshape(_shape(found.count, found.layers and 1)), buckets.has_finite
    argmin[:] = np.where(is_finite, argmin + start, NO_STEP)
    argmax[:] = np.where(is_finite, argmax + start, NO_STEP)
    return buckets


def _offset(buckets: Buckets, at: IntArray) -> npt.NDArray[Any]:
    start = buckets.step.reshape(-1, *[1] * (at.ndim - 1))
    return np.where(at == NO_STEP, 0, at - start)


def _layers(values: Values) -> int:
    return 0 if values.ndim == 1 else int(values.shape[1])


def _shape(count: int, layers: int) -> tuple[int, ...]:
    return (count, layers) if layers else (count,)
