"""The preflight: what is wrong with a model, its loss and one batch, told before the first step.

TensorFlow is imported once a preflight is asked for, of a model of it.
"""

from __future__ import annotations

from trainvitals.frameworks import backend, way_of
from trainvitals.preflight.report import PreflightReport
from trainvitals.probe.types import Model, Value

__all__ = ["preflight"]


def preflight(model: Model, batch: Value) -> PreflightReport:
    """Look at a model and one batch, and report what will go wrong.

    Raises:
        TypeError: if `model` is no Keras model, or `batch` is no batch of arrays.
        ValueError: if the batch is empty, or has more parts than x, y and sample weights.
    """
    way = way_of(model)
    if way != "keras":
        what = "of tf_keras" if way == "tf_keras" else f"on {backend()}"
        note = (
            f"a preflight looks at models of Keras 3 on TensorFlow; nothing was looked at of this one {what}"
        )
        return PreflightReport(notes=(note,))
    from trainvitals.preflight.check import checked

    return checked(model, batch)
