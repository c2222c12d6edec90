"""Gradients that fade on their way back: vanishing over many layers, or cut off at one that is saturated.

Each layer is compared with its neighbours and with its own past. A run whose loss falls is left alone.
Judges blocks of `layer_grad_norm` and `loss`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from trainvitals.wire import FloatArray
from trainvitals_server.detect.layer_past import LayerPast
from trainvitals_server.detect.layer_rows import LayerBlock
from trainvitals_server.finding import Evidence, Finding, Kind

FADED = 1e-5  # of the largest layer's gradient: no learning rate is right for both
CUT = 3e-4  # lost from one layer to the next: this one passes nothing on
FALLEN = 1e-3  # of a layer's own norm before,
KEPT = 0.1  # while the layers nearer to the loss have kept this much of theirs
ABRUPT = 0.1  # a norm still above this (of its own past) in the block before fell at once
MIN_HOPS = 3
GROWING_SHARE = 0.75  # so many hops towards the loss must grow
MEMORY = 8  # blocks that are a layer's past
LATELY = 4  # blocks in which the loss must not fall
BLOCKS = 2  # blocks that a pattern must last
LEARNED = 3.0  # times the noise: what learns all the same is left alone, also once it has converged
MAD_TO_SIGMA = 1.4826


class FadingFold(msgspec.Struct):
    """Folds blocks of layer norms."""

    past: LayerPast = msgspec.field(default_factory=lambda: LayerPast(MEMORY))
    middles: list[float] = []
    noise: float = 0.0
    blocks: int = 0
    first_step: int = 0
    pattern: tuple[Kind, int] | None = None
    pattern_blocks: int = 0
    pattern_step: int = 0
    pattern_loss: float = math.inf
    told: tuple[Kind, int] | None = None
    told_step: int = 0
    told_layer: str = ""
    clear_blocks: int = 0

    def feed(self, block: LayerBlock) -> list[Finding]:
        """Return what this block says."""
        if block.is_fresh:
            self._forget(block)
        norms = block.positive_middles
        if np.isnan(norms).all():
            return []
        top = float(np.nanmax(norms))
        self._note_loss(block)
        pattern = self._fall(norms) or _fade(norms / top)
        findings = self._judge(block, pattern, norms)
        self.blocks += 1
        if pattern is None:
            self.past.add(norms)
        return findings

    def _forget(self, block: LayerBlock) -> None:
        self.past.forget()
        self.blocks, self.first_step = 0, block.steps[0]
        self.pattern, self.pattern_blocks, self.told, self.clear_blocks = None, 0, None, 0

    def _note_loss(self, block: LayerBlock) -> None:
        losses = block.losses[~np.isnan(block.losses)].tolist()
        if len(losses) < 2:
            return
        self.noise = MAD_TO_SIGMA * median(abs(b - a) for a, b in pairwise(losses)) / 2**0.5
        self.middles = [*self.middles[1 - LATELY :], median(losses)]

    def _learns(self) -> bool:
        """Whether the loss falls, has fallen since the pattern began, or is not known for long enough."""
        if len(self.middles) < LATELY:
            return True
        now = self.middles[-1]
        if self.pattern_blocks <= LATELY:
            self.pattern_loss = min(self.pattern_loss, now)
        return self.middles[0] - now > self.noise / 2 or self.pattern_loss - now > LEARNED * self.noise

    def _fall(self, norms: FloatArray) -> tuple[Kind, int] | None:
        """Return the layer nearest to the loss that lost its gradient, as did all before it; None: no one."""
        if len(self.past) < LATELY or not norms[0] < FALLEN * self.past.largest(0):
            return None  # the layer nearest to the input has not fallen
        usual = self.past.typical()
        kept = norms / usual
        still = np.flatnonzero(~(kept < FALLEN))
        fallen = (int(still[0]) if len(still) else len(kept)) - 1
        others = kept[fallen + 1 :][kept[fallen + 1 :] > 0]
        if fallen < 0 or not len(others) or np.median(others) < KEPT:
            return None
        at_once = self.past.latest()[fallen] >= ABRUPT * usual[fallen]
        return ("saturation" if at_once else "vanishing_gradient"), fallen

    def _judge(self, block: LayerBlock, pattern: tuple[Kind, int] | None, norms: FloatArray) -> list[Finding]:
        if self.told is not None:
            return self._over(block, pattern)
        if pattern is None or pattern != self.pattern:
            self.pattern, self.pattern_blocks, self.pattern_step = pattern, 0, block.steps[0]
            self.pattern_loss = math.inf
        self.pattern_blocks += 1
        learns = self._learns()
        if pattern is None or self.pattern_blocks < BLOCKS or learns:
            return []
        self.told, self.told_step = pattern, self.pattern_step
        self.told_layer = block.names[pattern[1]]
        return [self._finding(block, *pattern, norms)]

    def _over(self, block: LayerBlock, pattern: tuple[Kind, int] | None) -> list[Finding]:
        self.clear_blocks = 0 if pattern else self.clear_blocks + 1
        if self.clear_blocks < BLOCKS or self.told is None:
            return []
        text = f"the gradient reaches {self.told_layer} again"
        finding = Finding(
            kind=self.told[0], severity="warning", phase="resolve", onset_step=self.told_step,
            detected_step=block.last_step, layer=self.told_layer,
            evidence=(Evidence(text=text, series="layer_grad_norm", step=block.last_step,
                               layer=self.told_layer),),
        )  # fmt: skip
        self.told = self.pattern = None
        return [finding]

    def _finding(self, block: LayerBlock, kind: Kind, place: int, norms: FloatArray) -> Finding:
        top = int(np.nanargmax(norms))
        name, norm, largest = block.names[place], float(norms[place]), float(norms[top])
        text = (
            f"the gradient of {name} is {norm:.3g}, that of {block.names[top]} {largest:.3g} "
            f"(medians of {len(block.steps)} steps)"
        )
        told = [(text, "layer_grad_norm", norm, name)]
        if len(self.past) >= LATELY:
            past = float(np.nan_to_num(self.past.typical()[place]))
            told.append((f"before, it was about {past:.2g}", "layer_grad_norm", past, name))
        told.append((f"the loss has stayed at {self.middles[-1]:.4g}", "loss", self.middles[-1], ""))
        evidence = [
            Evidence(text=text, series=series, step=block.last_step, value=value, layer=layer or None)
            for text, series, value, layer in told
        ]
        return Finding(
            kind=kind, severity="warning", onset_step=self.pattern_step, detected_step=block.last_step,
            layer=name, evidence=tuple(evidence),
            facts={"layer_norm": norm, "top_norm": largest, "top_layer": block.names[top],
                   "share": norm / largest, "from_the_start": self.pattern_step == self.first_step,
                   "layers": len(block.names)},
        )  # fmt: skip


def _fade(shares: FloatArray) -> tuple[Kind, int] | None:
    """Return how the gradient fades towards the input, and the layer to name: None where it does not."""
    if not (shares <= FADED).any():
        return None
    known = [(place, share) for place, share in enumerate(shares.tolist()) if share > 0]  # NaN is not
    low = next((index for index, (_, share) in enumerate(known) if share <= FADED), None)
    top = max(range(len(known)), key=lambda index: known[index][1])
    if low is None or top <= low:
        return None
    hops = [before[1] / after[1] for before, after in pairwise(known[low : top + 1])]
    steepest = min(range(len(hops)), key=hops.__getitem__)
    cut = low + steepest + 1
    if not low and max(share for _, share in known[:cut]) <= CUT * min(share for _, share in known[cut:]):
        return "saturation", known[cut - 1][0]
    is_chain = len(hops) >= MIN_HOPS and sum(hop < 1 for hop in hops) >= GROWING_SHARE * len(hops)
    return ("vanishing_gradient", known[low][0]) if is_chain else None
