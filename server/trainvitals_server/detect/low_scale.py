"""Low scale: the loss scale stays pinned at the bottom, updates go on being skipped, nothing is learned.

A low scale with a loss that falls is fine, and so is a skip now and then: a scaler looks for its place. Skips
that pile up are a collapse, which is `overflow`'s business. Needs `loss`, `loss_scale`, and one of `skipped`,
`grad_nonfinite`, `grad_norm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from trainvitals.wire import BoolArray, FloatArray
from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import LOSS_BLOCK, Block
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

MIN_BLOCKS = 6
BOTTOM = 8.0  # at or below it scaling does next to nothing
LOW_SHARE = 2.0**-10  # of the highest scale so far: ten halvings
SKIP_SHARE = 0.05  # of the updates; a scaler that doubles every 2,000 steps skips one in 2,000
FALL_NOISE = 0.5  # a loss that comes down by more, in units of its noise, is learning
CALM_SHARE = 0.01


class Past(msgspec.Struct, frozen=True):
    """One block: the level and noise of the loss, skipped updates, the highest scale."""

    first_step: int
    level: float
    noise: float
    skips: int
    scale: float


class LowScaleFold(msgspec.Struct):
    """Folds loss, scale and skips in blocks of the loss."""

    highest: float = 0.0
    scale: float = 0.0
    skips: int = 0
    past: list[Past] = []
    told_step: int | None = None

    def feed(self, batch: Batch, blocks: Sequence[Block]) -> list[Finding]:
        """Return a scale that is stuck once it is sure, and its end; `batch` completes `blocks`."""
        findings: list[Finding] = []
        ends = np.searchsorted(batch.steps, [block.last_step for block in blocks], side="right").tolist()
        scales, skips = _scales(batch), np.cumsum(_skipped(batch))
        start = skipped = 0
        for stop, block in zip(ends, blocks, strict=True):
            self._note(scales[start:stop], int(skips[stop - 1]) - skipped)
            start, skipped = stop, int(skips[stop - 1])
            if self.highest:
                self._close(block, findings)
        if start < len(batch):
            self._note(scales[start:], int(skips[-1]) - skipped)
        return findings

    def _note(self, scales: FloatArray, skips: int) -> None:
        self.scale = max(self.scale, float(scales.max()))
        self.highest = max(self.highest, self.scale)
        self.skips += skips

    def _close(self, block: Block, findings: list[Finding]) -> None:
        item = Past(block.first_step, block.level, block.noise, self.skips, self.scale)
        self.past = [*self.past[1 - MIN_BLOCKS :], item]
        self.scale, self.skips = 0.0, 0
        if len(self.past) < MIN_BLOCKS:
            return
        skips = sum(past.skips for past in self.past)
        if self.told_step is None:
            if skips >= SKIP_SHARE * MIN_BLOCKS * LOSS_BLOCK and self._is_low() and not self._learns():
                self.told_step = self.past[0].first_step
                findings.append(self._stuck(block, skips, self.told_step))
        elif skips <= CALM_SHARE * MIN_BLOCKS * LOSS_BLOCK:
            findings.append(_is_over(self.told_step, block, skips))
            self.told_step = None

    def _is_low(self) -> bool:
        limit = max(BOTTOM, LOW_SHARE * self.highest)
        return all(past.scale <= limit for past in self.past) and 2 * self._skipping() >= len(self.past)

    def _skipping(self) -> int:
        return sum(past.skips > 0 for past in self.past)

    def _learns(self) -> bool:
        half = MIN_BLOCKS // 2
        before = median(past.level for past in self.past[:half])
        lately = median(past.level for past in self.past[half:])
        return before - lately > FALL_NOISE * median(past.noise for past in self.past)

    def _stuck(self, block: Block, skips: int, onset: int) -> Finding:
        rows, scale = MIN_BLOCKS * LOSS_BLOCK, self.past[-1].scale
        text = f"the loss scale is {scale:g}; it has been {self.highest:g}"
        beside = f"{skips} of the last {rows} updates were skipped, and the loss stays at {block.level:.4g}"
        facts: Flags = {
            "stuck_scale": scale, "highest_scale": self.highest, "skips": skips, "stuck_rows": rows,
            "level": block.level,
        }  # fmt: skip
        return Finding(
            kind="loss_scale_stuck_low", severity="warning", onset_step=onset, detected_step=block.last_step,
            evidence=(Evidence(text=text, series="loss_scale", step=block.last_step, value=scale),
                      Evidence(text=beside, series="loss", step=block.last_step, value=block.level)),
            facts=facts,
        )  # fmt: skip


def _is_over(onset: int, block: Block, skips: int) -> Finding:
    text = f"only {skips} of the last {MIN_BLOCKS * LOSS_BLOCK} updates were skipped"
    return Finding(
        kind="loss_scale_stuck_low", severity="warning", phase="resolve", onset_step=onset,
        detected_step=block.last_step, evidence=(Evidence(text=text, series="skipped"),),
    )  # fmt: skip


def _scales(batch: Batch) -> FloatArray:
    """Return the loss scale of each row, 0 where there is none."""
    series = batch.columns.get("loss_scale")
    if series is None:
        return np.zeros(len(batch))
    usable = series.present & np.isfinite(series.values) & (series.values >= 0)
    return np.where(usable, series.values, 0.0)


def _skipped(batch: Batch) -> BoolArray:
    """Return which updates were skipped, as far as the rows say."""
    lost = np.zeros(len(batch), dtype=bool)
    for name in ("skipped", "grad_nonfinite"):
        series = batch.columns.get(name)
        if series is not None:
            lost |= series.present & (series.values > 0)
    norm = batch.columns.get("grad_norm")
    if norm is not None:
        lost |= norm.present & ~np.isfinite(norm.values)
    return lost
