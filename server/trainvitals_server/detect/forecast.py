"""Forecast: how many rows a rising loss has left before its number format ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

CLEAR_GAIN = 1.5  # a rate that grows by less may be noise
MAX_GAIN = 10.0
LIMIT_LOG10 = 38.53  # float32 ends here
FAR_ROWS = 200  # beyond it a forecast says nothing


def rows_to_limit(rises: Sequence[float]) -> float:
    """Return how many rows the loss has left before float32 ends, if it goes on rising like this.

    The growth is taken as geometric; where its rate itself grows, that growth is continued too.
    """
    heights = [math.log10(rise) for rise in rises if 0 < rise < math.inf][-4:]
    if len(heights) < 2:
        return math.inf
    rates = [b - a for a, b in pairwise(heights)]
    left, rate = LIMIT_LOG10 - heights[-1], rates[-1]
    if left <= 0:
        return 0.0
    if rate <= 0:
        return math.inf
    gains = [b / a if a > 0 else 1.0 for a, b in pairwise(rates)]
    gain = min(min(gains, default=1.0), MAX_GAIN)
    return _rows(left, rate, gain if gain >= CLEAR_GAIN else 1.0)


def _rows(left: float, rate: float, gain: float) -> float:
    rows = 0
    while left > 0 and rows < FAR_ROWS:
        rate *= gain
        left -= rate
        rows += 1
    return float(rows) if left <= 0 else math.inf
