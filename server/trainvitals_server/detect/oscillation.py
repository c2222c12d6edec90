"""Oscillation: the loss bounces at the edge of stability instead of coming down. Info.

Three shapes: it alternates from row to row (one row up, one row down: full batches, a rate at the edge); it
does so amid noise, which takes longer to be sure of; or it had learned with little noise and now jumps
between its best and half of its start. A loss whose rows have alternated from the beginning (two losses
logged in turn), a class that costs more now and then, and noise that was there from the beginning or merely
grows are none. Needs `loss`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from trainvitals_server.detect.blocks import LOSS_BLOCK, Block
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

MIN_BLOCKS = 4  # blocks in a row
ALTERNATION = 0.9  # of the rows turn; in noise two of three do
NOISY_BLOCKS = 8  # amid noise, so many blocks
NOISY_ALTERNATION = 0.8  # in which so many rows turn on average: noise is five standard errors below,
NOISY_SWING = 1.5  # and the swing is this many times the least it has been
CALM = 0.8
NOISE_TURNS = 0.74  # noise alone turns less often in most blocks
KEPT_SWING = 0.5  # a bounce that dies away leaves less than this of its swing
KEPT_LEVEL = 0.25  # and one that still learns comes down by more than this share of the swing
LEARNED_NOISE = 6.0  # the run had come down this many times its least noise
HIGH_SHARE = 0.5  # of the way back to the start
LOW_SHARE = 0.2
EACH_SIDE = 0.2  # of the rows are above, and of them below
CALM_BLOCKS = 4


class Bounce(msgspec.Struct, frozen=True):
    """One block: level, swing from row to row, and how it moves."""

    first_step: int
    level: float
    swing: float
    turns: float
    bounces: bool


class OscillationFold(msgspec.Struct):
    """Folds blocks of the loss."""

    start: float | None = None
    best: float = 0.0
    noise: float = 0.0
    was_calm: bool = False
    calm_swing: float = math.inf
    past: list[Bounce] = []
    told: Bounce | None = None
    calm: int = 0

    def feed(self, blocks: Sequence[Block]) -> list[Finding]:
        """Return an oscillation once it goes on, and its end."""
        findings: list[Finding] = []
        for block in blocks:
            item = self._bounce(block)
            self.past = [*self.past[1 - NOISY_BLOCKS :], item]
            if self.told is None:
                self._judge(block, findings)
            else:
                self._watch_for_its_end(block, item, self.told, findings)
        return findings

    def _bounce(self, block: Block) -> Bounce:
        if self.start is None:
            self.start = max(block.values[:5])
            self.best, self.noise = block.level, block.noise
        bounces = self._leaps(block, self.start - self.best)
        self.best, self.noise = min(self.best, block.level), min(self.noise, block.noise)
        if block.turns < CALM:
            self.was_calm, self.calm_swing = True, min(self.calm_swing, block.swing)
        return Bounce(block.first_step, block.level, block.swing, block.turns, bounces)

    def _leaps(self, block: Block, span: float) -> bool:
        """Whether the loss jumps between its best and half of its start."""
        edge = self.best + HIGH_SHARE * span
        if not span >= LEARNED_NOISE * self.noise > 0 or max(block.values) < edge:
            return False
        high = sum(value >= edge for value in block.values)
        low = sum(value <= self.best + LOW_SHARE * span for value in block.values)
        return min(high, low) >= EACH_SIDE * len(block.values)

    def _judge(self, block: Block, findings: list[Finding]) -> None:
        window = self.past[-MIN_BLOCKS:]
        if len(window) < MIN_BLOCKS:
            return
        is_sharp = self.was_calm and _stays(window) and all(item.turns >= ALTERNATION for item in window)
        is_blurred = not is_sharp and self._alternates_in_noise()
        if is_blurred:
            window = [item for item in self.past if item.swing >= NOISY_SWING * self.calm_swing]
        elif not is_sharp and not all(item.bounces for item in window):
            return
        self.told = window[0]
        findings.append(self._oscillation(block, window, alternates=is_sharp or is_blurred))

    def _alternates_in_noise(self) -> bool:
        """Whether rows turn more often than those of noise do, and further than they once did."""
        if len(self.past) < NOISY_BLOCKS or not _stays(self.past):
            return False
        swing = median(item.swing for item in self.past)
        turns = fmean(item.turns for item in self.past)
        return turns >= NOISY_ALTERNATION and swing >= NOISY_SWING * self.calm_swing > 0

    def _watch_for_its_end(self, block: Block, item: Bounce, told: Bounce, findings: list[Finding]) -> None:
        self.calm = 0 if item.turns >= NOISE_TURNS or item.bounces else self.calm + 1
        if self.calm < CALM_BLOCKS:
            return
        text = f"the loss has been calm for {CALM_BLOCKS * LOSS_BLOCK} steps, at {item.level:.4g}"
        findings.append(
            Finding(
                kind="oscillation", severity="info", phase="withdraw", onset_step=told.first_step,
                detected_step=block.last_step,
                evidence=(Evidence(text=text, series="loss", step=block.last_step, value=item.level),),
            )
        )  # fmt: skip
        self.told, self.calm, self.past = None, 0, []

    def _oscillation(self, block: Block, window: Sequence[Bounce], *, alternates: bool) -> Finding:
        low, high, rows = min(block.values), max(block.values), LOSS_BLOCK * len(window)
        how = "up in one row and down in the next" if alternates else "up and down without coming to rest"
        text = f"the loss goes {how}, between {low:.4g} and {high:.4g}, for {rows} steps"
        facts: Flags = {
            "low": low, "high": high, "level": window[-1].level, "best": self.best, "alternates": alternates,
            "bounce_rows": rows,
        }  # fmt: skip
        return Finding(
            kind="oscillation", severity="info", onset_step=window[0].first_step,
            detected_step=block.last_step,
            evidence=(Evidence(text=text, series="loss", step=block.last_step, value=block.values[-1]),),
            facts=facts,
        )  # fmt: skip


def _stays(window: Sequence[Bounce]) -> bool:
    """Whether it neither dies away nor still comes down."""
    first, last = window[0], window[-1]
    return last.swing >= KEPT_SWING * first.swing and first.level - last.level <= KEPT_LEVEL * last.swing
