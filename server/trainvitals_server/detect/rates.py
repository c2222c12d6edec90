"""The history of learning rate and updates, as far as a diagnosis asks for it. Finds nothing by itself."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from trainvitals_server.batch import Batch

RAISE_FACTOR = 1.05  # smaller steps up are a schedule's rounding


class RateSummary(msgspec.Struct, frozen=True):
    """First, last and highest learning rate, and the last step at which it was raised.

    `update` is the largest ratio of a layer's update to its weights when that was last measured.
    """

    first: float | None = None
    last: float | None = None
    highest: float | None = None
    raised_step: int | None = None
    raised_from: float | None = None
    update: float | None = None
    update_step: int | None = None
    update_layer: str = ""


class RateFold(msgspec.Struct):
    """Folds `learning_rate` and `layer_update_ratio`."""

    first: float | None = None
    last: float | None = None
    highest: float | None = None
    raised_step: int | None = None
    raised_from: float | None = None
    update: float | None = None
    update_step: int | None = None
    update_layer: str = ""

    def feed(self, batch: Batch) -> None:
        """Take the rows of `batch`."""
        self._feed_rates(batch)
        self._feed_updates(batch)

    def _feed_rates(self, batch: Batch) -> None:
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
        return RateSummary(
            self.first, self.last, self.highest, self.raised_step, self.raised_from,
            self.update, self.update_step, self.update_layer,
        )  # fmt: skip

    def _feed_updates(self, batch: Batch) -> None:
        series = batch.layer_columns.get("layer_update_ratio")
        if series is None or not batch.layers:
            return
        usable = series.present & np.isfinite(series.values)
        rows = np.flatnonzero(usable.any(1))
        if not len(rows):
            return
        row = rows[-1]
        ratios = np.where(usable[row], series.values[row], -1.0)
        place = int(ratios.argmax())
        self.update, self.update_step = float(ratios[place]), int(batch.steps[row])
        self.update_layer = batch.layers[place].name
