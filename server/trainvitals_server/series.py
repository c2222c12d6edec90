"""Series: rows of one series, and the pyramid of buckets that summarises them without losing a spike.

A bucket keeps the first, last, smallest and largest value of its rows and counts NaN, +Inf, -Inf and
missing apart. Buckets merge into coarser ones, so every zoom is made from some level of the pyramid. Values
only: nothing here reads a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from trainvitals.wire import BoolArray, IntArray

LEVEL_STEPS = (1, 64, 512, 4096, 32_768, 262_144)  # steps of one bucket, by level; level 0 is the raw rows
NEVER = 1 << 62  # beyond every step
NO_STEP = -1  # the argmin of a bucket without a finite value
POINTS_PER_BUCKET = 2  # a bucket is drawn as its smallest and its largest value
_AFTER_ALL = np.iinfo(np.int64).max

Values = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Points:
    """Rows of one series in increasing order of step: values `[rows]`, or `[rows, layers]`.

    The value of a cell that is not `present` means nothing.
    """

    steps: IntArray
    values: Values
    present: BoolArray

    def __len__(self) -> int:
        return len(self.steps)

    def between(self, start: int, stop: int) -> Points:
        """Return the rows of the steps start .. stop - 1."""
        low, high = np.searchsorted(self.steps, [start, stop])
        return Points(self.steps[low:high], self.values[low:high], self.present[low:high])

    def widen(self, at: Sequence[int], layers: int) -> Points:
        """Return the rows with `layers` columns, the present ones at the places `at`, the others missing."""
        missing = np.zeros((len(self), layers), dtype=bool)
        return Points(self.steps, _place(self.values, at, missing), _place(self.present, at, missing))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Summaries of consecutive stretches of rows, as columns `[buckets]` or `[buckets, layers]`.

    `min`, `max` and their steps are over finite values (`has_finite`); `first` and `last` are over present
    ones (`has_value`) and may be non-finite. Elsewhere these columns mean nothing.
    """

    step: IntArray
    last_step: IntArray
    count: IntArray
    first: Values
    last: Values
    min: Values
    argmin: IntArray
    max: Values
    argmax: IntArray
    n_nan: IntArray
    n_posinf: IntArray
    n_neginf: IntArray
    n_missing: IntArray

    def __len__(self) -> int:
        return len(self.step)

    @property
    def has_value(self) -> BoolArray:
        """Where a bucket holds any value at all."""
        return self.n_missing < _column(self.count, self.n_missing)

    @property
    def has_finite(self) -> BoolArray:
        """Where a bucket holds a finite value."""
        others = self.n_missing + self.n_nan + self.n_posinf + self.n_neginf
        return others < _column(self.count, self.n_missing)

    def take(self, where: slice | IntArray) -> Buckets:
        """Return some of the buckets."""
        return Buckets(*(column[where] for column in _columns(self)))

    def between(self, start: int, stop: int) -> Buckets:
        """Return the buckets that begin at the steps start .. stop - 1."""
        low, high = np.searchsorted(self.step, [start, stop])
        return self.take(slice(low, high))

    def widen(self, at: Sequence[int], layers: int) -> Buckets:
        """Return the buckets with `layers` columns, the present ones at `at`, the others all missing."""
        missing = np.repeat(self.count[:, np.newaxis], layers, axis=1)
        nothing, nowhere = np.zeros_like(missing), np.full_like(missing, NO_STEP)
        return Buckets(
            step=self.step,
            last_step=self.last_step,
            count=self.count,
            first=_place(self.first, at, nothing),
            last=_place(self.last, at, nothing),
            min=_place(self.min, at, nothing),
            argmin=_place(self.argmin, at, nowhere),
            max=_place(self.max, at, nothing),
            argmax=_place(self.argmax, at, nowhere),
            n_nan=_place(self.n_nan, at, nothing),
            n_posinf=_place(self.n_posinf, at, nothing),
            n_neginf=_place(self.n_neginf, at, nothing),
            n_missing=_place(self.n_missing, at, missing),
        )


_columns = attrgetter(*(field.name for field in fields(Buckets)))


def concat_points(parts: Sequence[Points]) -> Points:
    """Return the rows of all `parts`, in order of step; of two rows of one step the later part's wins."""
    steps = np.concatenate([part.steps for part in parts])
    values = np.concatenate([part.values for part in parts])
    present = np.concatenate([part.present for part in parts])
    if np.all(steps[1:] > steps[:-1]):
        return Points(steps, values, present)
    order = np.argsort(steps, kind="stable")
    kept = order[np.flatnonzero(np.diff(steps[order], append=_AFTER_ALL))]
    return Points(steps[kept], values[kept], present[kept])


