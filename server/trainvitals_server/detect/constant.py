"""Silent constant: nothing is learned, and no number looks wrong.

The gradient is exactly 0 in every row (the loss does not depend on the weights), or the loss stands still to
the last bit while gradients are not finite: frameworks print a NaN loss as 0. A loss that was learned down to
exactly 0 (a hinge) is none. Needs `loss` and one of `grad_norm`, `grad_nonfinite`; without them only a loss
that drops to exactly 0 out of the blue is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from trainvitals.wire import BoolArray, FloatArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

STILL_ROWS = 32  # in a row
HEAD_ROWS = 5
RECENT_ROWS = 16  # rows before the loss stood still
LEARNED_SHARE = 0.1  # a loss that had come so far down may well reach exactly 0
LEARNED_DEPTH = 0.5  # of the loss at the start
OVER_ROWS = 4  # rows that move again


class ConstantFold(msgspec.Struct):
    """Folds the loss with the state of the gradient in the same row."""

    head: list[float] = []
    recent: list[float] = []
    value: float | None = None
    since: int = 0
    rows: int = 0
    bad_rows: int = 0
    known_rows: int = 0
    zero_since: int = 0
    zero_rows: int = 0
    told_step: int | None = None
    moving: int = 0

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about a model that stands still."""
        findings: list[Finding] = []
        series = batch.columns.get("loss")
        if series is None:
            return findings
        usable = np.flatnonzero(series.present & np.isfinite(series.values))
        values, steps = series.values[usable], batch.steps[usable]
        zero, bad, known = (flags[usable] for flags in _gradients(batch))
        if self._all_move(values, zero | bad):
            self._pass_moving(values.tolist(), int(steps[-1]), is_known=bool(known[-1]))
            return findings
        self._rows(steps.tolist(), values.tolist(), (zero.tolist(), bad.tolist(), known.tolist()), findings)
        return findings

    def _all_move(self, values: FloatArray, still: BoolArray) -> bool:
        """Whether nothing in these rows can be news."""
        if not len(values) or self.told_step is not None or still.any() or values[0] == self.value:
            return False
        return not bool((values[1:] == values[:-1]).any())

    def _pass_moving(self, values: list[float], step: int, *, is_known: bool) -> None:
        """Take rows that all move, as if they came one by one."""
        self.head += values[: HEAD_ROWS - len(self.head)]
        self.recent = [*self.recent, *values][-RECENT_ROWS - 1 :]
        self.value, self.since, self.rows = values[-1], step, 1
        self.bad_rows, self.known_rows, self.zero_rows = 0, int(is_known), 0
        self.moving += len(values)

    def _rows(
        self, steps: list[int], values: list[float], gradients: Sequence[list[bool]], findings: list[Finding]
    ) -> None:
        zero, bad, known = gradients
        for place, value in enumerate(values):
            self._row(steps[place], value, zero[place], bad[place], known[place])
            if self.told_step is None:
                self._judge(steps[place], value, findings)
            elif self.moving >= OVER_ROWS:
                findings.append(_moves_again(self.told_step, steps[place], value))
                self.told_step = None

    def _row(self, step: int, value: float, zero: bool, bad: bool, known: bool) -> None:
        if zero:
            self.zero_since = self.zero_since if self.zero_rows else step
            self.zero_rows += 1
        else:
            self.zero_rows = 0
        is_same = value == self.value
        if not is_same:
            self.value, self.since = value, step
            self.rows = self.bad_rows = self.known_rows = 0
        self.rows += 1
        self.bad_rows += bad
        self.known_rows += known
        self.moving = 0 if is_same or zero or bad else self.moving + 1
        if not is_same and not zero:
            self._remember(value)

    def _remember(self, value: float) -> None:
        if len(self.head) < HEAD_ROWS:
            self.head.append(value)
        self.recent.append(value)
        if len(self.recent) > 4 * RECENT_ROWS:
            self.recent = self.recent[-RECENT_ROWS - 1 :]

    def _judge(self, step: int, value: float, findings: list[Finding]) -> None:
        if self.zero_rows == STILL_ROWS:
            before = self.recent[-RECENT_ROWS:]
            if not self._was_learned(before, value):
                why = f"the gradient norm is exactly 0 in {STILL_ROWS} steps in a row"
                self._tell(self.zero_since, step, value, "zero_gradient", why, findings)
        elif self.rows == STILL_ROWS:
            before = self.recent[:-1][-RECENT_ROWS:]
            if 2 * self.bad_rows >= self.rows:
                why = f"the gradients were not finite in {self.bad_rows} of these steps"
                self._tell(self.since, step, value, "bad_gradient", why, findings)
            elif not self.known_rows and value == 0 and before and not self._was_learned(before, value):
                why = f"the losses before were at {median(before):.4g}; some frameworks print a NaN loss as 0"
                self._tell(self.since, step, value, "printed_zero", why, findings)

    def _was_learned(self, before: Sequence[float], value: float) -> bool:
        """Whether the loss had come down nearly all the way before it stood still."""
        if not before:
            return False
        start = median(self.head)
        is_deep = start - value >= LEARNED_DEPTH * abs(start)
        return is_deep and median(before) - value <= LEARNED_SHARE * (start - value)

    def _tell(self, onset: int, step: int, value: float, how: str, why: str, findings: list[Finding]) -> None:
        self.told_step = onset
        same = self.rows >= STILL_ROWS
        text = f"the loss is exactly {value:.6g} in {STILL_ROWS} steps in a row" if same else (
            f"the loss is {value:.4g} at step {step} and changes only with the batch"
        )  # fmt: skip
        facts: Flags = {"level": value, "still_rows": STILL_ROWS, "how": how, "same": same}
        findings.append(
            Finding(
                kind="silent_constant", severity="critical" if how == "bad_gradient" else "warning",
                onset_step=onset, detected_step=step, facts=facts,
                evidence=(Evidence(text=text, series="loss", step=step, value=value),
                          Evidence(text=why, series="grad_norm", step=step)),
            )
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
