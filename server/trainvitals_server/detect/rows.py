"""Rows: one present cell of a series with the flags of its row, as plain Python numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainvitals_server.batch import Batch

Flags = dict[str, float | int | str | bool | None]
FLAG_SERIES = (
    "grad_norm", "grad_nonfinite", "loss_scale", "skipped", "learning_rate", "input_nonfinite",
    "label_nonfinite", "weight_nonfinite",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One present cell of a series. `index` is its row in the batch."""

    step: int
    value: float
    index: int
    batch: Batch

    @property
    def flags(self) -> Flags:
        """What else this row says; a series that is missing in it is left out."""
        return flags_at(self.batch, self.index)

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of this row; None where there is none."""
        series = self.batch.columns.get("loss_scale")
        if series is None or not series.present[self.index]:
            return None
        scale = float(series.values[self.index])
        return scale if scale > 0 else None


def flags_at(batch: Batch, index: int) -> Flags:
    """Return the values of the known series in one row of `batch`."""
    found: Flags = {}
    for name in FLAG_SERIES:
        series = batch.columns.get(name)
        if series is not None and series.present[index]:
            found[name] = float(series.values[index])
    largest = largest_layer(batch, index)
    if largest is not None:
        found["largest_layer"] = largest
    bad = bad_layers(batch, index)
    if bad is not None:
        names = [batch.layers[place].name for place in bad]
        found["bad_layers"] = "\n".join(names)
        found["layers"] = sum(layer.has_gradient for layer in batch.layers)
    return found


def bad_layers(batch: Batch, index: int) -> list[int] | None:
    """Return which layers have non-finite gradients in one row, in the model's order; None if unknown."""
    series = batch.layer_columns.get("layer_grad_nonfinite")
    if series is None or not batch.layers or not series.present[index].any():
        return None
    bad = series.present[index] & ~(series.values[index] == 0)
    return [int(place) for place in np.flatnonzero(bad)]


def largest_layer(batch: Batch, index: int) -> str | None:
    """Return the layer with the largest gradient norm in one row; None if unknown."""
    series = batch.layer_columns.get("layer_grad_norm")
    if series is None or not batch.layers:
        return None
    norms = np.where(series.present[index], series.values[index], -np.inf)
    norms[np.isnan(norms)] = np.inf
    return batch.layers[int(norms.argmax())].name if norms.max() > 0 else None
