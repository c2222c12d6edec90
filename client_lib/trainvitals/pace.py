"""Pace: how often the norm pass of a heavy model runs, so that it stays within the budget. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LONGEST_INTERVAL = 64  # steps: gradients that nobody looks at for longer tell of nothing in time
# What is measured now and then keeps this share of the budget where the norm pass could take all of it: it
# thins first, but a run without any of it could not be judged by its weights.
SHARE_OF_THE_REST = 0.1


def interval_for(pass_s: float, step_s: float, share: float) -> int:
    """Return every how many steps a pass of `pass_s` may run, a power of two; `step_s` is a step without it.

    It costs at most its part of `share` of the time then, unless that would make it come never.
    """
    if pass_s <= 0 or step_s <= 0:
        return 1
    allowed = (1 - SHARE_OF_THE_REST) * share * step_s
    if allowed * LONGEST_INTERVAL <= pass_s:
        return LONGEST_INTERVAL
    return 1 << max(0, math.ceil(math.log2(pass_s / allowed)))


def rest_of(share: float, *used: float) -> float:
    """Return what the shares `used` leave of `share` for what is measured now and then."""
    return max(SHARE_OF_THE_REST * share, share - sum(used))


def usual_step_s(seconds: Sequence[float], steps_per_execution: int) -> float:
    """Return how long a step usually takes, by what executions took; 0 where there are none."""
    return float(np.median(seconds)) / steps_per_execution if len(seconds) else 0.0
