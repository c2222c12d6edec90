"""The gradient norm against its own past, on a log scale: explosions, and Adam's epsilon against sqrt(v).

Needs `grad_norm`; the epsilon pattern also needs `loss`. Non-finite norms are `overflow`'s business.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.stats import LogLevel
from trainvitals_server.finding import Evidence, Finding

EXPLODED_DECADES = 4.0  # above the run's typical norm
EXPLODED_ROWS = 3
RECENT_ROWS = 4  # of the last four
CHAIN_ROWS = 5  # or it multiplies row by row:
CHAIN_DECADES = 0.3  # at least twofold each time,
CHAIN_REACH = 3.0  # and in all by so much, from where the norm has been: no noise does that
CALM_DECADES = 1.0  # this close to the typical norm,
CALM_ROWS = 8  # for so many rows, an explosion is over
DECAYED_DECADES = 4.0  # below where the norm began: round-off is what is left of the gradient
JUMP_DECADES = 3.0  # from one row to the next
QUIET_ROWS = 16
HEAD_ROWS = 16


class GradientFold(msgspec.Struct):
    """Folds `grad_norm`; whole blocks at once where nothing in them can be news."""

    level: LogLevel = msgspec.field(default_factory=LogLevel)
    head: list[float] = []
    quiet: list[float] = []
    quiet_steps: list[int] = []
    exploded_step: int | None = None
    calm_rows: int = 0
    epsilon_step: int | None = None

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about the size of the gradient."""
        findings: list[Finding] = []
        series = batch.columns.get("grad_norm")
        if series is None:
            return findings
        usable = series.present & np.isfinite(series.values) & (series.values > 0)
        steps = batch.steps[usable].tolist()
        # Not numpy's logarithm: its last bit may depend on where a value stands in the array.
        values = [math.log10(value) for value in series.values[usable].tolist()]
        place = 0
        while place < len(values):
            stop = place + self.level.room
            if self._is_plain(values[place:stop]):
                self._take(steps[place:stop], values[place:stop])
                place = min(stop, len(values))
            else:
                self._row(steps[place], values[place], findings)
                place += 1
        return findings

    def _is_plain(self, values: list[float]) -> bool:
        """Whether no row of these can be an explosion or a jump."""
        if self.exploded_step is not None or not self.level.is_known:
            return False
        if max(values) >= self.level.typical + EXPLODED_DECADES:
            return False
        return max(values) < min([*values, *self.quiet]) + JUMP_DECADES

    def _take(self, steps: list[int], values: list[float]) -> None:
        self.quiet = [*self.quiet, *values][-QUIET_ROWS:]
        self.quiet_steps = [*self.quiet_steps, *steps][-QUIET_ROWS:]
        self.level.take(values)

    def _row(self, step: int, value: float, findings: list[Finding]) -> None:
        self._epsilon(step, value, findings)
        self.quiet = [*self.quiet[1 - QUIET_ROWS :], value]
        self.quiet_steps = [*self.quiet_steps[1 - QUIET_ROWS :], step]
        if self.exploded_step is not None:
            self._calm(step, value, findings)
        elif self._multiplies():
            self._explode(step, value, self.quiet_steps[1 - CHAIN_ROWS], findings)
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
        if self.exploded_step is None and len(high) >= EXPLODED_ROWS:
            self._explode(step, value, high[0], findings)

    def _multiplies(self) -> bool:
        """Whether the latest rows form a chain of rises that leads far above all that came before it."""
        chain, before = self.quiet[-CHAIN_ROWS:], self.quiet[:-CHAIN_ROWS]
        if not before or chain[-1] - chain[0] < CHAIN_REACH or chain[-1] - max(before) < CHAIN_REACH:
            return False
        if self.level.is_known and chain[-1] < self.level.typical + CHAIN_REACH:
            return False
        return all(b - a >= CHAIN_DECADES for a, b in pairwise(chain))

    def _explode(self, step: int, value: float, onset: int, findings: list[Finding]) -> None:
        self.exploded_step, self.calm_rows = onset, 0
        typical = self._typical()
        text = f"the gradient norm is {_power(value):.3g}; until then it was typically {_power(typical):.3g}"
        findings.append(
            Finding(
                kind="exploding_gradient", severity="critical", onset_step=onset, detected_step=step,
                evidence=(Evidence(text=text, series="grad_norm", step=step, value=_power(value)),),
                facts={"typical_norm": _power(typical), "norm": _power(value)},
            )
        )  # fmt: skip

    def _calm(self, step: int, value: float, findings: list[Finding]) -> None:
        self.calm_rows = self.calm_rows + 1 if value < self._typical() + CALM_DECADES else 0
        if self.exploded_step is None or self.calm_rows < CALM_ROWS:
            return
        text = f"the gradient norm has been back at {_power(value):.3g} for {self.calm_rows} steps"
        findings.append(
            Finding(
                kind="exploding_gradient", severity="critical", phase="withdraw",
                onset_step=self.exploded_step, detected_step=step,
                evidence=(Evidence(text=text, series="grad_norm", step=step, value=_power(value)),),
            )
        )  # fmt: skip
        self.exploded_step = None

    def _typical(self) -> float:
        return self.level.typical if self.level.is_known else median(self.head or self.quiet)

    def _epsilon(self, step: int, value: float, findings: list[Finding]) -> None:
        if self.epsilon_step is not None or len(self.quiet) < QUIET_ROWS or len(self.head) < HEAD_ROWS:
            return
        if value < min(self.quiet) + JUMP_DECADES:
            return
        start, calm = median(self.head), median(self.quiet)
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
