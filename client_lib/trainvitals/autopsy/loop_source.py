"""The failing steps of a loop of the user's own: its last batches, and snapshots of its variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from trainvitals.autopsy.reach import moving_variables
from trainvitals.autopsy.scene import Scene, WeightsFrom
from trainvitals.probe.apart import apart
from trainvitals.probe.capture import Capture, current
from trainvitals.probe.loop_model import LoopModel
from trainvitals.probe.observed import Given
from trainvitals.probe.optimizers import optimizers_of
from trainvitals.probe.snapshots import Snapshots
from trainvitals.probe.tracing import is_within_xla, value_before, was_applied
from trainvitals.probe.types import Optimizer, Tensor, Value

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
        self._optimizers: Sequence[Any] = ()
        self._moving: tuple[object, list[Any]] = (None, [])  # what it was looked up for, and found
        self._model = LoopModel()
        self._capture: Capture | None = None
        self._is_for_skips = False
        self.reason = ""

    def note(
        self, step: int, batch: Value, variables: Sequence[Any], optimizers: Sequence[Optimizer]
    ) -> None:
        """Hold a batch by reference, and now and then the variables; to be called after the update."""
        self._variables = [one for one in variables if hasattr(one, "assign")]  # another framework's are not
        self._optimizers = optimizers
        if self._capture is None:
            self._snapshots.note(step, self._variables, self._others)
        if batch is None:
            return
        if self._count % WEIGH_EVERY == 0:
            fits = max(1, min(MAX_BATCHES, MAX_BYTES // max(_bytes(batch), 1)))
            if fits != self._batches.maxlen:
                self._batches = deque(self._batches, maxlen=fits)
        self._count += 1
        self._batches.append((step, batch))

    def forget(self) -> None:
        """Let batches and snapshots go: which step each was of is not known."""
        self._batches.clear()
        self._snapshots = Snapshots()

    def watch(self, given: Given) -> tuple[Capture | None, list[tuple[Any, Tensor]]]:
        """Return what keeps failing steps of the function that is traced, and what is held of its start.

        Nothing does within XLA, which knows no queue for a batch, nor after the update: there are snapshots.
        """
        if is_within_xla() or was_applied(given.optimizer):
            return None, []
        if self._capture is None:
            self._capture = apart(lambda: Capture(self._model))
        held = [(one, value_before(one)) for one in self._moving_of(given.variables)]
        known = [(one, value) for one, value in held if value is not None]
        self._model.add(given.variables, [one for one, _ in known], given.optimizer)
        return self._capture, known

    def confirm(self, step: int) -> None:
        """Take note that all steps up to `step` were sound."""
        self._snapshots.confirm(step)

    def settle(self) -> None:
        """Adapt to what is known after some steps: nothing here."""

    def arm(self, *, for_skips: bool) -> None:
        """Keep the next failing step; for_skips: or one that a loss scaler skips."""
        self._is_for_skips = for_skips
        if self._capture is not None:
            self._capture.arm(for_skips=for_skips)

    def take(self, step: int) -> Scene | None:
        """Return what is known of `step`."""
        self.reason = ""
        captured = None if self._capture is None else self._capture.take()
        if captured is not None:
            optimizers = optimizers_of(self._model)
            # An optimizer that comes first has made its update by the time that another one's step fails.
            source: WeightsFrom = "mostly_before_step" if len(optimizers) > 1 else captured.weights_from
            trained = self._model.trainable_variables
            state = self._whole(captured.state, trained, optimizers)
            return self._scene(captured.step, captured.data, state, source, optimizers)
        batch = next((batch for number, batch in self._batches if number == step), None)
        snapshot = self._snapshots.before(step)
        self._snapshots.forget_newest()
        if batch is None:
            self.reason = "reporter.step was not given its batch, or it is no longer held"
            return None
        if snapshot is None and not self._is_sound():
            self.reason = "no snapshot was taken of the weights before it"
            return None
        source = "after_step"
        if snapshot is not None:
            source = "before_step" if snapshot.step == step - 1 else "snapshot"
        state = self._now() if snapshot is None else snapshot.state
        state = self._whole(state, self._variables, self._optimizers)
        return self._scene(step, batch, state, source, self._optimizers)

    def _scene(
        self,
        step: int,
        batch: Value,
        state: Sequence[tuple[Any, Any]],
        source: WeightsFrom,
        optimizers: Sequence[Any],
    ) -> Scene:
        return Scene(
            step=step,
            model=None,
            run=self._replay,
            data=batch,
            state=state,
            weights_from=source,
            optimizers=tuple(optimizers),
            counts_overflow=self._is_for_skips,
        )

    def _whole(
        self, state: Sequence[tuple[Any, Any]], trained: Sequence[Any], optimizers: Sequence[Any]
    ) -> list[tuple[Any, Any]]:
        """Return it with what was not kept, and is what it is now, in an order that another process knows."""
        held = {id(variable): value for variable, value in state}
        listed = all_of(trained, self._moving_of(trained), optimizers)
        return [(one, held[id(one)] if id(one) in held else current(one)) for one in listed]

    def _others(self) -> list[Any]:
        """Return what a step changes besides the variables that are trained."""
        slots = [slot for one in self._optimizers for slot in one.variables]
        return [*slots, *self._moving_of(self._variables)]

    def _moving_of(self, variables: Sequence[Any]) -> list[Any]:
        """Return the statistics and seeds of the models that the step is made of; looked up once for each."""
        key = tuple(id(one) for one in variables)
        if self._moving[0] != key:
            trained = set(key)
            found = moving_variables(self._replay)
            self._moving = key, [one for one in found if id(one) not in trained]
        return self._moving[1]

    def _now(self) -> list[tuple[Any, Any]]:
        return [(variable, tf.convert_to_tensor(variable)) for variable in self._variables]

    def _is_sound(self) -> bool:
        values = [np.asarray(value) for _, value in self._now()]
        return all(np.isfinite(one.astype(np.float64)).all() for one in values)


def all_of(variables: Sequence[Any], moving: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    """Return all variables that a loop's step may change, each once."""
    slots = [slot for one in optimizers for slot in one.variables]
    return list({id(one): one for one in (*variables, *moving, *slots)}.values())


def _bytes(batch: Value) -> int:
    parts = [one for one in tf.nest.flatten(batch, expand_composites=True) if one is not None]
    return sum(int(getattr(one, "nbytes", 0)) or int(np.size(one)) * 8 for one in parts)
