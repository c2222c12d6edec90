"""Sources: a captured step becomes a scene that can be replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.scene import Scene, WeightsFrom
from trainvitals.probe.capture import Captured, Recorder, current
from trainvitals.probe.optimizers import optimizers_of
from trainvitals.probe.types import Model


class ModelSource:
    """The failing steps of a model in `fit`."""

    def __init__(self, model: Model, capture: Recorder) -> None:
        self._model = model
        self._capture = capture
        self._is_for_skips = False

    @property
    def reason(self) -> str:
        """Why `take` had nothing, where there is a reason to tell."""
        return self._capture.reason

    def settle(self) -> None:
        """Adapt to what is known after some steps."""
        self._capture.settle()

    def arm(self, *, for_skips: bool) -> None:
        """Keep the next failing step; for_skips: or one that a loss scaler skips."""
        self._is_for_skips = for_skips
        self._capture.arm(for_skips=for_skips)

    def take(self, step: int) -> Scene | None:
        """Return the step that was kept, and keep no other one; the rows say that it was `step`."""
        captured = self._capture.take()
        if captured is None:
            return None
        return Scene(
            step=captured.step,
            model=self._model,
            run=self._model.train_step,
            data=captured.data,
            state=self._whole(captured),
            weights_from=self._weights_from(captured),
            optimizers=optimizers_of(self._model),
            counts_overflow=self._is_for_skips,
        )

    def _whole(self, captured: Captured) -> list[tuple[Any, Any]]:
        """Return the state with what was not kept: frozen weights, which are what they were, or no room."""
        kept = {id(variable) for variable, _ in captured.state}
        rest = [variable for variable in self._model.variables if id(variable) not in kept]
        return [*captured.state, *((variable, current(variable)) for variable in rest)]

    def _weights_from(self, captured: Captured) -> WeightsFrom:
        """Weights from after the step are of no use when the step has spoilt them."""
        if captured.weights_from != "after_step":
            return captured.weights_from
        weights = [tf.convert_to_tensor(variable) for variable in self._model.trainable_variables]
        is_finite = all(np.isfinite(np.asarray(weight, np.float64)).all() for weight in weights)
        return "after_step" if is_finite else "none"
