"""A loss scale that the gradients do not carry: never applied to the loss, or undone twice.

Both leave updates that are too small by about the factor of the scale, from the first step on, and a loss
that does not move. Needs `loss`, `grad_norm` (unscaled) and `loss_scale`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import MAD_TO_SIGMA, MEDIAN_ERROR
from trainvitals_server.finding import Evidence, Finding

ROWS = 48  # the first ones tell,
LAST_ROWS = 96  # and where noise looked like learning, so many
MIN_SCALE = 64.0  # below it the factor proves nothing
TINY = 1e-3  # of the loss: no model begins with such a gradient,
ORDINARY = (1e-3, 1e3)  # while many begin with one in this range, as it would be without the mistake
MOVES_ERRORS = 2.0  # standard errors between its two halves: the loss moves


class MisuseFold(msgspec.Struct):
    """Folds the first rows of a run under a loss scaler."""

    steps: list[int] = []
    losses: list[float] = []
    norms: list[float] = []
    scales: list[float] = []
    skips: int = 0
    is_judged: bool = False

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the first rows say, once there are enough of them."""
        if self.is_judged:
            return []
        for row in self._rows(batch):
            self._take(*row)
            if len(self.steps) in (ROWS, LAST_ROWS):
                findings = self._judge()
                self.is_judged = bool(findings) or len(self.steps) == LAST_ROWS
                if self.is_judged:
                    self.steps, self.losses, self.norms, self.scales = [], [], [], []
                    return findings
        return []

    def _rows(self, batch: Batch) -> list[tuple[int, float, float, float, bool]]:
        series = [batch.columns.get(name) for name in ("loss", "grad_norm", "loss_scale")]
        there = [item for item in series if item is not None]
        if len(there) < len(series):
            return []
        usable = np.logical_and.reduce([item.present for item in there])
        skipped = batch.columns.get("skipped")
        no = np.zeros(len(batch), dtype=bool)
        is_skipped = no if skipped is None else skipped.present & (skipped.values > 0)
        columns = [item.values[usable].tolist() for item in there]
        return list(zip(batch.steps[usable].tolist(), *columns, is_skipped[usable].tolist(), strict=True))

    def _take(self, step: int, loss: float, norm: float, scale: float, is_skipped: bool) -> None:
        if is_skipped:
            self.skips += 1
        elif all(map(math.isfinite, (loss, norm, scale))) and norm > 0:
            self.steps.append(step)
            self.losses.append(loss)
            self.norms.append(norm)
            self.scales.append(scale)

    def _judge(self) -> list[Finding]:
        size = median(abs(loss) for loss in self.losses)
        norm, scale = median(self.norms), median(self.scales)
        if scale < MIN_SCALE or not 0 < norm <= TINY * size or self._moves():
            return []
        if not ORDINARY[0] * size <= norm * scale <= ORDINARY[1] * size:
            return []
        text = (
            f"the gradient norm, divided by the loss scale as `apply` does, is {norm:.3g} from the first "
            f"step on, at a loss of {size:.3g}; times the scale of {scale:g} it is {norm * scale:.3g}, about "
            "as large as in most models at their start"
        )
        still = f"the loss has not moved in {len(self.losses)} steps"
        return [
            Finding(
                kind="scaler_misuse", severity="warning", onset_step=self.steps[0],
                detected_step=self.steps[-1],
                evidence=(Evidence(text=text, series="grad_norm", step=self.steps[0], value=self.norms[0]),
                          Evidence(text=still, series="loss", step=self.steps[-1], value=self.losses[-1])),
                facts={"norm": norm, "loss_scale": scale, "loss": size, "skips": self.skips},
            )
        ]  # fmt: skip

    def _moves(self) -> bool:
        """Whether the loss or the gradient is another than at the start, beyond noise.

        The noise is that from row to row, to which a descent does not add.
        """
        half = len(self.losses) // 2
        noise = MAD_TO_SIGMA * median(abs(b - a) for a, b in pairwise(self.losses)) / math.sqrt(2)
        error = MEDIAN_ERROR * noise * math.sqrt(2 / half)
        fall = abs(median(self.losses[:half]) - median(self.losses[half:]))
        growth = median(self.norms[half:]) / median(self.norms[:half])
        return fall > MOVES_ERRORS * error or not 0.5 <= growth <= 2.0
