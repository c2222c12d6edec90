"""Forecast: when a rising loss, or a falling loss scale, meets the end of its number format.

Two views: rows left at the pace of the very last rows (what tells fast from gradual), and steps left with
their range, from a fit through all rows of the excursion (what a user plans with).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

CLEAR_GAIN = 1.5  # a rate that grows by less may be noise
MAX_GAIN = 10.0
FORECAST = "if it goes on like this"  # how its words begin
LIMIT_LOG10 = 38.53  # float32 ends here
HALF_LIMIT_LOG10 = 4.816  # and float16 here
FAR_ROWS = 200  # beyond it a forecast says nothing
LEAST_POINTS = 2
ERRORS = 2.0  # standard errors to either side
FEW_POINTS = 8.0  # a slope through three points may be anything: widened by so much over their number
MODEL_SHARE = 0.1  # nothing grows exactly like this
GAIN_SHARE = 2.0  # growth that gets faster may do so ever more quickly
SMALLEST_LOG2 = -149  # the smallest float32 above 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps left: the likely number and its range. `high` is infinite where it may as well never happen."""

    likely: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The range in words."""
        if not math.isfinite(self.high):
            return f"in about {self.likely:.0f} steps ({self.low:.0f} at the least)"
        return f"in about {self.likely:.0f} steps ({self.low:.0f} to {self.high:.0f})"


@dataclass(frozen=True, slots=True)
class _Line:
    now: float
    slope: float
    error: float


def steps_to_limit(
    steps: Sequence[int], rises: Sequence[float], limit_log10: float = LIMIT_LOG10
) -> Forecast | None:
    """Return when `rises` meet the limit if they go on like this; None where they do not rise.

    The growth is taken as geometric. Where it was faster lately than over all, it may go on getting faster.
    """
    points = [
        (step, math.log10(rise)) for step, rise in zip(steps, rises, strict=True) if 0 < rise < math.inf
    ]
    if len(points) < LEAST_POINTS:
        return None
    half = min(len(points), max(3, len(points) // 2))
    early, late = points[:half], points[-half:]
    lines = [_line(points), _line(late)]
    likely = lines[1].slope
    left = limit_log10 - max(points[-1][1], lines[1].now)
    if likely <= 0:
        return None
    if left <= 0:
        return Forecast(0.0, 0.0, 0.0)
    steepest = max(line.slope + line.error for line in lines)
    flattest = min(line.slope - line.error for line in lines)
    gain = GAIN_SHARE * max(likely - _line(early).slope, 0.0) / max(late[0][0] - early[0][0], 1)
    spacing = (points[-1][0] - points[0][0]) / (len(points) - 1)
    low = _time(left, steepest, gain) * (1 - MODEL_SHARE) - spacing
    high = left / flattest * (1 + MODEL_SHARE) + spacing if flattest > 0 else math.inf
    return Forecast(left / likely, max(low, 0.0), high)


def steps_to_scale(scale: float, halvings_per_step: float, log2: int = SMALLEST_LOG2) -> float:
    """Return in how many steps a loss scale that goes on halving like this is below 2 to the `log2`."""
    if scale <= 0 or halvings_per_step <= 0:
        return math.inf if scale > 0 else 0.0
    return max(math.log2(scale) - log2, 0.0) / halvings_per_step


def _line(points: Sequence[tuple[int, float]]) -> _Line:
    """Fit a line; its error is that of the slope, wide where there are few points."""
    middle, level = fmean(step for step, _ in points), fmean(value for _, value in points)
    spread = sum((step - middle) ** 2 for step, _ in points)
    if not spread:
        return _Line(level, 0.0, 0.0)
    slope = sum((step - middle) * (value - level) for step, value in points) / spread
    rest = sum((value - level - slope * (step - middle)) ** 2 for step, value in points)
    free = len(points) - 2
    if not free:
        return _Line(points[-1][1], slope, abs(slope) / 2)
    error = math.sqrt(rest / free / spread) * (ERRORS + FEW_POINTS / free)
    return _Line(level + slope * (points[-1][0] - middle), slope, error)


def _time(way: float, speed: float, gain: float) -> float:
    """Return how long `way` takes at a speed that grows by `gain` a step."""
    return 2 * way / (speed + math.sqrt(speed * speed + 2 * gain * way))


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
