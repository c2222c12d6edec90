"""A single layer's gradient that explodes against its own past, also where the global norm hides it.

Judges blocks of `layer_grad_norm`; `gradient` judges the global norm, sooner.
"""

from __future__ import annotations

import msgspec
import numpy as np

from trainvitals.wire import FloatArray
from trainvitals_server.detect.layer_past import LayerPast, pack, unpack
from trainvitals_server.detect.layer_rows import LayerBlock, column_medians
from trainvitals_server.finding import Evidence, Finding

EXPLODED = 1e4  # times the layer's own typical norm,
OWN_WAY = 1e2  # and so much more than what the other layers did meanwhile
ROWS = 3  # of one block
MEMORY = 16  # blocks that are a layer's past
MIN_BLOCKS = 3


class BurstFold(msgspec.Struct):
    """Folds blocks of layer norms."""

    past: LayerPast = msgspec.field(default_factory=lambda: LayerPast(MEMORY))
    first: bytes = b""
    told: bool = False

    def feed(self, block: LayerBlock) -> list[Finding]:
        """Return the layer that has exploded in this block, once."""
        if block.is_fresh:
            self.past.forget()
            self.first, self.told = b"", False
        findings = [] if self.told or len(self.past) < MIN_BLOCKS else self._judge(block)
        if not findings:
            self.first = self.first or pack(block.middles)
            self.past.add(block.middles)
        return findings

    def _judge(self, block: LayerBlock) -> list[Finding]:
        if not (block.norms >= EXPLODED * np.nan_to_num(unpack(self.first))).any():
            return []  # no layer is ever typically less than where it began
        typical = self._typical()
        with np.errstate(all="ignore"):
            growth = block.norms / typical
        high = np.where(np.isfinite(growth), growth, 0.0) >= EXPLODED
        places = np.flatnonzero(high.sum(axis=0) >= ROWS)
        if not len(places):
            return []
        usual = column_medians(np.where(np.isfinite(growth), growth, np.nan))
        place = int(places[np.argmax(usual[places])])
        others = np.delete(usual, place)
        if not np.isnan(others).all() and np.nanmedian(others) * OWN_WAY > EXPLODED:
            return []  # all of them did: the global norm tells that
        self.told = True
        row = int(np.flatnonzero(high[:, place])[0])
        return [_finding(block, place, row, float(typical[place]))]

    def _typical(self) -> FloatArray:
        """Return the layers' usual norms, never less than where they began; NaN while one had none."""
        return np.maximum(self.past.typical(MIN_BLOCKS), np.nan_to_num(unpack(self.first)))


def _finding(block: LayerBlock, place: int, row: int, typical: float) -> Finding:
    name, norm = block.names[place], float(np.nanmax(block.norms[:, place]))
    text = f"the gradient norm of {name} reaches {norm:.3g}; until then it was typically {typical:.3g}"
    return Finding(
        kind="exploding_gradient", severity="warning", onset_step=block.steps[row],
        detected_step=block.last_step, layer=name,
        evidence=(Evidence(text=text, series="layer_grad_norm", step=block.steps[row],
                           value=float(block.norms[row, place]), layer=name),),
        facts={"typical_norm": typical, "norm": norm, "largest_layer": name, "one_layer": True},
    )  # fmt: skip
