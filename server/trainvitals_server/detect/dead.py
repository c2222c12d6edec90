"""Layers whose gradient is exactly 0 and stays so, while layers nearer to the loss go on learning.

That is what units that never fire leave in the gradients; only activations can prove it. Judges blocks of
`layer_grad_norm`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from trainvitals.wire import BoolArray
from trainvitals_server.detect.layer_rows import BLOCK, LayerBlock
from trainvitals_server.finding import Evidence, Finding, Severity

DEAD_ROWS = BLOCK  # at least so many zeros in a row,
PATIENCE = 4  # and so many times the longest gap that this layer has come back from
MAX_NAMED = 8


class LayerPulse(msgspec.Struct, array_like=True):
    """One layer: its zeros in a row, since which step, the longest gap before, and its last live norm."""

    zeros: int = 0
    since: int = 0
    longest: int = 0
    last_norm: float = 0.0
    live_rows: int = 0
    told_since: int | None = None

    def take(self, step: int, norm: float) -> None:
        """Take one more row."""
        if norm == 0.0:
            self.since = self.since if self.zeros else step
            self.zeros += 1
        else:
            self.longest, self.zeros = max(self.longest, self.zeros), 0
            self.last_norm = norm
            self.live_rows += 1

    @property
    def is_dead(self) -> bool:
        """Whether this gap is no gap any more."""
        return self.zeros >= max(DEAD_ROWS, PATIENCE * self.longest)


class DeadFold(msgspec.Struct):
    """Folds blocks of layer norms."""

    pulses: list[LayerPulse] = []

    def feed(self, block: LayerBlock) -> list[Finding]:
        """Return which layers have died, or live again, with this block."""
        if block.is_fresh:
            self.pulses = [LayerPulse() for _ in block.names]
        self._take(block)
        return [*self._revived(block), *self._died(block)]

    def _take(self, block: LayerBlock) -> None:
        is_plain: BoolArray = np.all(block.norms > 0, axis=0)
        last = block.norms[-1].tolist()
        for place, pulse in enumerate(self.pulses):
            if is_plain[place] and not pulse.zeros:
                pulse.last_norm = last[place]
                pulse.live_rows += len(block.steps)
                continue
            for step, norm in zip(block.steps, block.norms[:, place].tolist(), strict=True):
                if not np.isnan(norm):
                    pulse.take(step, norm)

    def _died(self, block: LayerBlock) -> list[Finding]:
        dead = [place for place, pulse in enumerate(self.pulses) if pulse.zeros and pulse.is_dead]
        news = [place for place in dead if self.pulses[place].told_since is None]
        last = block.norms[-1]
        if not news or not (last > 0).any() or np.isnan(last).any():
            return []  # in a row with gradients that are not finite, zeros mean nothing
        since = min(self.pulses[place].since for place in news)
        for place in news:
            self.pulses[place].told_since = since
        # Where the gradient stops, everything further from the loss gets none either.
        is_cut = len(dead) == dead[-1] + 1
        return [self._finding(block, news, since, "warning" if is_cut else "info")]

    def _finding(self, block: LayerBlock, news: list[int], since: int, severity: Severity) -> Finding:
        # The one whose last update was largest is the one that was thrown out of its range.
        by_last = max(news, key=lambda place: self.pulses[place].last_norm)
        place = by_last if self.pulses[by_last].live_rows else news[-1]
        pulse, name = self.pulses[place], block.names[place]
        names = [block.names[place] for place in news]
        rows = f"exactly 0 in all {pulse.zeros} steps it was measured in since step {since}"
        many = "" if len(names) == 1 else f", and so is that of {_list([n for n in names if n != name])}"
        evidence = [Evidence(text=f"the gradient of {name} is {rows}{many}", series="layer_grad_norm",
                             step=since, value=0.0, layer=name)]  # fmt: skip
        if pulse.live_rows:
            before = f"in the step before, the gradient of {name} was {pulse.last_norm:.3g}"
            evidence.append(
                Evidence(text=before, series="layer_grad_norm", value=pulse.last_norm, layer=name)
            )
        return Finding(
            kind="dead_units", severity=severity, onset_step=since, detected_step=block.last_step, layer=name,
            evidence=tuple(evidence),
            facts={"dead_layers": "\n".join(names), "last_norm": pulse.last_norm, "zero_rows": pulse.zeros,
                   "from_the_start": not pulse.live_rows},
        )  # fmt: skip

    def _revived(self, block: LayerBlock) -> list[Finding]:
        findings = []
        for place, pulse in enumerate(self.pulses):
            if pulse.told_since is not None and not pulse.zeros and (block.norms[:, place] > 0).all():
                name = block.names[place]
                text = f"{name} has a gradient again: {pulse.last_norm:.3g}"
                findings.append(
                    Finding(
                        kind="dead_units", severity="warning", phase="resolve", onset_step=pulse.told_since,
                        detected_step=block.last_step, layer=name,
                        evidence=(Evidence(text=text, series="layer_grad_norm", step=block.last_step,
                                           value=pulse.last_norm, layer=name),),
                    )
                )  # fmt: skip
                pulse.told_since = None
        return findings


def _list(names: list[str]) -> str:
    more = "" if len(names) <= MAX_NAMED else f" and {len(names) - MAX_NAMED} more"
    return ", ".join(names[:MAX_NAMED]) + more
