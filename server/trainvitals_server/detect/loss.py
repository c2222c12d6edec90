"""The loss against its own band: divergence, spikes, and what a non-finite loss is called.

Everything is relative to where this run has been (`stats.LossBand`); there is no fixed threshold on a loss.
Needs the series `loss`. It also reads the flags of a row whose loss is not finite (scaler, gradients,
inputs, labels, weights), but judges gradients and scaler nowhere: that is `gradient` and `scaler`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import Literal

import msgspec

from trainvitals_server.batch import Batch
from trainvitals_server.detect.rows import Row, read_rows
from trainvitals_server.detect.stats import WARM_UP, LossBand
from trainvitals_server.finding import Evidence, Finding, Kind, Severity

EARLY_ROWS = 20  # "within the first 20 updates" of immediate_blowup
FIRST_ROWS = 6  # a non-finite loss this early needs no further story
HEAD_ROWS = 8  # before it knows its noise, a run is outside only
HEAD_HEIGHT = 10.0  # when it is several times worse than its first value
LEAVE_HEIGHT = 0.5  # halfway back to the start, and
LEAVE_SIGMAS = 8.0  # far beyond the noise: the row is outside the band
LOST_HEIGHT = 1.25  # clearly worse than where the run began
LOST_ROWS = 3  # so many of the last four rows: no single bad batch
RECENT_ROWS = 4
FALLING_ROWS = 8  # an excursion that only falls gets this many rows to come back
LEAP_HEIGHT = 3.0  # two rows running this high, and
LEAP_GROWTH = 3.0  # the second this many times the first: no noise does that
ABSURD_HEIGHT = 1e8  # a single row is enough: no batch of sane data does that
YOUNG_ABSURD = 1e5  # in the first rows, against the first value
BACK_ROWS = 4  # rows inside the band that end an excursion
PERSIST_ROWS = 30  # an excursion this long is no spike
RISING_FACTOR = 1.1
RISING_ROWS = 200  # an excursion that rises is followed this long before its level counts as a new normal
FAR_HEIGHT = 10.0  # "far above the start"
SPIKE_HEIGHT = 1.0  # what is worth telling once it is over
SPIKE_GROWTH = 2.0  # taller than those that this run has come back from
FORGET = 0.9  # with each new one the old ones count less
BACK_AT_START = 0.8  # everything learned so far is lost,
BACK_AT_START_ROWS = 12  # and not for a moment
FAST_ROWS = 20  # warnings shorter than this are "fast"
CLEAR_GAIN = 1.5  # a rate that grows by less may be noise
LIMIT_LOG10 = 38.53  # float32 ends here
STORY_ROWS = 8


class Excursion(msgspec.Struct):
    """The rows since the loss left its band."""

    onset_step: int
    rows: int = 0
    inside: int = 0
    peak: float = 0.0
    peak_step: int = 0
    peak_value: float = 0.0
    steps: list[int] = []
    values: list[float] = []
    heights: list[float] = []
    alarm: Kind | None = None
    warned: bool = False
    first_heights: list[float] = []

    @property
    def is_rising(self) -> bool:
        """Whether its latest rows are higher than its first ones."""
        return median(self.heights) > RISING_FACTOR * median(self.first_heights)

    @property
    def jumped(self) -> bool:
        """Whether most of the way was made in the first rows."""
        return max(self.first_heights[:3]) >= self.peak / 2


class LossFold(msgspec.Struct):
    """Folds the loss, row by row."""

    rows: int = 0
    band: LossBand = msgspec.field(default_factory=LossBand)
    excursion: Excursion | None = None
    last_step: int = 0
    last_value: float = math.nan
    poisoned_step: int | None = None
    poisoned_rows: int = 0
    clean_rows: int = 0
    tallest: float = 0.0

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about the loss."""
        findings: list[Finding] = []
        for row in read_rows(batch, "loss"):
            if math.isfinite(row.value):
                self._finite(row, findings)
            else:
                self._nonfinite(row, findings)
            self.rows += 1
            self.last_step, self.last_value = row.step, row.value
        return findings

    def _nonfinite(self, row: Row, findings: list[Finding]) -> None:
        self.poisoned_rows += 1
        self.clean_rows = 0
        if self.poisoned_step is not None:
            return
        self.poisoned_step = row.step
        kind, onset = self._name_nonfinite(row)
        before = () if not self.rows else (
            Evidence(text=f"the row before it was {self.last_value:.4g}, at step {self.last_step}",
                     series="loss", step=self.last_step, value=self.last_value),
        )  # fmt: skip
        evidence = Evidence(
            text=f"the loss is {_spell(row.value)}", series="loss", step=row.step, value=row.value
        )
        findings.append(
            Finding(
                kind=kind, severity="critical", onset_step=onset, detected_step=row.step,
                nonfinite_step=row.step, evidence=(evidence, *before),
                facts={**self._band_facts(), **row.flags, "loss_nonfinite": True,
                       "previous_loss": self.last_value,
                       "previous_height": self.band.height(self.last_value) if self.rows else None,
                       "excursion_rows": self.excursion.rows if self.excursion else 0},
            )
        )  # fmt: skip

    def _name_nonfinite(self, row: Row) -> tuple[Kind, int]:
        if self.rows < FIRST_ROWS:
            return "immediate_blowup", row.step
        out = self.excursion
        if out is not None and out.alarm is None and out.rows >= 2 and out.inside == 0:
            return "fast_divergence", out.onset_step
        return "sudden_nan", row.step

    def _finite(self, row: Row, findings: list[Finding]) -> None:
        if self.poisoned_step is not None:
            self._after_nonfinite(row, findings)
        if self.excursion is None and not self._leaves(row.value):
            self.band.accept(row.value)
            return
        if self.excursion is None:
            self.excursion = Excursion(onset_step=row.step)
        self._follow(row, self.excursion, findings)

    def _after_nonfinite(self, row: Row, findings: list[Finding]) -> None:
        """A loss that is finite again for a while: the weights were not poisoned."""
        self.clean_rows += 1
        assert self.poisoned_step is not None
        if self.clean_rows < BACK_ROWS * 2:
            return
        text = (
            f"{self.poisoned_rows} row(s) had a non-finite loss; the {self.clean_rows} rows since are finite"
        )
        findings.append(
            Finding(
                kind="bad_batch", severity="warning", phase="resolve", onset_step=self.poisoned_step,
                detected_step=row.step, nonfinite_step=self.poisoned_step,
                evidence=(Evidence(text=text, series="loss", step=row.step, value=row.value),),
                facts={"nonfinite_rows": self.poisoned_rows, "weights_survived": True},
            )
        )  # fmt: skip
        self.poisoned_step, self.poisoned_rows, self.clean_rows = None, 0, 0

    def _leaves(self, value: float) -> bool:
        band = self.band
        if band.rows < HEAD_ROWS:
            return band.rows > 0 and band.height(value) >= HEAD_HEIGHT
        return band.height(value) >= LEAVE_HEIGHT and band.sigmas(value) >= LEAVE_SIGMAS

    def _follow(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        height = self.band.height(row.value)
        out.rows += 1
        out.steps = [*out.steps[1 - STORY_ROWS :], row.step]
        out.values = [*out.values[1 - STORY_ROWS :], row.value]
        out.heights = [*out.heights[1 - STORY_ROWS :], height]
        if len(out.first_heights) < STORY_ROWS:
            out.first_heights.append(height)
        if height > out.peak:
            out.peak, out.peak_step, out.peak_value = height, row.step, row.value
        inside = height < LEAVE_HEIGHT or self.band.sigmas(row.value) < LEAVE_SIGMAS
        out.inside = out.inside + 1 if inside else 0
        if out.inside >= BACK_ROWS:
            self._come_back(row, out, findings)
        elif out.alarm is None:
            self._judge(row, out, findings)

    def _judge(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        if out.inside == 0 and self._is_lost(out):
            out.alarm = self._name_divergence(out)
            findings.append(self._divergence(row, out, "critical"))
        elif not out.warned and self._is_back_at_start(out):
            out.warned = True
            findings.append(self._divergence(row, out, "warning"))
        elif out.rows >= PERSIST_ROWS and not (out.is_rising and out.rows < RISING_ROWS):
            if out.jumped and min(out.heights) >= LEAVE_HEIGHT and not out.warned:
                findings.append(self._spike(row, out, "persisted"))
            self._rebase(out)

    def _is_lost(self, out: Excursion) -> bool:
        heights = out.heights
        now = heights[-1]
        if self.rows < EARLY_ROWS // 4 and now >= YOUNG_ABSURD:
            return True
        if now >= ABSURD_HEIGHT:
            return True
        if len(heights) >= 2 and heights[-2] >= LEAP_HEIGHT and now >= LEAP_GROWTH * heights[-2]:
            return True
        high = sum(height >= LOST_HEIGHT for height in heights[-RECENT_ROWS:])
        if high < LOST_ROWS or now < LOST_HEIGHT:
            return False
        falls = out.peak == max(heights) and all(a > b for a, b in pairwise(heights))
        return not falls or (len(heights) >= FALLING_ROWS and now > out.peak / 2)

    def _is_back_at_start(self, out: Excursion) -> bool:
        high = out.rows >= BACK_AT_START_ROWS and min(out.heights) >= BACK_AT_START
        return high and self.rows >= WARM_UP and median(out.heights) >= median(out.first_heights)

    def _name_divergence(self, out: Excursion) -> Kind:
        left = self._rows_left(out)
        if self.rows < EARLY_ROWS:
            steady = all(a < b for a, b in pairwise(out.values))
            far = out.peak >= FAR_HEIGHT and not steady
            return "immediate_blowup" if left <= FAST_ROWS or far else "gradual_divergence"
        return "fast_divergence" if left <= FAST_ROWS else "gradual_divergence"

    def _rows_left(self, out: Excursion) -> float:
        heights = [self.band.range, *(value - self.band.best for value in out.values)]
        return rows_to_limit(heights)

    def _divergence(self, row: Row, out: Excursion, severity: Severity) -> Finding:
        times = f"{out.heights[-1]:.3g} times its whole range so far above its best"
        story = ", ".join(f"{value:.4g}" for value in out.values)
        return Finding(
            kind=out.alarm or "gradual_divergence", severity=severity, onset_step=out.onset_step,
            detected_step=row.step,
            evidence=(
                Evidence(text=f"the loss is {row.value:.4g}: {times} ({self.band.best:.4g})",
                         series="loss", step=row.step, value=row.value),
                Evidence(text=f"since step {out.onset_step}: {story}", series="loss", step=out.onset_step,
                         value=out.values[0]),
            ),
            facts={**self._band_facts(), "height": out.heights[-1], "excursion_rows": out.rows,
                   "rows_to_limit": self._rows_left(out), "loss": row.value},
        )  # fmt: skip

    def _come_back(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        if out.alarm is not None or out.warned:
            text = f"the loss is back at {row.value:.4g} since {out.inside} rows"
            findings.append(
                Finding(
                    kind=out.alarm or "gradual_divergence", severity="critical", phase="withdraw",
                    onset_step=out.onset_step, detected_step=row.step,
                    evidence=(Evidence(text=text, series="loss", step=row.step, value=row.value),),
                )
            )  # fmt: skip
        elif self._is_worth_telling(out):
            findings.append(self._spike(row, out, "recovered"))
        self.tallest = max(self.tallest * FORGET, out.peak)
        self.excursion = None

    def _is_worth_telling(self, out: Excursion) -> bool:
        """A run that spikes all the time has told it once; the very first steps are restless anyway."""
        return self.rows >= EARLY_ROWS and out.peak >= max(SPIKE_HEIGHT, SPIKE_GROWTH * self.tallest)

    def _spike(self, row: Row, out: Excursion, outcome: Literal["recovered", "persisted"]) -> Finding:
        text = f"the loss jumped to {out.peak_value:.4g}; its best level was {self.band.best:.4g}"
        return Finding(
            kind="loss_spike", severity="info" if outcome == "recovered" else "warning",
            phase="resolve" if outcome == "recovered" else "open",
            onset_step=out.onset_step, detected_step=row.step,
            evidence=(Evidence(text=text, series="loss", step=out.peak_step, value=out.peak_value),),
            facts={**self._band_facts(), "outcome": outcome, "height": out.peak, "peak": out.peak_value,
                   "peak_step": out.peak_step, "excursion_rows": out.rows},
        )  # fmt: skip

    def _rebase(self, out: Excursion) -> None:
        """The loss stays on another level: from here on that is its band."""
        for value in out.values:
            self.band.accept(value)
        self.excursion = None

    def _band_facts(self) -> dict[str, float | int | str | bool | None]:
        band = self.band
        if not band.rows:
            return {}
        return {"best": band.best, "start": band.start, "noise": band.noise, "rows_before": self.rows}


def rows_to_limit(rises: list[float]) -> float:
    """Return how many rows the loss has left before float32 ends, if it goes on rising like this.

    The growth is taken as geometric; where its rate itself grows, that growth is continued too.
    """
    heights = [math.log10(rise) for rise in rises if rise > 0]
    if len(heights) < 2:
        return math.inf
    tail = heights[-4:]
    rates = [b - a for a, b in pairwise(tail)]
    rate = rates[-1]
    left = LIMIT_LOG10 - heights[-1]
    if rate <= 0:
        return math.inf
    if left <= 0:
        return 0.0
    gains = [b / a if a > 0 else 1.0 for a, b in pairwise(rates)]
    gain = min(gains, default=1.0)
    gain = gain if gain >= CLEAR_GAIN else 1.0
    rows = 0.0
    while left > 0 and rows < 10 * FAST_ROWS:
        rate *= min(max(gain, 1.0), 10.0)
        left -= rate
        rows += 1
    return rows if left <= 0 else math.inf


def _spell(value: float) -> str:
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
