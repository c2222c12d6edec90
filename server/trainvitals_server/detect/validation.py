"""Validation metrics: non-finite ones, while training itself is fine.

Reads validation events, and the columns `val_...` of a log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.finding import Evidence, Finding


class ValidationFold(msgspec.Struct):
    """Folds validation values."""

    told: list[str] = []

    def feed(self, batch: Batch) -> list[Finding]:
        """Return the first non-finite value of each `val_...` column."""
        findings = []
        for name, series in batch.columns.items():
            if name.startswith("val_") and name not in self.told:
                bad = np.flatnonzero(series.present & ~np.isfinite(series.values))
                if len(bad):
                    findings += self._tell(name, int(batch.steps[bad[0]]), float(series.values[bad[0]]))
        return findings

    def event(self, step: int, data: Mapping[str, object]) -> list[Finding]:
        """Return the non-finite values of one validation event."""
        findings = []
        for name, value in data.items():
            if name.startswith("val_") and isinstance(value, float) and not math.isfinite(value):
                findings += self._tell(name, step, value)
        return findings

    def _tell(self, name: str, step: int, value: float) -> list[Finding]:
        if name in self.told:
            return []
        self.told.append(name)
        text = f"{name} is {'NaN' if math.isnan(value) else 'infinite'} at step {step}"
        return [
            Finding(
                kind="validation_nonfinite", severity="warning", onset_step=step, detected_step=step,
                evidence=(Evidence(text=text, series=name, step=step, value=value),),
                facts={"metric": name},
            )
        ]  # fmt: skip
