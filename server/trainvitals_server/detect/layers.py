"""The layers' gradient norms: one pass over their rows for all patterns that name a layer."""

from __future__ import annotations

import msgspec

from trainvitals_server.batch import Batch
from trainvitals_server.detect.dead import DeadFold
from trainvitals_server.detect.fading import FadingFold
from trainvitals_server.detect.layer_burst import BurstFold
from trainvitals_server.detect.layer_rows import LayerRows
from trainvitals_server.finding import Finding


class LayerFold(msgspec.Struct):
    """Folds `layer_grad_norm`."""

    rows: LayerRows = msgspec.field(default_factory=LayerRows)
    dead: DeadFold = msgspec.field(default_factory=DeadFold)
    fading: FadingFold = msgspec.field(default_factory=FadingFold)
    bursts: BurstFold = msgspec.field(default_factory=BurstFold)

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about single layers."""
        findings: list[Finding] = []
        for block in self.rows.take(batch):
            findings += [*self.bursts.feed(block), *self.dead.feed(block), *self.fading.feed(block)]
        return findings
