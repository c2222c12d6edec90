"""Plateau: a loss that is no better than where the run began, or no better than guessing. Info.

A run that has learned and is done is flat too, and is none. Nor is a loss whose level wanders (a GAN) or
that scatters around zero (a policy gradient): it says nothing about learning. Needs `loss`; reads
`learning_rate` (while it is raised it is too early to judge) and `grad_norm` (for the diagnosis).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from trainvitals_server.batch import Batch
from trainvitals_server.detect.blocks import LOSS_BLOCK, MEDIAN_ERROR, Block, Latest
from trainvitals_server.detect.rows import Flags
from trainvitals_server.finding import Evidence, Finding

MIN_BLOCKS = 10  # fewer rows cannot tell a slow start from none
MAX_BLOCKS = 64  # blocks that are remembered; half of them are judged
SLOPE_LIMIT = 0.35  # a descent from half to half that may be larger is learning; in units of the noise
SURE_ERRORS = 2.0  # standard errors
SAME_ERRORS = 3.0
WANDER_FACTOR = 2.0  # blocks that differ by more than their noise explains
START_NOISE = 0.3  # as good as the start: its later half no further below it, in units of the noise
START_BLOCKS = 2
OVER_NOISE = 1.0  # clearly better than the plateau, for two blocks
LOOSELY = 3.0  # times these limits, for a single block
RAISED = 1.5  # a learning rate that still warms up
GUESSING_CLASSES = 20  # beyond it the logarithms lie too close
GUESSING_SHARE = 0.001  # at the logarithm of a number of classes to a thousandth,
GUESSING_NOISE = 0.01  # and hardly any noise: the answer is the same for every sample


class Past(msgspec.Struct, frozen=True):
    """What is remembered of one block."""

    first_step: int
    level: float
    noise: float
    rate: float | None
    norm: float | None


class PlateauFold(msgspec.Struct):
    """Folds blocks of the loss."""

    rate: Latest = msgspec.field(default_factory=lambda: Latest("learning_rate"))
    norm: Latest = msgspec.field(default_factory=lambda: Latest("grad_norm"))
    head: list[Past] = []
    past: list[Past] = []
    count: int = 0
    told: Past | None = None
    better: int = 0

    def feed(self, batch: Batch, blocks: Sequence[Block]) -> list[Finding]:
        """Return a plateau once it is sure, and its end; `blocks` are those that `batch` completes."""
        findings: list[Finding] = []
        for block in blocks:
            rate, norm = self.rate.at(batch, block.last_step), self.norm.at(batch, block.last_step)
            item = Past(block.first_step, block.level, block.noise, rate, norm)
            if len(self.head) < START_BLOCKS:
                self.head.append(item)
            self.past = [*self.past[1 - MAX_BLOCKS :], item]
            self.count += 1
            self._judge(block, item, findings)
        self.rate.pass_by(batch)
        self.norm.pass_by(batch)
        return findings

    def _judge(self, block: Block, item: Past, findings: list[Finding]) -> None:
        if self.told is not None:
            self._watch_for_its_end(block, item, self.told, findings)
            return
        start = median(past.level for past in self.head)
        if item.level < start - OVER_NOISE * item.noise and not _guessed_classes(item, LOOSELY):
            return
        window = self.past[-max(MIN_BLOCKS, min(self.count, MAX_BLOCKS) // 2) :]
        if len(window) < MIN_BLOCKS or _still_warms_up(window):
            return
        noise = median(past.noise for past in window)
        level = median(past.level for past in window)
        if not _is_flat(window, noise):
            return
        classes = _guessed_classes(Past(0, level, noise, None, None), 1.0)
        later = median(past.level for past in window[len(window) // 2 :])
        unlearned = later >= start - START_NOISE * noise and abs(level) > noise
        if not unlearned and classes is None:
            return
        window = _whole_stretch(self.past, window, level, noise)
        self.told = Past(window[0].first_step, level, noise, item.rate, None)
        findings.append(_plateau(block, window, start, self.told, classes))

    def _watch_for_its_end(self, block: Block, item: Past, told: Past, findings: list[Finding]) -> None:
        self.better = self.better + 1 if item.level < told.level - OVER_NOISE * told.noise else 0
        if self.better < 2:
            return
        text = f"the loss has come down to {item.level:.4g} since"
        findings.append(
            Finding(
                kind="plateau", severity="info", phase="withdraw", onset_step=told.first_step,
                detected_step=block.last_step,
                evidence=(Evidence(text=text, series="loss", step=block.last_step, value=item.level),),
            )
        )  # fmt: skip
        self.told, self.better, self.past, self.count = None, 0, [], 0


def _still_warms_up(window: list[Past]) -> bool:
    rates = [past.rate for past in window if past.rate is not None]
    return bool(rates) and rates[-1] > RAISED * min(rates)


def _is_flat(window: list[Past], noise: float) -> bool:
    """Whether the levels neither fall nor wander, as far as their noise lets it be known."""
    levels = [past.level for past in window]
    half = len(levels) // 2
    error = MEDIAN_ERROR * noise / math.sqrt(LOSS_BLOCK)
    fall = sum(levels[:half]) / half - sum(levels[-half:]) / half
    doubt = SURE_ERRORS * error * math.sqrt(2 / half)
    return fall + doubt <= SLOPE_LIMIT * noise and _spread(levels) <= WANDER_FACTOR * error


def _whole_stretch(past: list[Past], window: list[Past], level: float, noise: float) -> list[Past]:
    """Return the window with the blocks right before it that are at the same level."""
    room = SAME_ERRORS * MEDIAN_ERROR * noise / math.sqrt(LOSS_BLOCK)
    start = len(past) - len(window)
    while start and abs(past[start - 1].level - level) <= room:
        start -= 1
    return past[start:]


def _spread(levels: list[float]) -> float:
    scale = max(map(abs, levels))
    if not 0 < scale < math.inf:
        return 0.0
    middle = sum(level / scale for level in levels) / len(levels)
    return scale * math.sqrt(sum((level / scale - middle) ** 2 for level in levels) / len(levels))


def _guessed_classes(at: Past, slack: float) -> int | None:
    """Return among how many classes guessing costs exactly this loss, with so much slack."""
    if at.level <= 0 or at.noise > slack * GUESSING_NOISE * at.level:
        return None
    classes = round(math.exp(min(at.level, math.log(GUESSING_CLASSES + 1))))
    if not 2 <= classes <= GUESSING_CLASSES:
        return None
    cost = math.log(classes)
    return classes if abs(at.level - cost) <= slack * GUESSING_SHARE * cost else None


def _plateau(block: Block, window: list[Past], start: float, told: Past, classes: int | None) -> Finding:
    rows = len(window) * LOSS_BLOCK
    norms = [past.norm for past in window if past.norm is not None]
    text = f"the median loss is {told.level:.3g} over {rows} logged steps; the run began at {start:.3g}"
    guess = () if classes is None else (
        Evidence(text=f"that is what guessing among {classes} classes costs (ln {classes} = "
                 f"{math.log(classes):.4g})", series="loss", step=block.last_step, value=told.level),
    )  # fmt: skip
    facts: Flags = {
        "level": told.level, "noise": told.noise, "start": start, "plateau_rows": rows,
        "span_steps": block.last_step - window[0].first_step, "learning_rate": told.rate,
        "typical_norm": median(norms) if norms else None, "classes": classes,
    }  # fmt: skip
    return Finding(
        kind="plateau", severity="info", onset_step=told.first_step, detected_step=block.last_step,
        evidence=(Evidence(text=text, series="loss", step=block.last_step, value=told.level), *guess),
        facts=facts,
    )  # fmt: skip
