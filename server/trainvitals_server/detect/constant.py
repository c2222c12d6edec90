"""Silent constant: the loss stands still to the last bit while no gradient, or no finite one, comes back.

Frameworks print a NaN loss as 0, and a loss that does not depend on the weights has a zero gradient; neither
looks like a failure. A loss that was learned down to exactly 0 (a hinge) is none. Needs `loss` and one of
`grad_norm`, `grad_nonfinite`; without them only a loss that drops to exactly 0 out of the blue is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from trainvitals.wire import BoolArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

STILL_ROWS = 32  # equal rows in a row
HEAD_ROWS = 5
RECENT_ROWS = 16  # rows before the loss stood still
LEARNED_SHARE = 0.1  # a loss that had come so far down may well reach exactly 0
OVER_ROWS = 4  # rows that move again


class ConstantFold(msgspec.Struct):
    """Folds the loss with the state of the gradient in the same row."""

    head: list[float] = []
    recent: list[float] = []
    value: float | None = None
    since: int = 0
    rows: int = 0
    zero_rows: int = 0
    bad_rows: int = 0
    blind_rows: int = 0
    told_step: int | None = None
    moving: int = 0

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about a loss that stands still."""
        findings: list[Finding] = []
        series = batch.columns.get("loss")
        if series is None:
            return findings
        usable = np.flatnonzero(series.present & np.isfinite(series.values))
        values = series.values[usable].tolist()
        steps = batch.steps[usable].tolist()
        zero, bad, known = (flags[usable].tolist() for flags in _gradients(batch))
        for place, value in enumerate(values):
            if value == self.value:
                self.rows += 1
                self.moving = 0
            else:
                self._move(steps[place], value, findings)
            self.zero_rows += zero[place]
            self.bad_rows += bad[place]
            self.blind_rows += not known[place]
            if self.rows == STILL_ROWS and self.told_step is None:
                self._judge(steps[place], value, findings)
        return findings

    def _move(self, step: int, value: float, findings: list[Finding]) -> None:
        self.moving += 1
        if self.told_step is not None and self.moving >= OVER_ROWS:
            findings.append(_moves_again(self.told_step, step, value))
            self.told_step = None
        if len(self.head) < HEAD_ROWS:
            self.head.append(value)
        self.recent.append(value)
        if len(self.recent) > 4 * RECENT_ROWS:
            self.recent = self.recent[-RECENT_ROWS - 1 :]
        self.value, self.since, self.rows = value, step, 1
        self.zero_rows = self.bad_rows = self.blind_rows = 0

    def _judge(self, step: int, value: float, findings: list[Finding]) -> None:
        if 2 * self.bad_rows >= self.rows:
            why = f"the gradients were not finite in {self.bad_rows} of {self.rows} rows"
        elif self._was_learned(value):
            return
        elif self.zero_rows == self.rows:
            why = f"the gradient norm was exactly 0 in all of the {self.rows} rows"
        elif self.blind_rows == self.rows and value == 0 and len(self.recent) > HEAD_ROWS:
            why = "it dropped to exactly 0 in one row, and some frameworks print a NaN loss as 0"
        else:
            return
        self.told_step = self.since
        findings.append(self._constant(step, value, why))

    def _was_learned(self, value: float) -> bool:
        """Whether the loss had come down nearly all the way before it stood still."""
        before = self.recent[:-1][-RECENT_ROWS:]
        if not before:
            return False
        return median(before) - value <= LEARNED_SHARE * (median(self.head) - value)

    def _constant(self, step: int, value: float, why: str) -> Finding:
        before = self.recent[:-1][-RECENT_ROWS:]
        bad = 2 * self.bad_rows >= self.rows
        facts: Flags = {
            "level": value, "before": median(before) if before else None, "still_rows": self.rows,
            "zero_gradient": self.zero_rows == self.rows, "bad_gradient": bad,
        }  # fmt: skip
        text = f"the loss is exactly {value:.6g} in {self.rows} rows in a row"
        return Finding(
            kind="silent_constant", severity="critical" if bad else "warning", onset_step=self.since,
            detected_step=step, facts=facts,
            evidence=(Evidence(text=text, series="loss", step=self.since, value=value),
                      Evidence(text=why, series="grad_norm", step=step)),
        )  # fmt: skip


def _moves_again(told_step: int, step: int, value: float) -> Finding:
    text = f"the loss moves again: {value:.4g} at step {step}"
    return Finding(
        kind="silent_constant", severity="warning", phase="resolve", onset_step=told_step, detected_step=step,
        evidence=(Evidence(text=text, series="loss", step=step, value=value),),
    )  # fmt: skip


def _gradients(batch: Batch) -> Sequence[BoolArray]:
    """Return in which rows the gradient is exactly zero, is not finite, is known."""
    zero, bad = np.zeros(len(batch), dtype=bool), np.zeros(len(batch), dtype=bool)
    known = np.zeros(len(batch), dtype=bool)
    norm, count = batch.columns.get("grad_norm"), batch.columns.get("grad_nonfinite")
    if norm is not None:
        zero |= norm.present & (norm.values == 0)
        bad |= norm.present & ~np.isfinite(norm.values)
        known |= norm.present
    if count is not None:
        bad |= count.present & (count.values > 0)
        known |= count.present
    return zero & ~bad, bad, known
