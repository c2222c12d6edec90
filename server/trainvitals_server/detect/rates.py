"""The learning rate's history, as far as a diagnosis asks for it. Finds nothing by itself."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from trainvitals_server.batch import Batch

RAISE_FACTOR = 1.05  # smaller steps up are a schedule's rounding


class RateSummary(msgspec.Struct, frozen=True):
    """First, last and highest learning rate, and the last step at which it was raised."""

    first: float | None = None
    last: float | None = None
    highest: float | None = None
    raised_step: int | None = None
    raised_from: float | None = None


class RateFold(msgspec.Struct):
    """Folds `learning_rate`."""

    first: float | None = None
    last: float | None = None
    highest: float | None = None
    raised_step: int | None = None
    raised_from: float | None = None

    def feed(self, batch: Batch) -> None:
        """Take the rows of `batch`."""
        series = batch.columns.get("learning_rate")
        if series is None:
            return
        usable = series.present & np.isfinite(series.values)
        if not usable.any():
            return
        values, steps = series.values[usable], batch.steps[usable]
        before = np.concatenate(([values[0] if self.last is None else self.last], values[:-1]))
        raised = np.flatnonzero(values / RAISE_FACTOR > before)
        if len(raised):
            self.raised_step = int(steps[raised[-1]])
            self.raised_from = float(before[raised[-1]])
        self.first = float(values[0]) if self.first is None else self.first
        self.last = float(values[-1])
        self.highest = max(float(values.max()), -math.inf if self.highest is None else self.highest)

    def summary(self) -> RateSummary:
        """Return what is known so far."""
        return RateSummary(self.first, self.last, self.highest, self.raised_step, self.raised_from)
