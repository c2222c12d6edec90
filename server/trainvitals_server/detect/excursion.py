"""Excursion: the rows since the loss left its band, and what they amount to.

Heights are those of `stats.LossBand`: 1 is as bad as the start of the run.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

import msgspec

from trainvitals_server.finding import Kind

LEAVE_HEIGHT = 0.5  # halfway back to the start: the row is outside the band
START_HEIGHT = 1.0  # as bad as the start
LOST_HEIGHT = 1.25  # clearly worse than where the run began
SEVERE_HEIGHT = 3.0  # no curriculum, no ramp, no restart does that
FAR_HEIGHT = 10.0  # not even a ramp goes there,
LANDED_HEIGHT = 100.0  # nor to this a harder task that one row leads to
APART_FROM_NOISE = 8.0  # where nothing but noise is known of a run, a long climb must lead here
CONVEX = 1.5  # it rises this much faster lately than over its whole life
CLIMB = 1.5  # it is this much higher than where it landed: another task has a level, a run-away has none
SCALE_FALL = 4.0  # the gradients have grown with the loss; a scaler that tries a larger scale halves it once
CREST = 0.9  # what runs away is at its highest; a walk is as often on its way down
LEAP_GROWTH = 3.0  # two severe rows, the second this many times the first: no noise does that
GREAT_LEAP = 30.0  # where the first of the two is merely high
ABSURD_HEIGHT = 1e8  # a single row is enough: no batch of sane data does that
APART_LEAP = 10.0  # times all that came before: what only scatters seldom does that;
APART_HEIGHT = 100.0  # rows that are all so high need no such leap
APART = 1.5  # times the decades that its rows lie apart from each other
MAX_ROWS_NEEDED = 20
CHANCE = 1e-6  # how unlikely it must be that so many high rows in a row are this run's usual noise
PRIOR_ROWS = 500  # one high row in so many is expected of any run
BACK_ROWS = 4  # rows inside the band that end it,
FEW_BACK_ROWS = 2  # or these where they lie far apart
FALLING_ROWS = 8  # an excursion that only falls gets this many rows to come back
RISING_GROWTH = 1.2  # the latest three rows against the first three
RISING_ROWS = 6
STAY_ROWS = 20  # everything learned is lost, and not for a moment
LOST_ROWS = 40  # nor does a harder task stay so far above everything and not become easier
STAY_HEIGHT = 0.8
STAY_SHARE = 0.95
PUT_SHARE = 0.8  # a loss that has come down by more is on its way back
JUMP_SHARE = 0.3  # the row before a jump was this much lower than the rows after it
CLIMBING_SHARE = 0.75
TOWER = 3.0
MEMORY = 24
RECENT = 4
HEAD = 8

Judgement = Literal["critical", "warning"]


class Excursion(msgspec.Struct):
    """State of one excursion. `before` is the height of the last row inside the band.

    `spacing` are the steps between that row and the first one outside.
    """

    onset_step: int
    before: float = 0.0
    rows: int = 0
    high_rows: int = 0
    dips: int = 0
    inside: int = 0
    peak: float = 0.0
    peak_row: int = 0
    peak_step: int = 0
    peak_value: float = 0.0
    steps: list[int] = []
    values: list[float] = []
    heights: list[float] = []
    head: list[float] = []
    spacing: int = 0
    back_step: int = 0
    last_step: int = 0
    scale_before: float = 0.0
    scale_fell: bool = False
    has_survived: bool = False  # losses that were not finite came and went meanwhile
    alarm: Kind | None = None
    warned: bool = False
    next_told: int = 0

    def add(self, step: int, value: float, height: float, *, is_inside: bool) -> None:
        """Take one more row."""
        self.rows += 1
        self.high_rows += height >= LOST_HEIGHT
        self.dips += is_inside
        self.inside = self.inside + 1 if is_inside else 0
        self.back_step = step if self.inside == 1 else self.back_step
        self.last_step = step
        self.steps = [*self.steps[1 - MEMORY :], step]
        self.values = [*self.values[1 - MEMORY :], value]
        self.heights = [*self.heights[1 - MEMORY :], height]
        if len(self.head) < HEAD:
            self.head.append(height)
        if height > self.peak:
            self.peak, self.peak_row = height, self.rows
            self.peak_step, self.peak_value = step, value

    @property
    def is_back(self) -> bool:
        """Whether it is over: so many rows inside the band, or fewer that cover as many steps.

        Rows that came `spacing` steps apart when it began may be few and far between in the excerpt of a log.
        """
        is_long = self.last_step - self.back_step >= BACK_ROWS * max(self.spacing, 1)
        return self.inside >= BACK_ROWS or (self.inside >= FEW_BACK_ROWS and is_long)

    def note_scale(self, scale: float) -> None:
        """Take the loss scale of a row."""
        self.scale_fell = self.scale_fell or scale <= self.scale_before / SCALE_FALL

    def judge(
        self, *, needed: int, tallest: float, has_learned: bool = True, is_young: bool = False
    ) -> Judgement | None:
        """Return what the rows so far amount to.

        `needed` high rows make a pattern in this run, `tallest` is the height it has come back from. A run
        that has learned nothing yet has only its noise to be measured by: one of two losses that fight, a
        GAN's, climbs out of that for long and is none the worse. Of a young one the few rows before a jump
        are no level that another task could differ from.
        """
        if self.inside:
            return None
        severe = SEVERE_HEIGHT if has_learned or self.rows <= MEMORY else APART_FROM_NOISE
        if self._is_absurd(tallest) or (self._stays_above(severe, needed) and self._runs_away(is_young)):
            return "critical"
        if self._stays_above(LOST_HEIGHT, needed) and self._rises():
            return "warning"
        if not self._stays(needed):
            return None
        is_lost = self.rows >= LOST_ROWS and min(self.heights) >= FAR_HEIGHT
        return "critical" if is_lost else "warning"

    def history(self) -> tuple[int, int]:
        """Return (high rows, rows) of its past, where it has dipped back into the band: a restless loss."""
        if not self.dips:
            return 0, 0
        recent = self.heights[-RECENT:]
        return self.high_rows - sum(height >= LOST_HEIGHT for height in recent), self.rows - len(recent)

    @property
    def is_rising(self) -> bool:
        """Whether its latest rows are higher than its first ones."""
        return median(self.heights) > RISING_GROWTH * median(self.head)

    @property
    def is_at_its_crest(self) -> bool:
        """Whether its highest row lies in its last quarter: wherever it is going, it is not there yet."""
        return self.peak_row > CLIMBING_SHARE * self.rows

    @property
    def leads_up(self) -> bool:
        """Whether it is far out, or has risen to where it is: what comes next grew out of it."""
        heights, risen = self.heights, max(START_HEIGHT, CREST * self.peak, RISING_GROWTH * self.heights[0])
        return len(heights) > 1 and heights[-1] >= min(SEVERE_HEIGHT, risen)

    @property
    def jumped(self) -> bool:
        """Whether most of the way was made in one row."""
        first = median(self.head[:3])
        return first >= self.peak / 2 and self.before <= JUMP_SHARE * first

    @property
    def towers(self) -> bool:
        """Whether its peak stands out from the rows around it: a spike on the way to another level."""
        return self.peak >= TOWER * max(median(self.heights), 0.0)

    @property
    def stays_put(self) -> bool:
        """Whether its latest rows are about as high as its first ones."""
        latest = self.heights[-HEAD:]
        return min(latest) >= LEAVE_HEIGHT and median(latest) >= PUT_SHARE * median(self.head)

    def stands_apart(self, needed: int, *, is_single: bool) -> bool:
        """Whether it is of another world than the few rows before it, or the single one.

        That is: no row has come down again, and its latest towers above all others, or `needed` rows are
        level or lie closer together than to those before. What scatters by orders of magnitude is none.
        """
        if self.dips:
            return False
        low, high, last = min(self.heights), max(self.heights), self.heights[-1]
        leap = LEAP_GROWTH if low >= APART_HEIGHT and not is_single else APART_LEAP
        if last >= leap * max(self.heights[:-1], default=0.0):
            return True
        is_close = low > 1 and math.log(low) >= APART * math.log(high / low)
        return self.rows >= needed and (is_close or low >= high - low)

    def _is_absurd(self, tallest: float) -> bool:
        now = self.heights[-1]
        if now >= ABSURD_HEIGHT:
            return True
        if now < self.peak or self.rows > MEMORY:
            return False  # it has been there before, or where it leaps from was its level for long
        last = self.heights[-2] if len(self.heights) >= 2 else 0.0
        leaps = last >= SEVERE_HEIGHT and now >= LEAP_GROWTH * max(last, tallest)
        return leaps or (last >= LOST_HEIGHT and now >= GREAT_LEAP * max(last, tallest))

    def _stays_above(self, limit: float, needed: int) -> bool:
        """Whether the latest row and `needed` of the last `needed + 1` are above the limit."""
        recent = self.heights[-needed - 1 :]
        return self.heights[-1] >= limit and sum(height >= limit for height in recent) >= needed

    def _runs_away(self, is_young: bool) -> bool:
        """Whether it goes on like this: neither on its way back, nor level, nor the even climb of a ramp."""
        if self._only_falls():
            return False
        far = FAR_HEIGHT if is_young else LANDED_HEIGHT
        if self.heights[-1] >= far or self.scale_fell:
            return True
        if self._has_landed():
            return False
        if self.rows <= MEMORY:
            return self.heights[-1] >= min(FAR_HEIGHT, CLIMB * max(self.head[:2]))
        now = fmean(self.heights[-HEAD:])
        if fmean(self.heights[-3:]) < CREST * self.peak:
            return False
        if self.heights[-1] >= FAR_HEIGHT:
            return True
        lately = (now - fmean(self.heights[:HEAD])) / (MEMORY - HEAD)
        overall = (now - fmean(self.head)) / (self.rows - HEAD)
        return lately >= CONVEX * max(overall, 0.0) and lately > 0

    def _has_landed(self) -> bool:
        """Whether one row made most of the way and the rows since stay where it went: another task."""
        rows = [self.before, *self.heights] if self.rows <= MEMORY else self.heights
        jumps = [place for place in range(1, len(rows)) if rows[place - 1] <= JUMP_SHARE * rows[place]]
        if not jumps or rows[jumps[-1]] < LOST_HEIGHT:
            return False
        return rows[-1] < CLIMB * max(rows[jumps[-1] : jumps[-1] + 2])

    def _only_falls(self) -> bool:
        heights = self.heights
        if self.rows > FALLING_ROWS:
            return heights[-1] < self.peak / 2 and fmean(heights[-3:]) < fmean(heights[-6:-3])
        return all(a > b for a, b in pairwise(heights))

    def _rises(self) -> bool:
        enough = self.rows >= RISING_ROWS and not self.dips
        return enough and fmean(self.heights[-3:]) >= RISING_GROWTH * fmean(self.head[:3])

    def _stays(self, needed: int) -> bool:
        rows = max(STAY_ROWS, needed)
        if self.rows < rows or min(self.heights[-rows:]) < STAY_HEIGHT:
            return False
        return median(self.heights[-HEAD:]) >= STAY_SHARE * median(self.head)


def rows_needed(high_rows: int, rows: int) -> int:
    """Return how many high rows in a row would be no chance in a run that has had `high_rows` of `rows`."""
    share = (1 + high_rows) / (PRIOR_ROWS + rows)
    if share >= 1:
        return MAX_ROWS_NEEDED
    return min(max(3, math.ceil(math.log(CHANCE) / math.log(share))), MAX_ROWS_NEEDED)
