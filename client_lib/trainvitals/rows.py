"""Rows: measured steps on their way from a probe to the sender, and the `Steps` frames made of them.

Values only. Dtypes are kept: a float64 stays a float64, a count stays an integer, a missing cell is a flag.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals import wire
from trainvitals.wire import BoolArray, Dtype, FloatArray, IntArray

Cells = tuple[npt.NDArray[Any], BoolArray | None]

FRAME_BYTES = 128 * 1024  # small frames: a slow socket is never blocked for long, a dropped one loses little
_LITTLE = sys.byteorder == "little"
_DTYPES: dict[str, Dtype] = {
    "float64": "f8", "float32": "f4", "float16": "f4", "bfloat16": "f4",
    "int64": "i8", "uint32": "i8", "int32": "i4", "int16": "i4", "uint16": "i4", "int8": "i4",
    "uint8": "u1", "bool": "u1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in increasing order of step; whoever hands them over does not touch the arrays again.

    A column is (values, present); present None means that every cell is there. Layer columns are
    `[rows, layers]` of the layout `layout_id`.
    """

    steps: IntArray
    times: FloatArray
    columns: Mapping[str, Cells] = field(default_factory=dict)
    layer_columns: Mapping[str, Cells] = field(default_factory=dict)
    layout_id: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows start .. stop - 1."""
        return Rows(
            self.steps[start:stop],
            self.times[start:stop],
            {name: _slice(cells, start, stop) for name, cells in self.columns.items()},
            {name: _slice(cells, start, stop) for name, cells in self.layer_columns.items()},
            self.layout_id,
        )

    @property
    def nbytes(self) -> int:
        """Return about how much memory the rows take, and how long their frame will be."""
        cells = [*self.columns.values(), *self.layer_columns.values()]
        return 16 * len(self.steps) + sum(values.nbytes for values, _ in cells)

    @property
    def is_finite(self) -> bool:
        """Return False when a present cell of a plain column is NaN or infinite."""
        floats = (cells for cells in self.columns.values() if cells[0].dtype.kind == "f")
        return all(
            np.isfinite(values if present is None else values[present]).all() for values, present in floats
        )


def join(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the same rows in as few pieces as can be: neighbours of one shape grow together.

    Raises:
        ValueError: if a column does not fit its steps.
    """
    group: list[Rows] = []
    shape: object = None
    for part in parts:
        if not len(part):
            continue
        _check_fit(part)
        part_shape = _shape(part)
        if group and part_shape != shape:
            yield _concatenate(group)
            group = []
        shape = part_shape
        group.append(part)
    if group:
        yield _concatenate(group)


def split(rows: Rows, frame_bytes: int = FRAME_BYTES) -> Iterator[Rows]:
    """Yield the same rows in pieces that each fit a frame: few enough, small enough, steps rising."""
    most = min(max(frame_bytes * len(rows) // max(rows.nbytes, 1), 1), wire.MAX_ROWS)
    is_fall = rows.steps[1:] <= rows.steps[:-1]
    if len(rows) <= most and not is_fall.any():
        yield rows  # the usual case
        return
    falls = np.flatnonzero(is_fall) + 1
    for start, stop in zip([0, *falls], [*falls, len(rows)], strict=True):
        for first in range(int(start), int(stop), most):
            yield rows.slice(first, min(first + most, int(stop)))


def to_frame(rows: Rows, seq: int) -> wire.Steps:
    """Return one frame of `rows`.

    Raises:
        ValueError: if there are more columns than a frame takes, steps out of range, or no numbers.
    """
    first, last, count = int(rows.steps[0]), int(rows.steps[-1]), len(rows)
    if not 0 <= first <= last <= wire.MAX_STEP:
        raise ValueError(f"steps {first} .. {last}; they count from 0")
    if len(rows.columns) + len(rows.layer_columns) > wire.MAX_COLUMNS:
        raise ValueError(f"{len(rows.columns) + len(rows.layer_columns)} series in one frame")
    columns = {_name(name): _pack(cells) for name, cells in rows.columns.items()}
    layer_columns = {_name(name): _pack(cells) for name, cells in rows.layer_columns.items()}
    is_run = last - first == count - 1
    return wire.Steps(
        seq=seq,
        first_step=first,
        count=count,
        layout_id=rows.layout_id,
        steps=None if is_run else rows.steps.astype("<i8").tobytes(),
        times=_pack((rows.times, None)),
        columns=columns,
        layer_columns=layer_columns,
    )


@lru_cache(maxsize=4096)
def _name(name: str) -> str:
    return wire.clip(name)


def _slice(cells: Cells, start: int, stop: int) -> Cells:
    values, present = cells
    return values[start:stop], None if present is None else present[start:stop]


def _pack(cells: Cells) -> wire.Column:
    values, present = cells
    dtype, is_as_it_is = _wire_dtype(values.dtype)
    if present is None and is_as_it_is:
        return wire.Column(dtype=dtype, data=values.tobytes())
    return wire.Column.pack(values, present, dtype)


@lru_cache(maxsize=64)
def _wire_dtype(dtype: np.dtype[Any]) -> tuple[Dtype, bool]:
    """Return as what numbers of `dtype` travel, and whether their bytes are those of the wire.

    Raises:
        ValueError: if they are no numbers.
    """
    name = dtype.name
    if name not in _DTYPES:
        raise ValueError(f"no column of {name}; use one of {', '.join(_DTYPES)}")
    found = _DTYPES[name]
    return found, _LITTLE and (dtype == np.dtype(found) or name == "bool")


def _shape(rows: Rows) -> object:
    return (
        rows.layout_id,
        [(name, values.dtype) for name, (values, _) in rows.columns.items()],
        [(name, values.dtype, values.shape[1:]) for name, (values, _) in rows.layer_columns.items()],
    )


def _check_fit(rows: Rows) -> None:
    count = len(rows.steps)
    if len(rows.times) != count:
        raise ValueError(f"{len(rows.times)} times for {count} steps")
    for columns, axes in ((rows.columns, 1), (rows.layer_columns, 2)):
        for name, (values, present) in columns.items():
            shape = values.shape
            if len(shape) != axes or shape[0] != count or not (present is None or present.shape == shape):
                raise ValueError(f"column {name!r} of shape {shape} for {count} steps")


def _concatenate(group: list[Rows]) -> Rows:
    first = group[0]
    if len(group) == 1:
        return first
    return Rows(
        np.concatenate([rows.steps for rows in group]),
        np.concatenate([rows.times for rows in group]),
        {name: _append([rows.columns[name] for rows in group]) for name in first.columns},
        {name: _append([rows.layer_columns[name] for rows in group]) for name in first.layer_columns},
        first.layout_id,
    )


def _append(cells: list[Cells]) -> Cells:
    values = np.concatenate([one for one, _ in cells])
    if all(present is None for _, present in cells):
        return values, None
    flags = [np.ones(one.shape, dtype=bool) if present is None else present for one, present in cells]
    return values, np.concatenate(flags)
