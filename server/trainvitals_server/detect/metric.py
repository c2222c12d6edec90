"""Metrics: a compiled metric that is not finite while the loss is fine.

Keras gives a running mean, so that one bad batch spoils the metric until the end of the epoch; a metric that
follows a loss that was not finite itself is no news. Reads the columns `<metric>_running`, and `loss`.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

SUFFIX = "_running"
LOSS = "loss_running"


class Metric(msgspec.Struct):
    """What is known of one metric: its latest finite cell, its first bad one since, and what was told."""

    clean_step: int | None = None
    bad_step: int | None = None
    told_step: int | None = None
    told: bool = False


class MetricFold(msgspec.Struct):
    """Folds the metrics; each is told once."""

    metrics: dict[str, Metric] = {}
    first_loss_step: int | None = None
    bad_loss_step: int | None = None

    def feed(self, batch: Batch) -> list[Finding]:
        """Return the metrics that turned non-finite, or are finite again."""
        bad_losses = self._note_loss(batch)
        findings: list[Finding] = []
        for name in sorted(batch.columns):
            if name.endswith(SUFFIX) and name != LOSS:
                findings += self._metric(name, batch, bad_losses)
        if bad_losses:
            self.bad_loss_step = bad_losses[-1]
        return findings

    def _note_loss(self, batch: Batch) -> list[int]:
        """Return the steps with a non-finite loss."""
        series = batch.columns.get("loss")
        if series is None or not series.present.any():
            return []
        if self.first_loss_step is None:
            self.first_loss_step = int(batch.steps[series.present.argmax()])
        steps: list[int] = batch.steps[series.present & ~np.isfinite(series.values)].tolist()
        return steps

    def _metric(self, name: str, batch: Batch, bad_losses: list[int]) -> list[Finding]:
        findings: list[Finding] = []
        series = batch.columns[name]
        for row in np.flatnonzero(series.present).tolist():
            step, value = int(batch.steps[row]), float(series.values[row])
            known = self.metrics.setdefault(name, Metric())
            if math.isfinite(value):
                findings += self._finite(name, known, step, value)
            elif known.bad_step is None:
                known.bad_step = step
                if not known.told and self._loss_is_fine(known, step, bad_losses):
                    known.told, known.told_step = True, step
                    findings.append(_nonfinite(name, known, step, value))
        return findings

    def _finite(self, name: str, known: Metric, step: int, value: float) -> list[Finding]:
        known.clean_step, known.bad_step = step, None
        if known.told_step is None:
            return []
        onset, known.told_step = known.told_step, None
        text = f"{_plain(name)} is finite again: {value:.4g} at step {step}"
        return [
            Finding(
                kind="metric_nonfinite", severity="warning", phase="resolve", onset_step=onset,
                detected_step=step, evidence=(Evidence(text=text, series=name, step=step, value=value),),
            )
        ]  # fmt: skip

    def _loss_is_fine(self, known: Metric, step: int, bad_losses: list[int]) -> bool:
        """Whether the loss has been finite in every row that can have gone into this cell."""
        if self.first_loss_step is None or self.first_loss_step > step:
            return False
        place = bisect_right(bad_losses, step)
        latest = bad_losses[place - 1] if place else self.bad_loss_step
        return latest is None or (known.clean_step is not None and latest <= known.clean_step)


def _nonfinite(name: str, known: Metric, step: int, value: float) -> Finding:
    text = f"{_plain(name)} is {_spell(value)} at step {step}, the loss is finite up to there"
    if known.clean_step is not None:
        text += f"; the metric was finite at step {known.clean_step}"
    facts: Flags = {"metric": _plain(name), "was_finite": known.clean_step is not None}
    return Finding(
        kind="metric_nonfinite", severity="warning", onset_step=step, detected_step=step, facts=facts,
        evidence=(Evidence(text=text, series=name, step=step, value=value),),
    )  # fmt: skip


def _plain(name: str) -> str:
    return name.removesuffix(SUFFIX)


def _spell(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"
