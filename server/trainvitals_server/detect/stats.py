"""Streaming statistics: the loss band and the level of a positive series on a log scale.

Both learn in blocks of accepted rows, so that their reference stays constant within a block: the rows of a
block can be compared at once, and how a run is split into batches changes nothing.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean

import msgspec

BLOCK = 16  # rows that teach together; short enough to follow a fast start, long enough for a median
WARM_UP = 48  # until then every row teaches by itself
HEAD = 5  # rows whose median says where the run began
MEMORY = 16  # blocks whose noise is remembered
HISTORY = 64  # blocks that stand for the whole run, thinned as it grows
MAD_TO_SIGMA = 1.4826
FALL_SHARE = 3.0  # a restart rises at once and falls slowly
NOISE_RANGE = 16.0  # a run that has not learned yet is allowed this many sigma of room
GRAIN = 1e-3  # of its first value: a loss that stands still may be rounded to three digits
YOUNG_ROWS = 20  # a run this young knows no noise yet:
YOUNG_RANGE = 0.25  # it is allowed this share of its first value


class LossBand(msgspec.Struct):
    """Where the loss has been: its start, the best running median, its noise and how far it wandered.

    `height(x)` tells how far above the best a value is, in units of the whole range that this run has covered
    (its descent, or its own noise where there is none): 1 is as bad as the start. Scaling or shifting the
    loss does not change it, but for the first 20 rows, when only the first value can tell the scale.
    """

    rows: int = 0
    first: float = 0.0
    start: float = 0.0
    best: float = math.inf
    noise: float = 0.0
    wander: float = 0.0
    low: float = math.inf
    head: list[float] = []
    recent: list[float] = []
    block: list[float] = []
    noises: list[float] = []
    shifts: list[float] = []
    middles: list[float] = []

    def height(self, value: float) -> float:
        """Return how far `value` is above the best, as a multiple of the range covered so far."""
        return _ratio(value - self.best, self.range)

    def sigmas(self, value: float) -> float:
        """Return how far `value` is above the best, in units of the noise from row to row."""
        return _ratio(value - self.best, self.noise)

    @property
    def range(self) -> float:
        """The room that this run has used: descent or noise, and how far its level has wandered since."""
        room = max(self.start - self.best, NOISE_RANGE * self.noise)
        if self.rows < YOUNG_ROWS:
            room = max(room, YOUNG_RANGE * abs(self.first))
        return room + min(self.wander, room)

    @property
    def has_learned(self) -> bool:
        """Whether its range is that of a descent and not of mere noise; nobody knows while it is young."""
        return self.rows < YOUNG_ROWS or self.start - self.best >= 16 * self.noise

    def accept(self, value: float) -> None:
        """Learn from a finite value that is inside the band."""
        if not self.rows:
            self.first = self.start = self.best = value
        self.rows += 1
        if len(self.head) < HEAD:
            self.head.append(value)
            self.start = max(self.first, median(self.head))
        if self.rows <= WARM_UP:
            self._warm_up(value)
        self.block.append(value)
        if len(self.block) >= BLOCK:
            self._close_block()

    @property
    def room(self) -> int:
        """How many values the current block still takes; 0 while every row teaches by itself."""
        return BLOCK - len(self.block) if self.rows > WARM_UP else 0

    def take(self, values: list[float]) -> None:
        """Learn values that are far inside the band, at most as many as there is room for."""
        self.rows += len(values)
        self.block += values
        if len(self.block) >= BLOCK:
            self._close_block()

    def _warm_up(self, value: float) -> None:
        self.recent = [*self.recent[-BLOCK:], value]
        level = median(self.recent[-HEAD:])
        self.best = level if self.rows == HEAD else min(self.best, level)  # a single row is no level
        if len(self.recent) > 1:
            self.noise = self._noise(self.recent)

    def _noise(self, values: list[float]) -> float:
        """Return the scatter from row to row; where most rows repeat the one before, what the others say."""
        steps = [abs(b - a) for a, b in pairwise(values)]
        usual = median(steps) or fmean(steps)
        return MAD_TO_SIGMA * usual / math.sqrt(2) or GRAIN * abs(self.first)

    def _close_block(self) -> None:
        values = self.block
        middle = median(values)
        self.noises = [*self.noises[1 - MEMORY :], self._noise(values)]
        if self.middles:
            self.shifts = [*self.shifts[1 - MEMORY :], middle - self.middles[-1]]
        self.block = []
        if len(self.middles) >= 2:  # a level counts as wandered to once it is two blocks old
            self.low = min(self.low, self.middles[-2])
            self.wander = max(self.wander, self.middles[-2] - self.low)
        self.middles = [*self.middles[-2:], middle]
        if self.rows > WARM_UP:
            self.best = min(self.best, middle)
            self.noise = max(median(self.noises), self._usual_rise())

    def _usual_rise(self) -> float:
        """Return how much the level rises from block to block, where it rises and falls again all the time.

        No more than it falls: a level that only climbs is no noise, or a slow divergence would hide in it.
        """
        rises = [shift for shift in self.shifts if shift > 0]
        falls = [-shift for shift in self.shifts if shift < 0]
        if not falls or len(rises) < len(self.shifts) / 4:
            return 0.0
        return min(median(rises), FALL_SHARE * median(falls))


class LogLevel(msgspec.Struct):
    """The typical size of a positive series over the whole run, in decades.

    A median of block medians, and never less than where it began: a gradient that shrinks as the run learns
    may come back to its first size.
    """

    block: list[float] = []
    middles: list[float] = []
    stride: int = 1
    blocks: int = 0
    typical: float = math.nan
    first: float = -math.inf

    @property
    def is_known(self) -> bool:
        """Whether one block is complete."""
        return bool(self.middles)

    @property
    def room(self) -> int:
        """How many values the current block still takes."""
        return BLOCK - len(self.block)

    def take(self, values: list[float]) -> None:
        """Learn values (log10), at most as many as there is room for."""
        self.block += values
        if len(self.block) < BLOCK:
            return
        if not self.blocks:
            self.first = median(self.block)
        if self.blocks % self.stride == 0:
            self.middles.append(median(self.block))
        self.blocks += 1
        self.block = []
        if len(self.middles) >= HISTORY:
            self.middles = self.middles[::2]
            self.stride *= 2
        self.typical = max(self.first, median(self.middles))


def median(values: list[float]) -> float:
    """Return what `statistics.median` does, at half its price: several are taken in every block."""
    ordered = sorted(values)
    half, is_odd = divmod(len(ordered), 2)
    return ordered[half] if is_odd else (ordered[half - 1] + ordered[half]) / 2


def _ratio(rise: float, unit: float) -> float:
    if unit > 0:
        return rise / unit
    return math.inf if rise > 0 else 0.0
