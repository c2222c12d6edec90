"""Speed: steps that take much longer than this run's own. Info.

The first block (tracing, caches) teaches nothing; a slow step now and then (a checkpoint, a validation) does
not count, only blocks whose median is slow. Needs `step_time_s`.
"""

from __future__ import annotations

from statistics import median

import msgspec

from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import Block, Blocks
from trainvitals_server.finding import Evidence, Finding

BLOCK = 32
MIN_KNOWN = 3  # blocks that make a usual speed
MAX_KNOWN = 32
SLOW_FACTOR = 2.0  # times the usual time,
SPREAD_FACTOR = 1.25  # and slower than the slowest block so far
SLOW_BLOCKS = 3  # blocks in a row
OVER_FACTOR = 1.3
OVER_BLOCKS = 3


class SpeedFold(msgspec.Struct):
    """Folds the time of a step."""

    blocks: Blocks = msgspec.field(default_factory=lambda: Blocks(BLOCK))
    seen: int = 0
    known: list[float] = []
    slow: list[float] = []
    slow_step: int = 0
    told_step: int | None = None
    quick: int = 0

    def feed(self, batch: Batch) -> list[Finding]:
        """Return a slow stretch once it is sure, and its end."""
        findings: list[Finding] = []
        for block in self.blocks.cut(batch, "step_time_s"):
            self.seen += 1
            if self.seen == 1 or block.level <= 0:
                continue
            if len(self.known) < MIN_KNOWN:
                self.known.append(block.level)
            else:
                self._judge(block, findings)
        return findings

    def _judge(self, block: Block, findings: list[Finding]) -> None:
        usual = median(self.known)
        if self.told_step is not None:
            self.quick = self.quick + 1 if block.level <= OVER_FACTOR * usual else 0
            if self.quick >= OVER_BLOCKS:
                findings.append(_fast_again(self.told_step, block))
                self.told_step, self.quick, self.slow = None, 0, []
        elif block.level > max(SLOW_FACTOR * usual, SPREAD_FACTOR * max(self.known)):
            if not self.slow:
                self.slow_step = block.first_step
            self.slow = [*self.slow, block.level]
            if len(self.slow) >= SLOW_BLOCKS:
                self.told_step = self.slow_step
                findings.append(_slow(block, self.slow_step, median(self.slow), usual))
        else:
            self.known = [*self.known[1 - MAX_KNOWN :], *self.slow, block.level][-MAX_KNOWN:]
            self.slow = []


def _slow(block: Block, onset: int, now: float, usual: float) -> Finding:
    text = f"a step takes {now:.3g} s since step {onset}; it took {usual:.3g} s before"
    return Finding(
        kind="slow_steps", severity="info", onset_step=onset, detected_step=block.last_step,
        evidence=(Evidence(text=text, series="step_time_s", step=block.last_step, value=now),),
        facts={"step_time": now, "usual_step_time": usual},
    )  # fmt: skip


def _fast_again(onset: int, block: Block) -> Finding:
    text = f"a step takes {block.level:.3g} s again"
    return Finding(
        kind="slow_steps", severity="info", phase="resolve", onset_step=onset, detected_step=block.last_step,
        evidence=(Evidence(text=text, series="step_time_s", step=block.last_step, value=block.level),),
    )  # fmt: skip
