"""Young: the first rows of a run, before it knows its own noise.

Only what no noise explains counts here: a value beyond all proportion, or a rise that multiplies row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

YOUNG_ROWS = 8
ABSURD = 1e4  # times the largest value so far
SURE_ABSURD = 1e8  # where that is a single one: the loss of one sample may well be next to nothing
CHAIN_ROWS = 4  # rises in a row,
CHAIN_GROWTH = 3.0  # each this many times the one before,
CHAIN_REACH = 10.0  # the last one this many times the largest value before the chain
LONE_ROWS = 20  # rows after the first one that are all so much higher,
LONE_TIMES = 4.0  # by more than so many times its size,
LONE_MOST = 1e3  # (beyond it the first one may as well be a loss that happens to be near zero)
LONE_CLOSE = 1.5  # and in decades so much closer to each other than to it: the first one was before the harm
LEAST_ROWS = 5  # three values in ascending order are no rarity where a batch is one sample


def blown_up_since(values: Sequence[float]) -> int | None:
    """Return the index of the row in which the first rows began to blow up; None while they have not.

    Asked after each row; `values` are the rows up to now, all finite.
    """
    if len(values) < 2:
        return None
    before, now = values[:-1], values[-1]
    size = max(abs(value) for value in before)
    if now - min(before) >= ABSURD * size > 0:
        return len(values) - 1
    return _chain(values)


def is_sure(values: Sequence[float]) -> bool:
    """Return whether the rows that began to blow up leave no doubt; a single row before them may be odd."""
    return len(values) > 2 or values[1] - values[0] >= SURE_ABSURD * abs(values[0])


def left_the_first(values: Sequence[float]) -> bool:
    """Return whether a run has left its first row for another world before the second one was logged.

    Asked once, of the first row and `LONE_ROWS` more.
    """
    first, rises = values[0], [value - values[0] for value in values[1:]]
    low, high = min(rises), max(rises)
    if not 0 < LONE_TIMES * first <= low <= LONE_MOST * first:
        return False
    return math.log(low / first) >= LONE_CLOSE * math.log(high / low)


def _chain(values: Sequence[float]) -> int | None:
    if len(values) < LEAST_ROWS:
        return None
    before, chain = values[:-CHAIN_ROWS], values[-CHAIN_ROWS:]
    rises = [value - min(before) for value in chain]
    grows = rises[0] > 0 and all(b >= CHAIN_GROWTH * a for a, b in pairwise(rises))
    if not grows or rises[-1] < CHAIN_REACH * max(abs(value) for value in before):
        return None
    since = len(before)
    while since > 1 and values[since - 1] >= CHAIN_GROWTH * values[since - 2] > 0:
        since -= 1
    return since
