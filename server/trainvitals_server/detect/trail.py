"""Trail: the levels that the loss has come through: where a rise began, and one that is below the band yet.

Levels are medians of `stats.BLOCK` rows. Of a long run the older ones are thinned.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

import msgspec

MAX_LEVELS = 64
WAY_SHARE = 0.1  # a rise began where the last tenth of the way up from the lowest level still lay ahead of it
JUMP_SHARE = 0.15  # where the last level before was lower than this share, it rose in one go
CREEP_LEVELS = 12  # a rise below the band needs so many levels,
CREEP_QUARTERS = 4  # in each quarter of which
CREEP_GROWTH = 1.8  # it grows by this factor at least: an even climb, or an even faster one, does not
CREEP_SIGMAS = 20.0  # and in all by so much noise,
CREEP_HEIGHT = 0.05  # and by this share of what the run has learned
CREEP_TIMES = 6.0  # it leads to so many times the level it left: a term that is annealed in does not
CREEP_BACK = 0.5  # once it has come down by more than this share, it was none


class Creep(msgspec.Struct, frozen=True):
    """A rise that multiplies: where it began, the level it left and the one it has reached."""

    onset_step: int
    floor: float
    level: float


class Trail(msgspec.Struct):
    """The levels so far; `steps` are those of the first row of each block."""

    levels: list[float] = []
    steps: list[int] = []
    low: float = math.inf

    def add(self, step: int, level: float) -> float:
        """Take one more level; return how far it is above the lowest one."""
        self.levels.append(level)
        self.steps.append(step)
        if level < self.low:
            self.low = level
        if len(self.levels) >= MAX_LEVELS:
            half = MAX_LEVELS // 2
            self.levels = self.levels[:half:2] + self.levels[half:]
            self.steps = self.steps[:half:2] + self.steps[half:]
        return level - self.low

    def turn(self, top: float, noise: float) -> int | None:
        """Return the step at which the rise to `top` began; None where it was a jump."""
        place, floor = self._floor(top, noise)
        if place is None or self.levels[-1] < floor + JUMP_SHARE * (top - floor):
            return None
        return self.steps[place + 1]

    def creep(self, noise: float, room: float) -> Creep | None:
        """Return the rise that multiplies, and goes on; None where there is none."""
        top = self.levels[-1]
        if top < min(self.levels) + max(CREEP_SIGMAS * noise, CREEP_HEIGHT * room):
            return None
        place, floor = self._floor(top, noise, share=0.0)
        if place is None or len(self.levels) - 1 - place < CREEP_LEVELS:
            return None
        first, last = self.steps[place + 1], self.steps[-1]
        ends = [last - part * (last - first) // CREEP_QUARTERS for part in range(CREEP_QUARTERS)]
        rises = [self.levels[bisect_right(self.steps, end) - 1] - floor for end in ends]
        if not 0 < CREEP_TIMES * floor <= top:
            return None
        if any(now < CREEP_GROWTH * before for now, before in pairwise(rises)):
            return None
        return Creep(first, floor, top)

    def _floor(self, top: float, noise: float, share: float = WAY_SHARE) -> tuple[int | None, float]:
        """Return the last place near the lowest level since the loss came down from `top`, and that level."""
        high = [place for place, level in enumerate(self.levels) if level >= top]
        below = [place for place in high if place < len(self.levels) - 1]
        start = below[-1] + 1 if below else 0
        window = self.levels[start:]
        if len(window) < 2:
            return None, top
        floor = min(window)
        near = floor + max(noise, share * (top - floor))
        place = max(place for place, level in enumerate(window) if level <= near)
        return (start + place if place < len(window) - 1 else None), floor
