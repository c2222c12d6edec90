"""Adapter: which probe goes into which Keras."""

from __future__ import annotations

import keras

from trainvitals.probe.keras3 import Probe
from trainvitals.probe.late import LateProbe


def probe_for(way: str) -> type[Probe]:
    """Return the probe for the Keras that is installed, or for tf_keras."""
    if way == "tf_keras":
        from trainvitals.probe.keras2 import OldProbe

        return OldProbe
    is_early: bool = hasattr(keras.Model, "_make_function")
    return Probe if is_early else LateProbe