def concat_buckets(parts: Sequence[Buckets]) -> Buckets:
    """Return the buckets of all `parts`, in order of step."""
    if len(parts) == 1:
        return parts[0]
    found = Buckets(*map(np.concatenate, zip(*map(_columns, parts), strict=True)))
    if np.all(found.step[1:] >= found.step[:-1]):
        return found
    return found.take(np.argsort(found.step, kind="stable"))


def as_buckets(points: Points) -> Buckets:
    """Return each row as a bucket of its own."""
    values = points.values if points.values.dtype.kind == "f" else points.values.astype(np.float64)
    present = points.present
    finite = present & np.isfinite(values)
    at = np.where(finite, _column(points.steps, values), NO_STEP)
    return Buckets(
        step=points.steps,
        last_step=points.steps,
        count=np.ones(len(points), dtype=np.int64),
        first=values,
        last=values,
        min=values,
        argmin=at,
        max=values,
        argmax=at,
        n_nan=(present & np.isnan(values)).astype(np.int64),
        n_posinf=(present & np.isposinf(values)).astype(np.int64),
        n_neginf=(present & np.isneginf(values)).astype(np.int64),
        n_missing=(~present).astype(np.int64),
    )


def bucketize(points: Points, width: int) -> Buckets:
    """Return the rows in buckets of `width` steps, aligned to step 0."""
    return coarsen(as_buckets(points), width)


def coarsen(buckets: Buckets, width: int) -> Buckets:
    """Merge the buckets whose first steps share a window of `width` steps, aligned to step 0.

    `width` must be a multiple of the width that each bucket has.
    """
    if len(buckets) == 0 or width == 1:
        return buckets
    windows = buckets.step // width
    starts = np.append(0, np.flatnonzero(windows[1:] != windows[:-1]) + 1)
    return buckets if len(starts) == len(buckets) else _merge(buckets, starts)


def _merge(buckets: Buckets, starts: IntArray) -> Buckets:
    ends = np.append(starts[1:], len(buckets)) - 1
    lengths = ends - starts + 1
    finite, valued = buckets.has_finite, buckets.has_value
    rows = _column(np.arange(len(buckets)), buckets.first)
    first = np.minimum.reduceat(np.where(valued, rows, len(buckets) - 1), starts, axis=0)
    last = np.maximum.reduceat(np.where(valued, rows, 0), starts, axis=0)
    low = np.minimum.reduceat(np.where(finite, buckets.min, np.inf), starts, axis=0)
    high = np.maximum.reduceat(np.where(finite, buckets.max, -np.inf), starts, axis=0)

    def earliest(steps: IntArray, values: Values, extreme: Values) -> IntArray:
        holds = finite & (values == np.repeat(extreme, lengths, axis=0))
        found = np.minimum.reduceat(np.where(holds, steps, _AFTER_ALL), starts, axis=0)
        return np.where(found == _AFTER_ALL, NO_STEP, found)

    def total(counts: IntArray) -> IntArray:
        return np.add.reduceat(counts, starts, axis=0)

    return Buckets(
        step=buckets.step[starts],
        last_step=buckets.last_step[ends],
        count=total(buckets.count),
        first=np.take_along_axis(buckets.first, first, axis=0),
        last=np.take_along_axis(buckets.last, last, axis=0),
        min=low,
        argmin=earliest(buckets.argmin, buckets.min, low),
        max=high,
        argmax=earliest(buckets.argmax, buckets.max, high),
        n_nan=total(buckets.n_nan),
        n_posinf=total(buckets.n_posinf),
        n_neginf=total(buckets.n_neginf),
        n_missing=total(buckets.n_missing),
    )


def level_for(span: int, pixels: int) -> int:
    """Return the coarsest level of the pyramid whose buckets are no wider than a pixel of `span` steps."""
    return max(level for level, size in enumerate(LEVEL_STEPS) if level == 0 or size * pixels <= span)


def select(buckets: Buckets, pixels: int, size: int) -> Buckets:
    """Merge buckets of (at most) `size` steps until at most `pixels` are left: 2 points for each pixel.

    Nothing is thinned out: each row is in exactly one bucket of the result.
    """
    if len(buckets) <= pixels:
        return buckets
    span = int(buckets.last_step[-1] - buckets.step[0]) + 1
    # An unaligned span touches one window more than it fills, hence the - 1.
    width = -(-span // max(pixels - 1, 1))
    return coarsen(buckets, -(-width // size) * size)


def _place(cells: Values, at: Sequence[int], elsewhere: Values) -> Values:
    found = elsewhere.astype(cells.dtype)
    found[:, list(at)] = cells
    return found


def _column(numbers: IntArray, like: Values) -> IntArray:
    return numbers if like.ndim == 1 else numbers[:, np.newaxis]
