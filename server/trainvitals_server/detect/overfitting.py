"""Overfitting: the validation loss turns and rises while the training loss goes on falling. Info.

A gap between the two that does not grow, a validation loss that is merely noisy, and one that rises together
with the training loss are none. Reads `val_loss` from validation events or from a log's column, and `loss`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

RECENT_ROWS = 64  # training rows that stand for the level at a validation
PATIENCE = 4  # validations in a row, all worse than the best
RISE_SHARE = 0.1  # the rise, as a share of what validation had gained
RISE_NOISE = 5.0  # in units of the noise from one validation to the next,
RISE_SCATTER = 5.0  # about the straight line that the validations since the best follow,
RISE_GROWTH = 1.2  # and against the tallest rise that this run has come back from
MAX_PAST = 64
MIN_MOVES = 6  # from one validation to the next; fewer do not tell their noise
MEAN_TO_SIGMA = 1.2533


class Check(msgspec.Struct, frozen=True):
    """One validation, with the training loss then."""

    step: int
    validation: float
    training: float


class OverfittingFold(msgspec.Struct):
    """Folds validations against the training loss."""

    recent: list[float] = []
    first: Check | None = None
    best: Check | None = None
    since_best: list[Check] = []
    moves: list[float] = []
    last: float | None = None
    before_best: float = math.inf  # the validations beside the best one: a single low one is an outlier
    after_best: float = math.inf
    highest: float = -math.inf
    tallest: float = 0.0
    told_step: int | None = None

    def feed(self, batch: Batch) -> list[Finding]:
        """Take the training rows of `batch`, and its column `val_loss` where a log has one."""
        findings: list[Finding] = []
        validation = batch.columns.get("val_loss")
        start = 0
        if validation is not None:
            for row in np.flatnonzero(validation.present & np.isfinite(validation.values)).tolist():
                self._train(batch.slice(start, row + 1))
                start = row + 1
                findings += self._validate(int(batch.steps[row]), float(validation.values[row]))
        self._train(batch.slice(start, len(batch)))
        return findings

    def event(self, step: int, data: Mapping[str, object]) -> list[Finding]:
        """Take one validation event."""
        value = data.get("val_loss")
        if not isinstance(value, float) or not np.isfinite(value):
            return []
        return self._validate(step, value)

    def _train(self, batch: Batch) -> None:
        series = batch.columns.get("loss")
        if series is not None:
            usable = series.present & np.isfinite(series.values)
            self.recent = [*self.recent, *series.values[usable][-RECENT_ROWS:].tolist()][-RECENT_ROWS:]

    def _validate(self, step: int, value: float) -> list[Finding]:
        if not self.recent:
            return []
        check = Check(step, value, median(self.recent))
        before, self.last = self.last, value
        if before is not None:
            self.moves = [*self.moves[1 - MAX_PAST :], value - before]
        if self.first is None or self.best is None:
            self.first = self.best = check
            return []
        if value < self.best.validation:
            self.tallest = max(self.tallest, self.highest - self.best.validation)
            self.best, self.since_best, self.highest = check, [], -math.inf
            self.before_best = value if before is None else before
            return self._come_back(check)
        self.after_best = self.after_best if self.since_best else value
        self.since_best = [*self.since_best[1 - MAX_PAST :], check]
        self.highest = max(self.highest, value)
        return self._judge(check, self.first, self.best)

    def _judge(self, check: Check, first: Check, best: Check) -> list[Finding]:
        if self.told_step is not None or len(self.since_best) < PATIENCE or len(self.moves) < MIN_MOVES:
            return []
        level = median((self.before_best, best.validation, self.after_best))
        rise = min(item.validation for item in self.since_best[-PATIENCE:]) - level
        scatter = _scatter([item.validation for item in self.since_best])
        gained = first.validation - best.validation
        falls = check.training < best.training and check.training < self.since_best[0].training
        least = max(
            RISE_SHARE * gained,
            RISE_NOISE * self._noise(),
            RISE_SCATTER * scatter,
            RISE_GROWTH * self.tallest,
        )
        if not falls or rise < least or rise <= 0:
            return []
        self.told_step = best.step
        text = (
            f"val_loss was best at step {best.step}, {best.validation:.4g}, and is {check.validation:.4g} now"
        )
        beside = f"the training loss went on falling from {best.training:.4g} to {check.training:.4g}"
        facts: Flags = {
            "best_step": best.step, "best_validation": best.validation, "validation": check.validation,
            "best_training": best.training, "training": check.training,
        }  # fmt: skip
        return [
            Finding(
                kind="overfitting", severity="info", onset_step=best.step, detected_step=check.step,
                evidence=(Evidence(text=text, series="val_loss", step=best.step, value=best.validation),
                          Evidence(text=beside, series="loss", step=check.step, value=check.training)),
                facts=facts,
            )
        ]  # fmt: skip

    def _noise(self) -> float:
        """Return the noise from one validation to the next; a trend does not count."""
        turns = [abs(b - a) for a, b in pairwise(self.moves)]
        return MEAN_TO_SIGMA * sum(turns) / len(turns) / math.sqrt(6)

    def _come_back(self, check: Check) -> list[Finding]:
        if self.told_step is None:
            return []
        text = f"val_loss has a new best value: {check.validation:.4g}"
        onset, self.told_step = self.told_step, None
        return [
            Finding(
                kind="overfitting", severity="info", phase="withdraw", onset_step=onset,
                detected_step=check.step,
                evidence=(Evidence(text=text, series="val_loss", step=check.step, value=check.validation),),
            )
        ]  # fmt: skip


def _scatter(values: Sequence[float]) -> float:
    """Return the standard deviation about a straight line: noise that lasts is not seen from row to row."""
    places = np.arange(len(values)) - (len(values) - 1) / 2
    with np.errstate(all="ignore"):  # at the ends of the number format there is no sure rise
        rest = np.asarray(values) - fmean(values)
        rest -= places * (places @ rest) / (places @ places)
        return math.sqrt(float(rest @ rest) / (len(values) - 2))
