"""Origin: loss and gradient norm of a run's first rows. Finds nothing by itself."""

from __future__ import annotations

import msgspec
import numpy as np

from trainvitals_server.batch import Batch

MAX_ROWS = 24  # after so many a learning rate that suits the run has changed it


class Origin(msgspec.Struct):
    """Keeps the first rows in which both are known and finite; `step`, `loss` and `norm` are of the first."""

    step: int | None = None
    loss: float = 0.0
    norm: float = 0.0
    rows: list[tuple[int, float, float]] = []  # step, loss, norm

    def feed(self, batch: Batch) -> None:
        """Take the rows of `batch`."""
        loss, norm = batch.columns.get("loss"), batch.columns.get("grad_norm")
        if len(self.rows) >= MAX_ROWS or loss is None or norm is None:
            return
        usable = loss.present & norm.present & np.isfinite(loss.values) & np.isfinite(norm.values)
        for row in np.flatnonzero(usable)[: MAX_ROWS - len(self.rows)]:
            self.rows.append((int(batch.steps[row]), float(loss.values[row]), float(norm.values[row])))
        if self.step is None and self.rows:
            self.step, self.loss, self.norm = self.rows[0]
