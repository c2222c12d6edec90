"""The way into Keras before 3.7: there the train function asks for `model.train_step` when it is traced.

Later ones ask when the train function is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainvitals.probe.keras3 import Probe
from trainvitals.probe.taps import attribute
from trainvitals.probe.types import Model, Value


class LateProbe(Probe):
    """Puts our `train_step` in the user's place for each call of our train function, which may trace it."""

    def _trace(self, model: Model) -> Callable[..., Any]:
        function = super()._trace(model)
        train_step = self._step_of(model)

        def traced(iterator: Value) -> Value:
            with attribute(model, "train_step", train_step):
                return function(iterator)

        return traced

    def _step_of(self, model: Model) -> Callable[[Any], Any]:
        original = model.train_step

        def train_step(data: Value) -> Value:
            return self._train_step(original, data)

        return train_step
