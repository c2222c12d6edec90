"""The layers' gradient norms: one pass over their rows for all patterns that name a layer.

What the layers gave out, where that was measured, proves or refutes what the gradients say, and shows some of
it by itself.
"""

from __future__ import annotations

import msgspec

from trainvitals_server.batch import Batch
from trainvitals_server.detect.dead import DeadFold
from trainvitals_server.detect.fading import FadingFold
from trainvitals_server.detect.layer_burst import BurstFold
from trainvitals_server.detect.layer_rows import LayerRows
from trainvitals_server.detect.output_proof import OutputProof
from trainvitals_server.detect.output_rows import output_rows
from trainvitals_server.detect.outputs import OutputFold
from trainvitals_server.finding import Finding


class LayerFold(msgspec.Struct):
    """Folds `layer_grad_norm` and the series of the layers' outputs."""

    rows: LayerRows = msgspec.field(default_factory=LayerRows)
    dead: DeadFold = msgspec.field(default_factory=DeadFold)
    fading: FadingFold = msgspec.field(default_factory=FadingFold)
    bursts: BurstFold = msgspec.field(default_factory=BurstFold)
    outputs: OutputFold = msgspec.field(default_factory=OutputFold)
    proof: OutputProof = msgspec.field(default_factory=OutputProof)

    def feed(self, batch: Batch) -> list[Finding]:
        """Return what the rows of `batch` say about single layers."""
        findings: list[Finding] = []
        measured = list(output_rows(batch))
        for block in self.rows.take(batch):
            while measured and measured[0].step <= block.last_step:
                self.proof.take(measured.pop(0), batch.layers)
            found = [*self.bursts.feed(block), *self.dead.feed(block), *self.fading.feed(block)]
            findings += [self.proof.added(finding) for finding in found]
        if measured:
            self.proof.take(measured[-1], batch.layers)
        return findings + self.outputs.feed(batch)
