"""Log branches: where the steps of a log fall back. A restart begins a branch, a row that came late does not.

Pure. Each series is looked at by itself, since logs may hold one series after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainvitals.wire import IntArray

LATE_ROWS = 16  # rows that threads write out of order are back in line within so many rows and strides
UNSORTED_SHARE = 3  # no run restarts at every third row: such a file was not sorted


@dataclass(frozen=True, slots=True)
class Split:
    """Rows at which branches begin, and whether rows of one branch are out of order."""

    starts: tuple[int, ...]
    is_disordered: bool = False


def split(series: Mapping[str, tuple[IntArray, IntArray]]) -> Split:
    """Return the branches of a log; `series` gives (rows, steps) of each, in the order of the file."""
    falls: dict[int, list[tuple[int, str]]] = {}
    for name, (rows, steps) in series.items():
        places = np.flatnonzero(np.diff(steps) < 0) + 1
        if UNSORTED_SHARE * len(places) > len(steps) > 2 and len(np.unique(steps)) == len(steps):
            return Split((0,), is_disordered=True)
        for place in places.tolist():
            falls.setdefault(int(rows[place]), []).append((place, name))
    starts, disordered = [0], False
    for row in sorted(falls):
        for place, name in falls[row]:
            rows, steps = series[name]
            if rows[place - 1] < starts[-1]:
                continue  # what it falls back from is of an earlier branch
            if _is_late(steps, place, int(np.searchsorted(rows, starts[-1]))):
                disordered = True
            else:
                starts.append(row)
                break
    return Split(tuple(starts), disordered)


def _is_late(steps: IntArray, place: int, begin: int) -> bool:
    """Whether the rows from `place` on fill holes and are soon back where the rows before had come."""
    before = steps[max(begin, place - 2 * LATE_ROWS) : place]
    after = steps[place : place + LATE_ROWS]
    peak, strides = before.max(), np.diff(steps)
    beyond = np.flatnonzero(after > peak)
    if not len(beyond) or np.isin(after[: beyond[0]], before).any():
        return False
    return bool(peak - after[: beyond[0]].min() <= LATE_ROWS * np.median(np.abs(strides)))


def bounds(starts: Sequence[int], rows: int) -> list[tuple[int, int]]:
    """Return (first row, row after the last) of each branch."""
    return list(zip(starts, [*starts[1:], rows], strict=True))
