"""Kept out: updates that are not finite and that the reporter leaves out (`on_nonfinite="skip"`).

Such a run is fine: its weights stay finite, and what it misses are some batches. So what `loss` and
`overflow` say of these rows is a warning here, counted as one trouble; it is critical only where so many
updates are left out that hardly anything is learned. Needs `skipped`, and to know that no loss scaler skips.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from trainvitals.wire import BoolArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.recurrence import Recurrence, counted
from trainvitals_server.detect.rows import Flags, flags_at
from trainvitals_server.finding import Evidence, Finding, Kind, Phase, Severity

TAKEN = frozenset({"sudden_nan", "immediate_blowup", "nonfinite_gradient"})
NATURE = ("input_nonfinite", "label_nonfinite")  # what two failures of one cause agree in
WINDOW_ROWS = 24
WINDOW_LOST = 12  # half of the updates are lost: hardly anything is learned


class KeptOutFold(msgspec.Struct):
    """Folds the rows whose update was left out; all others only count."""

    is_on: bool = False
    rows: int = 0
    bad_losses: int = 0
    clean_rows: int = 0
    recent: list[int] = []  # the rows of the last updates that were left out
    recurrence: Recurrence = msgspec.field(default_factory=Recurrence)
    kind: Kind = "sudden_nan"  # of what goes on, or was the last
    onset_step: int | None = None  # None: nothing goes on
    first: tuple[Kind, int] | None = None  # what it was called when it began, however often it was over since
    nature: list[bool] = []
    taken_step: int | None = None  # of the loss that was last not finite and is told here
    is_told_lost: bool = False

    def feed(self, batch: Batch, found: Sequence[Finding]) -> list[Finding]:
        """Return what the other detectors say of the rows of `batch`, with these rows told as they are."""
        series = batch.columns.get("skipped")
        if not self.is_on or series is None:
            return list(found)
        places = np.flatnonzero(series.present)
        out = places[(series.values[places] > 0) & ~_is_scaled(batch)[places]].tolist()
        if not out and self.recurrence.first_step is None:
            self.rows += len(places)
            return list(found)
        waiting = deque(sorted(found, key=lambda item: item.detected_step))
        told: list[Finding] = []
        start = 0
        for index in [*out, len(batch)]:
            end = int(batch.steps[index]) if index < len(batch) else math.inf
            clean = places[np.searchsorted(places, start) : np.searchsorted(places, index)]
            news = self._calm(batch, clean.tolist())
            while waiting and waiting[0].detected_step < end:
                told += [item for item in (waiting.popleft(),) if not self._is_told_here(item)]
            told += news
            if index < len(batch):
                told += self._left_out(batch, index, waiting)
            start = index + 1
        return told

    def _is_told_here(self, item: Finding) -> bool:
        first = self.recurrence.first_step
        if first is None or item.detected_step < first:
            return False
        if item.kind == "bad_batch":
            return item.nonfinite_step is not None and item.nonfinite_step == self.taken_step
        return item.kind in TAKEN and "height" not in item.facts

    def _calm(self, batch: Batch, places: Sequence[int]) -> list[Finding]:
        """Count updates that were applied; enough of them say that it is over."""
        left = self.recurrence.calm_rows - self.clean_rows
        is_over = self.onset_step is not None and len(places) >= left
        told = [self._end(int(batch.steps[places[left - 1]]))] if is_over else []
        self.rows += len(places)
        self.clean_rows += len(places)
        return told

    def _end(self, step: int) -> Finding:
        """Return that it is over."""
        text = f"{counted(self.recurrence.calm_rows, 'update')} in a row were applied again"
        over = self._finding(step, "resolve", "warning", text, {"weights_survived": True})
        self.onset_step, self.is_told_lost = None, False
        return over

    def _left_out(self, batch: Batch, index: int, found: Iterable[Finding]) -> list[Finding]:
        step, flags = int(batch.steps[index]), flags_at(batch, index)
        is_new = self.onset_step is None
        loss = batch.columns.get("loss")
        is_loss_bad = loss is not None and bool(loss.present[index] and not math.isfinite(loss.values[index]))
        self.recurrence.add(step, self.rows, is_new=is_new)
        self.recent = [row for row in self.recent if row > self.rows - WINDOW_ROWS] + [self.rows]
        self.bad_losses += is_loss_bad
        self.rows += 1
        self.clean_rows = 0
        if is_new:
            return [self._begin(step, flags, found, is_loss_bad=is_loss_bad)]
        if len(self.recent) >= WINDOW_LOST and not self.is_told_lost:
            self.is_told_lost = True
            text = f"{len(self.recent)} of the last {WINDOW_ROWS} updates were left out"
            return [self._finding(step, "update", "critical", text, {})]
        if not self.recurrence.is_news:
            return []
        self.recurrence.is_told()
        return [self._finding(step, "update", "warning", "", {})]

    def _begin(self, step: int, flags: Flags, found: Iterable[Finding], *, is_loss_bad: bool) -> Finding:
        self.recurrence.is_told()
        known = next(
            (item for item in found if item.detected_step == step and self._is_told_here(item)), None
        )
        self.kind = known.kind if known is not None else "sudden_nan" if is_loss_bad else "nonfinite_gradient"
        self.onset_step = step
        self.taken_step = step if is_loss_bad else self.taken_step
        nature = [bool(flags.get(name)) for name in NATURE]
        if self.first is None or nature != self.nature:
            self.first, self.nature = (self.kind, step), nature
        if known is not None:
            return replace(
                known, severity="warning", onset_step=step, facts={**known.facts, **self._facts(step)}
            )
        what = "the loss" if is_loss_bad else "the gradient"
        facts = {**flags, "loss_nonfinite": True} if is_loss_bad else {**flags, "gradient_nonfinite": True}
        opened = self._finding(step, "open", "warning", f"{what} of step {step} is not finite", facts)
        return replace(opened, nonfinite_step=step)

    def _finding(self, step: int, phase: Phase, severity: Severity, text: str, facts: Flags) -> Finding:
        """Return news of what goes on; what makes it worse is told of the incident that it once began as."""
        assert self.onset_step is not None
        assert self.first is not None
        kind, onset = self.first if severity == "critical" else (self.kind, self.onset_step)
        return Finding(
            kind=kind, severity=severity, phase=phase, onset_step=onset, detected_step=step,
            evidence=(Evidence(text=text, series="skipped", step=step),) if text else (),
            facts={**facts, **self._facts(step)},
        )  # fmt: skip

    def _facts(self, step: int) -> Flags:
        recurrence = self.recurrence
        lately = {"lost_lately": len(self.recent), "of_latest": WINDOW_ROWS} if self.is_told_lost else {}
        return {
            "kept_out": recurrence.bad_rows, "kept_out_of": step - (recurrence.first_step or 0) + 1,
            "kept_out_since": recurrence.first_step, "bad_losses": self.bad_losses, **lately,
        }  # fmt: skip


def _is_scaled(batch: Batch) -> BoolArray:
    """Return in which rows a loss scale says that whoever skips is a scaler, be it one by hand."""
    series = batch.columns.get("loss_scale")
    return np.zeros(len(batch), dtype=bool) if series is None else series.present & (series.values != 1)
