"""The loss against its own band: divergence, spikes, and what a non-finite loss is called.

Everything is relative to where this run has been (`stats.LossBand`); there is no fixed threshold on a loss.
Needs the series `loss`. It also reads the flags of a row whose loss is not finite (scaler, gradients,
inputs, labels, weights), but judges gradients and scaler nowhere: that is `gradient` and `overflow`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np
from msgspec.structs import replace

from trainvitals_server.batch import Batch
from trainvitals_server.detect.excursion import LEAVE_HEIGHT, LOST_HEIGHT, Excursion, rows_needed
from trainvitals_server.detect.loss_told import (
    band_facts,
    creeps,
    divergence,
    left_behind,
    over,
    rows_left,
    spelled,
    spike,
)
from trainvitals_server.detect.outlook import outlook
from trainvitals_server.detect.recurrence import Recurrence, counted
from trainvitals_server.detect.rows import Row
from trainvitals_server.detect.stats import WARM_UP, LossBand
from trainvitals_server.detect.trail import CREEP_BACK, CREEP_SIGMAS, Creep, Trail
from trainvitals_server.detect.young import LONE_ROWS, YOUNG_ROWS, blown_up_since, is_sure, left_the_first
from trainvitals_server.finding import Evidence, Finding, Kind

EARLY_ROWS = 20  # "within the first 20 updates" of immediate_blowup
EARLY_STEPS = 1000  # of an excerpt: a few rows from here and there are no start
FIRST_ROWS = 6  # a non-finite loss this early needs no further story
LEAVE_SIGMAS = 8.0  # far beyond the noise; halfway back to the start is the other condition
YOUNG_HEIGHT = 5.0  # while a run is young it must be far higher,
YOUNG_SIGMAS = 100.0  # far beyond what noise it has shown,
YOUNG_NEEDED = 5  # and longer,
SINGLE_NEEDED = 20  # still longer where a single row says what is high
PLAIN_SHARE = 0.98  # rows so far below the edge of the band need no closer look
PERSIST_ROWS = 30  # an excursion this long is no spike
FOLLOW_ROWS = 200  # one that rises or was told is followed longer before its level is the new normal
NORMAL_FACTOR = 1.5  # what was once accepted as normal must be exceeded this far to be news
FAR_HEIGHT = 10.0  # "far above the start",
BEYOND_HEIGHT = 100.0  # and so far that it is one however evenly it got there
SPIKE_HEIGHT = 1.0  # what is worth telling once it is over
SPIKE_GROWTH = 2.0  # taller than those that this run has come back from
FORGET = 0.9  # with each new one the old ones count less
FAST_ROWS = 20  # warnings shorter than this are "fast"
STILL_HEIGHT = 2.0  # of whatever is above a loss that was always 0: high, but how high nobody can tell
MAX_COUNTED = 4096  # rows that tell how usual high ones are
LEAST_TOLD = 16  # rows of an excursion before its forecast is told anew


class LossFold(msgspec.Struct):
    """Folds the loss, row by row."""

    rows: int = 0
    band: LossBand = msgspec.field(default_factory=LossBand)
    trail: Trail = msgspec.field(default_factory=Trail)
    block_step: int = 0
    creep: Creep | None = None
    excursion: Excursion | None = None
    last_step: int = 0
    last_value: float = math.nan
    last_scale: float | None = None
    poisoned_step: int | None = None
    poisoned_rows: int = 0
    clean_rows: int = 0
    recurrence: Recurrence = msgspec.field(default_factory=Recurrence)
    tallest: float = 0.0
    high_rows: int = 0
    counted_rows: int = 0
    normal: float = 0.0
    back_step: int | None = None
    young: list[float] = []
    young_steps: list[int] = []

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about the loss."""
        findings: list[Finding] = []
        series = batch.columns.get("loss")
        if series is None:
            return findings
        there = np.flatnonzero(series.present)
        places = there.tolist()
        values = series.values[series.present].tolist()
        steps: list[int] = batch.steps[there].tolist()
        place = 0
        while place < len(values):
            plain = self._plain(values[place : place + self.band.room])
            if plain:
                if not self.band.block:
                    self.block_step = steps[place]
                self.band.take(plain)
                self._count(len(plain), 0)
                place += len(plain)
                last = Row(steps[place - 1], values[place - 1], places[place - 1], batch)
                self._pass(last, len(plain))
                if not self.band.block:
                    self._close_block(last, findings)
            else:
                self._row(Row(steps[place], values[place], places[place], batch), findings)
                place += 1
        return findings

    def _learn(self, step: int, value: float) -> bool:
        """Learn the value of a row; return whether it completes a block."""
        if not self.band.block:
            self.block_step = step
        self.band.accept(value)
        return not self.band.block

    def _close_block(self, row: Row, findings: list[Finding]) -> None:
        """Look for a rise that is still below the edge of the band, once a block is complete."""
        level = self.band.middles[-1]
        rise = self.trail.add(self.block_step, level)
        if self.creep is not None:
            if level > self.creep.level:
                self.creep = replace(self.creep, level=level)
            elif level < self.creep.level - CREEP_BACK * (self.creep.level - self.creep.floor):
                findings.append(over(row, self.creep.onset_step, f"the loss has come down to {level:.4g}"))
                self.creep = None
        elif rise >= CREEP_SIGMAS * self.band.noise and self.band.rows > WARM_UP:
            self.creep = self.trail.creep(self.band.noise, self.band.range)
            if self.creep is not None:
                findings.append(creeps(row, self.creep, self.band, self.rows))

    def _plain(self, values: list[float]) -> list[float]:
        """Return `values` where nothing in them can be news, else nothing.

        A margin keeps rounding out of it: these rows would be accepted one by one just the same.
        """
        if not values or self.excursion is not None or self.poisoned_step is not None:
            return []
        edge = self.band.best + PLAIN_SHARE * LEAVE_HEIGHT * self.band.range
        return values if all(map(math.isfinite, values)) and max(values) < edge else []

    def _row(self, row: Row, findings: list[Finding]) -> None:
        if math.isfinite(row.value):
            self._finite(row, findings)
        else:
            self._nonfinite(row, findings)
        self._pass(row, 1)

    def _pass(self, row: Row, rows: int) -> None:
        self.rows += rows
        self.last_step, self.last_value = row.step, row.value
        self.last_scale = row.loss_scale

    def _nonfinite(self, row: Row, findings: list[Finding]) -> None:
        self.poisoned_rows += 1
        was_finite, self.clean_rows = self.clean_rows > 0, 0
        is_new = self.poisoned_step is None
        self.recurrence.add(row.step, self.rows, is_new=is_new)
        if not is_new:
            findings += self.recurrence.told_again(row.step) if was_finite else ()
            return
        self.poisoned_step = row.step
        kind, onset = self._name_nonfinite(row)
        self.recurrence.name(kind, onset)
        before = () if not self.rows else (
            Evidence(text=f"at step {self.last_step} the loss was {self.last_value:.4g}",
                     series="loss", step=self.last_step, value=self.last_value),
        )  # fmt: skip
        evidence = Evidence(
            text=f"the loss is {spelled(row.value)} at step {row.step}",
            series="loss",
            step=row.step,
            value=row.value,
        )
        findings.append(
            Finding(
                kind=kind, severity="critical", onset_step=onset, detected_step=row.step,
                nonfinite_step=row.step, evidence=(evidence, *before),
                facts={**band_facts(self.band, self.rows), **row.flags, **self.recurrence.facts(),
                       "loss_nonfinite": True,
                       "previous_loss": self.last_value, "previous_step": self.last_step,
                       "loss_is": spelled(row.value),
                       "previous_height": self.band.height(self.last_value) if self.rows else None,
                       "excursion_rows": self.excursion.rows if self.excursion else 0},
            )
        )  # fmt: skip

    def _name_nonfinite(self, row: Row) -> tuple[Kind, int]:
        out = self.excursion
        if self.creep is not None:
            return "gradual_divergence", self.creep.onset_step
        if self.rows < FIRST_ROWS:
            return "immediate_blowup", out.onset_step if out is not None and out.warned else row.step
        if out is None or out.inside or out.has_survived:
            return "sudden_nan", row.step
        if out.alarm is not None or out.warned:
            return out.alarm or "gradual_divergence", out.onset_step
        if not out.leads_up or (out.rows > FAST_ROWS and not out.is_at_its_crest):
            return "sudden_nan", row.step  # a ramp or another task went on, and had nothing to do with it
        return "fast_divergence" if out.rows <= FAST_ROWS else "gradual_divergence", out.onset_step

    def _finite(self, row: Row, findings: list[Finding]) -> None:
        if self.poisoned_step is not None:
            self._after_nonfinite(row, findings)
        if self.excursion is None and len(self.young) <= LONE_ROWS:
            self._young(row, findings)
            if self.excursion is not None:
                return
        if self.excursion is None and not self._leaves(row.value):
            self._count(1, int(self.band.height(row.value) >= LOST_HEIGHT))
            if self._learn(row.step, row.value):
                self._close_block(row, findings)
            return
        if self.excursion is None:
            self.excursion = Excursion(
                onset_step=self._onset(row), before=self._height_before(),
                scale_before=self.last_scale or 0.0, warned=self.creep is not None,
                spacing=row.step - self.last_step if self.rows else 0,
            )  # fmt: skip
        self._follow(row, self.excursion, findings)

    def _onset(self, row: Row) -> int:
        """Return where the loss turned, if it climbed to the edge of the band and did not jump there."""
        if self.creep is not None:
            return self.creep.onset_step
        turn = self.trail.turn(row.value, self.band.noise) if self.trail.levels else None
        is_new = turn is not None and (self.back_step is None or turn > self.back_step)
        return turn if turn is not None and is_new else row.step

    def _height_before(self) -> float:
        return self.band.height(self.last_value) if math.isfinite(self.last_value) else 0.0

    def _young(self, row: Row, findings: list[Finding]) -> None:
        self.young.append(row.value)
        self.young_steps.append(row.step)
        if len(self.young) == self.rows + 1 == LONE_ROWS + 1 and left_the_first(self.young):
            findings.append(left_behind(row, self.young, self.young_steps))
        since = blown_up_since(self.young) if len(self.young) <= YOUNG_ROWS else None
        if since is None:
            return
        out = Excursion(
            onset_step=self.young_steps[since], spacing=self.young_steps[-1] - self.young_steps[-2]
        )
        for step, value in zip(self.young_steps[since:], self.young[since:], strict=True):
            out.add(step, value, self.band.height(value), is_inside=False)
        self.excursion = out
        if is_sure(self.young):
            self._alarm(row, out, findings)
        else:
            out.warned = True
            findings.append(divergence(row, out, self.band, self.rows, "warning", "immediate_blowup"))

    def _leaves(self, value: float) -> bool:
        band = self.band
        height, sigmas = band.height(value), band.sigmas(value)
        if band.rows < YOUNG_ROWS:
            return band.noise > 0 and height >= YOUNG_HEIGHT and sigmas >= YOUNG_SIGMAS
        return height >= max(LEAVE_HEIGHT, NORMAL_FACTOR * self.normal) and sigmas >= LEAVE_SIGMAS

    def _follow(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        height = self.band.height(row.value)
        height = height if self.band.range > 0 else min(height, STILL_HEIGHT)
        is_inside = height < LEAVE_HEIGHT or self.band.sigmas(row.value) < LEAVE_SIGMAS
        out.add(row.step, row.value, height, is_inside=is_inside)
        if row.loss_scale is not None:
            out.note_scale(row.loss_scale)
        if out.is_back:
            self._come_back(row, out, findings)
        elif out.alarm is None:
            self._judge(row, out, findings)
        elif out.rows >= out.next_told:
            self._foresee(row, out, findings)

    def _judge(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        high_rows, rows = out.history()
        needed = rows_needed(self.high_rows + high_rows, self.counted_rows + rows)
        is_young = self.band.rows < YOUNG_ROWS
        if is_young:
            needed = max(needed, YOUNG_NEEDED if self.band.rows > 1 else SINGLE_NEEDED)
        judgement = out.judge(
            needed=needed, tallest=self.tallest, has_learned=self.band.has_learned, is_young=is_young
        )
        if is_young and judgement == "critical":
            # The few rows before it may as well have been the odd ones.
            is_apart = out.stands_apart(needed, is_single=self.band.rows == 1)
            judgement = judgement if is_apart else None
        if judgement == "critical":
            self._alarm(row, out, findings)
        elif judgement == "warning" and not out.warned:
            out.warned = True
            findings.append(divergence(row, out, self.band, self.rows, "warning", "gradual_divergence"))
        elif self._has_settled(out):
            if out.jumped and out.stays_put and not out.warned:
                findings.append(spike(row, out, self.band, self.rows, "persisted"))
            elif out.towers and not out.warned and self._is_worth_telling(out):
                findings.append(spike(row, out, self.band, self.rows, "recovered"))
            self._rebase(out)

    @staticmethod
    def _has_settled(out: Excursion) -> bool:
        """Whether this level is the run's new normal."""
        if out.warned or out.is_rising:
            return out.rows >= FOLLOW_ROWS and not out.is_at_its_crest
        return out.rows >= PERSIST_ROWS

    def _foresee(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        """Tell an open divergence's forecast anew, each time that it is twice as long as when last told."""
        out.next_told = 2 * out.rows
        ahead, numbers = outlook(row, out, self.band.best)
        if ahead and out.alarm is not None:
            findings.append(
                Finding(
                    kind=out.alarm, severity="critical", phase="update", onset_step=out.onset_step,
                    detected_step=row.step, evidence=tuple(ahead), facts={**numbers, "loss": row.value},
                )
            )  # fmt: skip

    def _alarm(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        out.alarm = self._name_divergence(out)
        out.next_told = max(2 * out.rows, LEAST_TOLD)
        findings.append(divergence(row, out, self.band, self.rows, "critical", out.alarm))

    def _after_nonfinite(self, row: Row, findings: list[Finding]) -> None:
        """A loss that is finite again for a while: the weights were not poisoned."""
        self.clean_rows += 1
        assert self.poisoned_step is not None
        if self.clean_rows < self.recurrence.calm_rows:
            return
        text = (
            f"{counted(self.poisoned_rows, 'step')} had a non-finite loss; "
            f"in the {self.clean_rows} steps since it is finite"
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
        if self.excursion is not None:
            self.excursion.has_survived = True

    def _name_divergence(self, out: Excursion) -> Kind:
        left = rows_left(out, self.band)
        if self.rows < EARLY_ROWS:
            steady = all(a < b for a, b in pairwise(out.values))
            far = out.peak >= (BEYOND_HEIGHT if steady else FAR_HEIGHT)
            return "immediate_blowup" if left <= FAST_ROWS or far else "gradual_divergence"
        return "fast_divergence" if left <= FAST_ROWS else "gradual_divergence"

    def _come_back(self, row: Row, out: Excursion, findings: list[Finding]) -> None:
        if out.alarm is not None or (out.warned and self.creep is None):
            text = f"the loss has been back in its usual range for {out.inside} steps, at {row.value:.4g}"
            findings.append(over(row, out.onset_step, text, out.alarm))
        elif self.creep is None and self._is_worth_telling(out):
            findings.append(spike(row, out, self.band, self.rows, "recovered"))
        self.creep = None if out.alarm is not None else self.creep  # else its levels tell when it is over
        self.tallest = max(self.tallest * FORGET, out.peak)
        self._count(out.rows, out.high_rows)
        self.excursion, self.back_step = None, row.step

    def _is_worth_telling(self, out: Excursion) -> bool:
        """A run that spikes all the time has told it once; the very first steps are restless anyway."""
        is_old = self.rows >= EARLY_ROWS or out.last_step - self.young_steps[0] >= EARLY_STEPS
        return is_old and out.peak >= max(SPIKE_HEIGHT, SPIKE_GROWTH * self.tallest)

    def _rebase(self, out: Excursion) -> None:
        """The loss stays on another level: from here on that is its band."""
        self.normal = median(out.heights)
        for step, value in zip(out.steps, out.values, strict=True):
            if self._learn(step, value):
                self.trail.add(self.block_step, self.band.middles[-1])
        self._count(out.rows, out.high_rows)
        self.excursion, self.creep, self.back_step = None, None, out.steps[-1]

    def _count(self, rows: int, high_rows: int) -> None:
        self.high_rows += high_rows
        while self.counted_rows + rows > MAX_COUNTED:  # as if they came one by one
            rows -= MAX_COUNTED + 1 - self.counted_rows
            self.counted_rows, self.high_rows = MAX_COUNTED // 2, self.high_rows // 2
        self.counted_rows += rows
