"""Origin: loss and gradient norm of a run's first row. Finds nothing by itself."""

from __future__ import annotations

import msgspec
import numpy as np

from trainvitals_server.batch import Batch


class Origin(msgspec.Struct):
    """Keeps the first row in which both are known and finite."""

    step: int | None = None
    loss: float = 0.0
    norm: float = 0.0

    def feed(self, batch: Batch) -> None:
        """Take the rows of `batch`."""
        loss, norm = batch.columns.get("loss"), batch.columns.get("grad_norm")
        if self.step is not None or loss is None or norm is None:
            return
        usable = loss.present & norm.present & np.isfinite(loss.values) & np.isfinite(norm.values)
        if usable.any():
            row = int(np.flatnonzero(usable)[0])
            self.step = int(batch.steps[row])
            self.loss, self.norm = float(loss.values[row]), float(norm.values[row])
