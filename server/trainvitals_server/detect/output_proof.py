"""Proof: what the outputs of layers say about a finding that only their gradients have given away.

A layer's outputs are its own and those of the layers behind it that have no weights, such as a ReLU.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from trainvitals.wire import FloatArray, Layer
from trainvitals_server.detect.output_rows import OutputRow, Watched, watched
from trainvitals_server.detect.outputs import limit_text, silent_text
from trainvitals_server.finding import Evidence, Finding

ALL_DEAD = 0.99  # of the units: a gradient that is exactly 0 needs all of them
SATURATED = 0.5  # of the outputs: enough to keep a gradient back
JUDGED = ("dead_units", "saturation", "vanishing_gradient")


class OutputProof(msgspec.Struct):
    """The last measurement of each layer's outputs."""

    layers: list[Watched] = []
    step: int = -1
    dead: bytes = b""
    saturated: bytes = b""

    def take(self, row: OutputRow, layers: tuple[Layer, ...]) -> None:
        """Take a later row."""
        self.layers, self.step = watched(layers), row.step
        self.dead, self.saturated = row.dead.tobytes(), row.saturated.tobytes()

    def added(self, finding: Finding) -> Finding:
        """Return the finding with what the outputs say about it, if they were measured since its onset."""
        if finding.kind not in JUDGED or finding.phase != "open" or self.step < finding.onset_step:
            return finding
        named = str(finding.facts.get("dead_layers") or finding.layer or "").split("\n")
        owners = [place for place, layer in enumerate(self.layers) if layer.name in named]
        if not owners:
            return finding
        owner, place, share = self._deadest(owners)
        finding = self._with_saturation(finding, owners)
        if share < 0 or finding.kind != "dead_units":
            return finding
        name = self.layers[place].name
        facts = {"dead_share": share, "dead_layer": name, "output_step": self.step,
                 "activation": self.layers[place].activation}  # fmt: skip
        if share < ALL_DEAD:
            return replace(finding, facts={**finding.facts, **facts})
        text = silent_text(name, share, self.step)
        evidence = Evidence(text=text, series="layer_dead_share", step=self.step, value=share, layer=name)
        return replace(
            finding, layer=self.layers[owner].name, evidence=(*finding.evidence, evidence),
            facts={**finding.facts, **facts},
        )  # fmt: skip

    def _with_saturation(self, finding: Finding, owners: list[int]) -> Finding:
        place, share = max((self._largest(self.saturated, owner) for owner in owners), key=lambda one: one[1])
        if share < 0:
            return finding
        layer = self.layers[place]
        facts = {"saturated_share": share, "saturated_layer": layer.name, "output_step": self.step,
                 "activation": layer.activation}  # fmt: skip
        text = limit_text(layer.name, layer.activation, share, self.step)
        evidence = Evidence(text=text, series="layer_saturated_share", step=self.step, value=share,
                            layer=layer.name)  # fmt: skip
        more = (evidence,) if share >= SATURATED else ()
        return replace(finding, evidence=(*finding.evidence, *more), facts={**finding.facts, **facts})

    def _deadest(self, owners: list[int]) -> tuple[int, int, float]:
        """Return the owner, the place and the share of the outputs that are dead.

        Of several the one nearest to the loss: the others get no gradient because of it.
        """
        found = [(owner, *self._largest(self.dead, owner)) for owner in owners]
        dead = [one for one in found if one[2] >= ALL_DEAD]
        return dead[-1] if dead else max(found, key=lambda one: one[2])

    def _largest(self, shares: bytes, owner: int) -> tuple[int, float]:
        """Return the largest share in the outputs of a layer and where it is; -1 where none is known."""
        after = range(owner + 1, len(self.layers))
        stop = next((place for place in after if self.layers[place].has_gradient), len(self.layers))
        part: FloatArray = np.frombuffer(shares)[owner:stop]
        if np.isnan(part).all():
            return owner, -1.0
        place = int(np.nanargmax(part))
        return owner + place, float(part[place])
