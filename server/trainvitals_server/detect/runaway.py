"""Runaway: a loss that falls below zero without bound, because the labels lie outside its domain.

A negative log-likelihood falls below zero too, but slows down, and stays within a few times of where it
began. What falls ever faster, or far beyond that at an even pace, has no minimum. A cross-entropy cannot be
negative at all while the labels are probabilities. Needs `loss`.
"""

from __future__ import annotations

import msgspec

from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import Block, Blocks
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

BLOCK = 8
SPAN = 6  # blocks in a row, each lower than the one before
IMPOSSIBLE_SPAN = 3  # where the loss cannot be negative
DEEP = 20.0  # times the size of the loss at the start, at an even pace,
ACCELERATED_DEEP = 6.0  # or where it falls this much
ACCELERATION = 1.5  # faster in the second half of the span than in the first, and than over its whole life:
# what slows down is on its way to a minimum
EVEN_PACE = 0.8
TOLD_LEVELS = 6
NEVER_NEGATIVE = ("binarycrossentropy", "categoricalcrossentropy", "sparsecategoricalcrossentropy",
                  "binaryfocalcrossentropy", "categoricalfocalcrossentropy")  # fmt: skip


class RunawayFold(msgspec.Struct):
    """Folds the loss in blocks. `cannot_be_negative` is what the name of the loss says."""

    cannot_be_negative: bool = False
    blocks: Blocks = msgspec.field(default_factory=lambda: Blocks(BLOCK))
    size: float | None = None
    first_level: float = 0.0
    count: int = 0
    levels: list[float] = []
    first_step: int = 0
    told_step: int | None = None

    def know_loss(self, name: str) -> None:
        """Take the name of the compiled loss."""
        plain = name.split("(")[0].lower().replace("_", "")
        self.cannot_be_negative = self.cannot_be_negative or plain in NEVER_NEGATIVE

    def feed(self, batch: Batch) -> list[Finding]:
        """Return a runaway once it is sure."""
        findings: list[Finding] = []
        if self._stays_above_zero(batch):
            self.count += self.blocks.skip(batch, "loss")
            return findings
        for block in self.blocks.cut(batch, "loss"):
            if self.size is None:
                self.size, self.first_level = max(map(abs, block.values)), block.level
            self.count += 1
            self._take(block)
            if self.told_step is None and self._runs_away(self.size):
                self.told_step = self.first_step
                findings.append(self._runaway(block, self.size))
        return findings

    def _stays_above_zero(self, batch: Batch) -> bool:
        """Whether no block of these rows can be below zero."""
        series = batch.columns.get("loss")
        if self.size is None or self.levels or series is None or min(self.blocks.values, default=0.0) < 0:
            return False
        return not bool((series.present & (series.values < 0)).any())

    def _take(self, block: Block) -> None:
        level = block.level
        if level >= 0 or (self.levels and level >= self.levels[-1]):
            self.levels = []
        if level < 0:
            if not self.levels:
                self.first_step = block.first_step
            self.levels = [*self.levels[-SPAN:], level]

    def _runs_away(self, size: float) -> bool:
        levels = self.levels
        if self.cannot_be_negative and len(levels) >= IMPOSSIBLE_SPAN:
            return True
        if len(levels) <= SPAN:
            return False
        half = SPAN // 2
        before, lately = levels[-SPAN - 1] - levels[half - SPAN - 1], levels[half - SPAN - 1] - levels[-1]
        usual = half * (self.first_level - levels[-1]) / max(self.count - 1, 1)
        depth = -levels[-1]
        accelerates = depth >= ACCELERATED_DEEP * size and lately >= ACCELERATION * max(before, usual)
        return accelerates or (depth >= DEEP * size and lately >= EVEN_PACE * max(before, usual))

    def _runaway(self, block: Block, size: float) -> Finding:
        story = ", ".join(f"{level:.4g}" for level in self.levels[-TOLD_LEVELS:])
        text = f"the loss is {block.values[-1]:.4g} at step {block.last_step}; its size at the start was "
        facts: Flags = {
            "loss": block.values[-1], "size": size, "impossible": self.cannot_be_negative,
            "level": self.levels[-1], "block": BLOCK,
            "runaway_rows": BLOCK * len(self.levels),
        }  # fmt: skip
        return Finding(
            kind="runaway_negative_loss", severity="critical", onset_step=self.first_step,
            detected_step=block.last_step, facts=facts,
            evidence=(Evidence(text=f"{text}{size:.4g}", series="loss", step=block.last_step,
                               value=block.values[-1]),
                      Evidence(text=f"its median in groups of {BLOCK} steps: {story}", series="loss",
                               step=self.first_step)),
        )  # fmt: skip
