"""The failing steps of a loop of the user's own: its last batches, and snapshots of its variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.scene import Scene, WeightsFrom
from trainvitals.probe.snapshots import Snapshots
from trainvitals.probe.types import Optimizer, Value

MAX_BATCHES = 256  # the rows of two reads
MAX_BYTES = 256 << 20  # of all batches that are held
WEIGH_EVERY = 64  # batches


class LoopSource:
    """Makes scenes of a loop whose step is `replay`, a function of the batch."""

    def __init__(self, replay: Callable[[Any], Any]) -> None:
        self._replay = replay
        self._batches: deque[tuple[int, Value]] = deque(maxlen=MAX_BATCHES)
        self._count = 0
        self._snapshots = Snapshots()
        self._variables: Sequence[Any] = ()
        self._optimizer: Optimizer = None
        self._is_for_skips = False
        self.reason = ""

    def note(self, step: int, batch: Value, variables: Sequence[Any], optimizer: Optimizer) -> None:
        """Hold a batch by reference, and now and then the variables."""
        variables = [one for one in variables if hasattr(one, "assign")]  # another framework's are not
        self._variables, self._optimizer = variables, optimizer
        self._snapshots.note(step, variables, optimizer)
        if batch is None:
            return
        if self._count % WEIGH_EVERY == 0:
            fits = max(1, min(MAX_BATCHES, MAX_BYTES // max(_bytes(batch), 1)))
            if fits != self._batches.maxlen:
                self._batches = deque(self._batches, maxlen=fits)
        self._count += 1
        self._batches.append((step, batch))

    def confirm(self, step: int) -> None:
        """Take note that all steps up to `step` were sound."""
        self._snapshots.confirm(step)

    def settle(self) -> None:
        """Adapt to what is known after some steps: nothing here."""

    def arm(self, *, for_skips: bool) -> None:
        """Keep the next failing step; for_skips: or one that a loss scaler skips."""
        self._is_for_skips = for_skips

    def take(self, step: int) -> Scene | None:
        """Return what is known of `step`."""
        self.reason = ""
        batch = next((batch for number, batch in self._batches if number == step), None)
        snapshot = self._snapshots.before(step)
        self._snapshots.forget_newest()
        if batch is None:
            self.reason = "reporter.step was not given its batch, or it is no longer held"
            return None
        if snapshot is None and not self._is_sound():
            self.reason = "no snapshot was taken of the weights before it"
            return None
        source: WeightsFrom = "after_step"
        if snapshot is not None:
            source = "before_step" if snapshot.step == step - 1 else "snapshot"
        return Scene(
            step=step,
            model=None,
            run=self._replay,
            data=batch,
            state=self._now() if snapshot is None else snapshot.state,
            weights_from=source,
            optimizers=() if self._optimizer is None else (self._optimizer,),
            counts_overflow=self._is_for_skips,
        )

    def _now(self) -> list[tuple[Any, Any]]:
        return [(variable, tf.convert_to_tensor(variable)) for variable in self._variables]

    def _is_sound(self) -> bool:
        values = [np.asarray(value) for _, value in self._now()]
        return all(np.isfinite(one.astype(np.float64)).all() for one in values)


def _bytes(batch: Value) -> int:
    parts = [one for one in tf.nest.flatten(batch, expand_composites=True) if one is not None]
    return sum(int(getattr(one, "nbytes", 0)) or int(np.size(one)) * 8 for one in parts)
