"""Piling up: whether the first gradients of a run look like sums that are never set back to zero. Pure.

A sum of n gradients that point alike is n times the first: the norm grows evenly with the step while the
loss falls. In any other divergence the loss grows with it, and of healthy gradients the norm falls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainvitals_server.detect.origin import Origin

MIN_ROWS = 6
MIN_TIMES = 4.0  # so many times the first norm; below, it may be the noise of batches
STEADY = 0.97  # the least that a norm is of the one before
EVEN = (0.35, 1.3)  # of the number of steps since the first: the gradients turn while the loss falls
MAX_RISE = 1.1  # of the loss, from the first half of these rows to the second


@dataclass(frozen=True, slots=True)
class Pile:
    """Rows in which the norm grew evenly: from the first step to the last, and how many times the first."""

    first_step: int
    last_step: int
    times: float


def pile_of(origin: Origin) -> Pile | None:
    """Return how the gradients pile up from the first row on; None where they do not."""
    if len(origin.rows) < MIN_ROWS or origin.norm <= 0:
        return None
    steps, losses, norms = (np.asarray(column, dtype=np.float64) for column in zip(*origin.rows, strict=True))
    times, counts = norms / norms[0], steps - steps[0] + 1
    is_even = (times >= EVEN[0] * counts) & (times <= EVEN[1] * counts)
    is_steady = np.append(True, times[1:] >= STEADY * times[:-1])
    ends = np.flatnonzero(~(is_even & is_steady))
    rows = int(ends[0]) if len(ends) else len(times)
    half = rows // 2
    if rows < MIN_ROWS or times[rows - 1] < MIN_TIMES:
        return None
    if losses[half:rows].mean() > losses[:half].mean() + (MAX_RISE - 1) * abs(losses[:half].mean()):
        return None
    return Pile(int(steps[0]), int(steps[rows - 1]), float(times[rows - 1]))
