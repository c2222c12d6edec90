"""Surge: an explosion of the gradient norm while it lasts, and what the loss did meanwhile.

Judges no norm: that is `gradient`. What it tells, once the norm is back, is a spike of the loss that came and
went with it, however small against the whole descent of the run.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from trainvitals.wire import BoolArray
from trainvitals_server.batch import Batch
from trainvitals_server.finding import Evidence, Finding

SPIKE_SPREAD = 3.0  # times the spread of the rows before and after it together
LEAST_BEFORE = 2  # rows that show what was usual
MAX_AFTER = 8


class Surge(msgspec.Struct):
    """State of one explosion. `typical` is the norm's level before it in decades, `spacing` steps a row.

    `before` are the losses of the rows that led up to it; NaN where one is missing or not finite.
    """

    onset_step: int
    typical: float
    spacing: float
    before: list[float] = []
    is_sure: bool = False
    after: list[float] = []
    peak: float = -math.inf
    peak_step: int = 0
    calm_rows: int = 0
    calm_step: int = 0

    def note(self, step: int, loss: float) -> None:
        """Take the loss of a row in which the norm is high."""
        if loss > self.peak:
            self.peak, self.peak_step = loss, step

    def take(self, step: int, loss: float, *, is_calm: bool) -> None:
        """Take one more row; `is_calm` where the norm is back."""
        if not is_calm:
            self.calm_rows, self.after = 0, []
            self.note(step, loss)
            return
        self.calm_step = step if not self.calm_rows else self.calm_step
        self.calm_rows += 1
        self.after = [*self.after[1 - MAX_AFTER :], loss]

    def spike(self, step: int) -> Finding | None:
        """Return the spike that the loss had meanwhile; None where it had none, or is not back."""
        before = [loss for loss in self.before if math.isfinite(loss)]
        usual = [*before, *(loss for loss in self.after if math.isfinite(loss))]
        if len(before) < LEAST_BEFORE or len(usual) == len(before) or not math.isfinite(self.peak):
            return None
        rise = self.peak - max(usual)
        if rise <= 0 or rise < SPIKE_SPREAD * (max(usual) - min(usual)):
            return None
        text = (
            f"the loss was {self.peak:.4g} at step {self.peak_step}, while the gradient norm was high; "
            f"before and after it was {min(usual):.4g} to {max(usual):.4g}"
        )
        return Finding(
            kind="loss_spike", severity="info", phase="resolve", onset_step=self.onset_step,
            detected_step=step,
            evidence=(Evidence(text=text, series="loss", step=self.peak_step, value=self.peak),),
            facts={"outcome": "recovered", "peak": self.peak, "peak_step": self.peak_step,
                   "best": float(np.median(before))},
        )  # fmt: skip


def losses_of(batch: Batch, rows: BoolArray) -> list[float]:
    """Return the losses of these rows; NaN where there is none."""
    series = batch.columns.get("loss")
    if series is None:
        return [math.nan] * int(rows.sum())
    values = series.values if series.present.all() else np.where(series.present, series.values, np.nan)
    losses: list[float] = values[rows].tolist()
    return losses
