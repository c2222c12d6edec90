"""The gradient norm against its own past, on a log scale: explosions, and Adam's epsilon against sqrt(v).

Needs `grad_norm`; the epsilon pattern also needs `loss`. Non-finite norms are `overflow`'s business.
"""

from __future__ import annotations

import math
from statistics import median

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.stats import LogLevel
from trainvitals_server.finding import Evidence, Finding

EXPLODED_DECADES = 4.0  # above the run's typical norm
EXPLODED_ROWS = 3  # of the last four
DECAYED_DECADES = 4.0  # below where the norm began: round-off is what is left of the gradient
JUMP_DECADES = 3.0  # from one row to the next
QUIET_ROWS = 16
HEAD_ROWS = 16


class GradientFold(msgspec.Struct):
    """Folds `grad_norm`, row by row."""

    level: LogLevel = msgspec.field(default_factory=LogLevel)
    head: list[float] = []
    quiet: list[float] = []
    recent: list[float] = []
    recent_steps: list[int] = []
    exploded_step: int | None = None
    epsilon_step: int | None = None
    calm_rows: int = 0

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about the size of the gradient."""
        findings: list[Finding] = []
        series = batch.columns.get("grad_norm")
        if series is None:
            return findings
        usable = series.present & np.isfinite(series.values) & (series.values > 0)
        values, steps = series.values.tolist(), batch.steps.tolist()
        for index in np.flatnonzero(usable).tolist():
            self._row(steps[index], math.log10(values[index]), findings)
        return findings

    def _row(self, step: int, value: float, findings: list[Finding]) -> None:
        self.recent = [*self.recent[-3:], value]
        self.recent_steps = [*self.recent_steps[-3:], step]
        self._epsilon(step, value, findings)
        if self.level.is_known and value >= self.level.typical + EXPLODED_DECADES:
            self.calm_rows = 0
            self._explosion(step, value, findings)
        else:
            self.level.accept(value)
            self.calm_rows += 1
        if len(self.head) < HEAD_ROWS:
            self.head.append(value)
        self.quiet = [*self.quiet[1 - QUIET_ROWS :], value]

    def _explosion(self, step: int, value: float, findings: list[Finding]) -> None:
        limit = self.level.typical + EXPLODED_DECADES
        high = [place for place, item in zip(self.recent_steps, self.recent, strict=True) if item >= limit]
        if self.exploded_step is not None or len(high) < EXPLODED_ROWS:
            return
        self.exploded_step = high[0]
        text = f"the gradient norm is {_power(value):.3g}; it was {_power(self.level.typical):.3g} so far"
        findings.append(
            Finding(
                kind="exploding_gradient", severity="critical", onset_step=high[0], detected_step=step,
                evidence=(Evidence(text=text, series="grad_norm", step=step, value=_power(value)),),
                facts={"typical_norm": _power(self.level.typical), "norm": _power(value)},
            )
        )  # fmt: skip

    def _epsilon(self, step: int, value: float, findings: list[Finding]) -> None:
        if self.epsilon_step is not None or len(self.quiet) < QUIET_ROWS or len(self.head) < HEAD_ROWS:
            return
        start, calm = median(self.head), median(self.quiet)
        if calm > start - DECAYED_DECADES or value < max(self.quiet) + JUMP_DECADES:
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
    return 10.0 ** min(decades, 308.0)
