"""The gradient norm against its own past, on a log scale: explosions, and Adam's epsilon against sqrt(v).

Needs `grad_norm`; of an explosion that is over, `surge` tells what the loss did meanwhile. Non-finite norms
are `overflow`'s business.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.recurrence import counted
from trainvitals_server.detect.stats import LogLevel
from trainvitals_server.detect.surge import Surge, losses_of
from trainvitals_server.finding import Evidence, Finding, Severity

EXPLODED_DECADES = 4.0  # above the run's typical norm
EXPLODED_ROWS = 3
RECENT_ROWS = 4  # of the last four
CHAIN_ROWS = 5  # or it multiplies row by row:
CHAIN_DECADES = 0.3  # at least twofold each time,
CHAIN_REACH = 3.0  # and in all by so much, from where the norm has been: no noise does that
CALM_DECADES = 1.0  # this close to the typical norm,
CALM_ROWS = 8  # for so many rows, an explosion is over;
FEW_CALM_ROWS = (
    3  # or for so many that cover as many steps as those would have, had it gone on logging as then
)
DECAYED_DECADES = 4.0  # below where the norm began: round-off is what is left of the gradient
JUMP_DECADES = 3.0  # from one row to the next
QUIET_ROWS = 16
HEAD_ROWS = 16
FIRST_ROWS = 5  # whose median says where the norm began
DECAYED_ROWS = 8  # whose median says how far it has decayed


class GradientFold(msgspec.Struct):
    """Folds `grad_norm`; whole blocks at once where nothing in them can be news."""

    level: LogLevel = msgspec.field(default_factory=LogLevel)
    head: list[float] = []
    quiet: list[float] = []
    quiet_steps: list[int] = []
    quiet_losses: list[float] = []
    surge: Surge | None = None
    epsilon_step: int | None = None

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about the size of the gradient."""
        findings: list[Finding] = []
        series = batch.columns.get("grad_norm")
        if series is None:
            return findings
        usable = series.present & np.isfinite(series.values) & (series.values > 0)
        steps, losses = batch.steps[usable].tolist(), losses_of(batch, usable)
        # Not numpy's logarithm: its last bit may depend on where a value stands in the array.
        values = [math.log10(value) for value in series.values[usable].tolist()]
        place = 0
        while place < len(values):
            stop = place + self.level.room
            if self._is_plain(values[place:stop]):
                self._note(steps[place:stop], values[place:stop], losses[place:stop])
                self.level.take(values[place:stop])
                place = min(stop, len(values))
            else:
                self._row(steps[place], values[place], losses[place], findings)
                place += 1
        return findings

    def _is_plain(self, values: list[float]) -> bool:
        """Whether no row of these can be an explosion or a jump."""
        if self.surge is not None or not self.level.is_known:
            return False
        if max(values) >= self.level.typical + EXPLODED_DECADES:
            return False
        return max(values) < min([*values, *self.quiet]) + JUMP_DECADES

    def _note(self, steps: list[int], values: list[float], losses: list[float]) -> None:
        if len(values) >= QUIET_ROWS:
            self.quiet, self.quiet_steps, self.quiet_losses = values, steps, losses
            return
        self.quiet = [*self.quiet, *values][-QUIET_ROWS:]
        self.quiet_steps = [*self.quiet_steps, *steps][-QUIET_ROWS:]
        self.quiet_losses = [*self.quiet_losses, *losses][-QUIET_ROWS:]

    def _row(self, step: int, value: float, loss: float, findings: list[Finding]) -> None:
        self._epsilon(step, value, findings)
        self._note([step], [value], [loss])
        if self.surge is not None:
            self._calm(step, value, loss, self.surge, findings)
        if self._multiplies():
            severity: Severity = "critical" if self.level.is_known else "warning"
            self._explode(step, value, self.quiet_steps[1 - CHAIN_ROWS], severity, findings)
        if self.level.is_known and value >= self.level.typical + EXPLODED_DECADES:
            self._explosion(step, value, findings)
        else:
            self.level.take([value])
        if len(self.head) < HEAD_ROWS:
            self.head.append(value)

    def _explosion(self, step: int, value: float, findings: list[Finding]) -> None:
        limit = self.level.typical + EXPLODED_DECADES
        recent = zip(self.quiet_steps[-RECENT_ROWS:], self.quiet[-RECENT_ROWS:], strict=True)
        high = [row for row, item in recent if item >= limit]
        if len(high) >= EXPLODED_ROWS:
            self._explode(step, value, high[0], "critical", findings)

    def _multiplies(self) -> bool:
        """Whether the latest rows form a chain of rises that leads far above all that came before it."""
        chain, before = self.quiet[-CHAIN_ROWS:], self.quiet[:-CHAIN_ROWS]
        if not before or chain[-1] - chain[0] < CHAIN_REACH or chain[-1] - max(before) < CHAIN_REACH:
            return False
        if self.level.is_known and chain[-1] < self.level.typical + CHAIN_REACH:
            return False
        return all(b - a >= CHAIN_DECADES for a, b in pairwise(chain))

    def _explode(
        self, step: int, value: float, onset: int, severity: Severity, findings: list[Finding]
    ) -> None:
        """Tell an explosion, or that one which might have been a young run's restlessness is one."""
        if self.surge is not None and (self.surge.is_sure or severity == "warning"):
            return
        if self.surge is None:
            self.surge = self._surge(step, onset)
        self.surge.is_sure = severity == "critical"
        typical = self.surge.typical
        text = f"the gradient norm is {_power(value):.3g}; until then it was typically {_power(typical):.3g}"
        findings.append(
            Finding(
                kind="exploding_gradient", severity=severity, onset_step=self.surge.onset_step,
                detected_step=step,
                evidence=(Evidence(text=text, series="grad_norm", step=step, value=_power(value)),),
                facts={"typical_norm": _power(typical), "norm": _power(value)},
            )
        )  # fmt: skip

    def _surge(self, step: int, onset: int) -> Surge:
        """Return what the rows so far say of an explosion that began at `onset`."""
        place = self.quiet_steps.index(onset)
        typical = self.level.typical if self.level.is_known else median(self.quiet[:place] or self.head)
        surge = Surge(onset, typical, (step - onset) / max(len(self.quiet) - 1 - place, 1))
        # A state that was saved before losses were kept has fewer of them.
        for row, norm, loss in zip(self.quiet_steps, self.quiet, self.quiet_losses, strict=False):
            if row < onset and norm < typical + CALM_DECADES:
                surge.before.append(loss)
            else:
                surge.note(row, loss)
        return surge

    def _calm(self, step: int, value: float, loss: float, surge: Surge, findings: list[Finding]) -> None:
        is_back = value < surge.typical + CALM_DECADES
        # The norm of a young run may just as well have come to where it belongs.
        has_settled = self.level.is_known and value < self.level.typical + CALM_DECADES
        surge.take(step, loss, is_calm=is_back or has_settled)
        is_long = surge.calm_rows >= FEW_CALM_ROWS and step - surge.calm_step >= CALM_ROWS * surge.spacing
        if surge.calm_rows < CALM_ROWS and not is_long:
            return
        where = "been back" if is_back else "settled"
        text = f"the gradient norm has {where} at {_power(value):.3g} for {counted(surge.calm_rows, 'row')}"
        findings.append(
            Finding(
                kind="exploding_gradient", severity="critical", phase="withdraw",
                onset_step=surge.onset_step, detected_step=step,
                evidence=(Evidence(text=text, series="grad_norm", step=step, value=_power(value)),),
            )
        )  # fmt: skip
        spike = surge.spike(step) if is_back else None
        findings += [spike] if spike is not None else []
        self.surge = None

    def _epsilon(self, step: int, value: float, findings: list[Finding]) -> None:
        if self.epsilon_step is not None or len(self.quiet) < QUIET_ROWS or len(self.head) < HEAD_ROWS:
            return
        if value < min(self.quiet) + JUMP_DECADES:
            return
        start, calm = median(self.head[:FIRST_ROWS]), median(self.quiet[-DECAYED_ROWS:])
        edge = start - DECAYED_DECADES  # below it there is only round-off, whose jumps mean nothing
        if calm > edge or value < max(edge, calm + JUMP_DECADES):
            return
        self.epsilon_step = step
        text = (
            f"the gradient norm had decayed from {_power(start):.3g} to {_power(calm):.3g}, "
            f"then jumped to {_power(value):.3g} in one step"
        )
        findings.append(
            Finding(
                kind="optimizer_epsilon", severity="warning", onset_step=step, detected_step=step,
                evidence=(Evidence(text=text, series="grad_norm", step=step, value=_power(value)),),
                facts={"norm_start": _power(start), "norm_before": _power(calm), "norm": _power(value)},
            )
        )  # fmt: skip


def _power(decades: float) -> float:
    return math.pow(10.0, min(decades, 308.0))
