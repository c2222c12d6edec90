"""MetricsFit: reports a `fit` whose steps cannot be looked into, by what Keras logs of them.

Keras logs running means. Of the means before and after a step the step's own loss is worked out; a step of
which that cannot be said has none, rather than a wrong one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainvitals.odd import as_number
from trainvitals.probe.environment import describe
from trainvitals.probe.layers import group_variables
from trainvitals.probe.types import Model
from trainvitals.rows import Cells, Rows
from trainvitals.session import Session

READ_EVERY_S = 0.25
STARTUP_PROMISE_S = 600.0  # the first step compiles
LONG_PROMISE_S = 600.0
PROMISE_S = 120.0  # nobody tells how long a step may take


@dataclass(frozen=True, slots=True)
class _Logged:
    """What Keras told after one execution."""

    batch: int  # within the epoch, of its last step
    time: float
    logs: Mapping[str, Any]


class MetricsFit:
    """The reporter's side of one model in training, on a backend that shows no more than its metrics."""

    is_displaced = False

    def __init__(self, session: Session, backend: str) -> None:
        self._session = session
        self._backend = backend
        self._model: Model = None
        self._params: Mapping[str, Any] = {}
        self._lock = threading.Lock()
        self._logged: list[_Logged] = []
        self._mean = RunningMean()
        self._step = 0  # the first of this epoch
        self._layout_id = 0
        self._clock = 0.0
        self._next_read = 0.0
        self._is_waiting = False  # for the first epoch of this `fit`
        session.when_left(self._read_rest)

    def begin(self, model: Model, params: Mapping[str, Any]) -> None:
        """Begin with a `fit`; the first epoch opens the session."""
        self.abandon()
        self._model, self._params, self._is_waiting = model, params, True

    def abandon(self) -> None:
        """End what an exception left behind: Keras tells nobody."""
        self._session.read_rest()
        self._session.leave()
        self._logged.clear()

    def begin_epoch(self, epoch: int) -> None:
        """Let the means begin anew, as those of Keras do."""
        if self._is_waiting:
            self._open(epoch)
        self._step += self._mean.steps  # of the last epoch, or of one that an exception cut short
        self._mean = RunningMean()
        self._clock = time.time()

    def arm(self) -> None:
        """Look whether it is time to send, and whether somebody wants the training to end."""
        if self._is_waiting:
            self._open(0)
        if time.perf_counter() >= self._next_read:
            self._read()
        if self._session.stop_requested:
            self._model.stop_training = True

    def note(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Keep what Keras tells of an execution."""
        with self._lock:
            self._logged.append(_Logged(batch, time.time(), dict(logs)))

    def hurry(self, *, is_training_thread: bool) -> None:
        """Read before the next execution."""
        self._next_read = 0.0

    def begin_validation(self) -> None:
        """Promise to be back after the validation."""
        self._read()
        self._session.sender.heartbeat(LONG_PROMISE_S, "validation")

    def end_validation(self) -> None:
        """Promise steps again."""
        self._session.sender.heartbeat(PROMISE_S, "training")

    def end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Send the epoch's last rows and its metrics."""
        self._read(is_over=True)
        numbers = _numbers(logs)
        running = {f"{name}_running": value for name, value in numbers.items() if not name.startswith("val_")}
        step = max(self._step + self._mean.steps - 1, 0)
        self._session.sender.event("epoch", step, {"epoch": epoch, **running})
        validation = {name: value for name, value in numbers.items() if name.startswith("val_")}
        if validation:
            self._session.sender.event("validation", step, {"epoch": epoch, **validation})
        self._session.sender.heartbeat(PROMISE_S, "training")

    def end(self) -> None:
        """Send the last rows and say goodbye."""
        if self._is_waiting:
            self._open(0)
        self._read(is_over=True)
        self._session.bye("stopped" if self._session.stop_requested else "finished")

    def _open(self, epoch: int) -> None:
        self._is_waiting = False
        identity, sender = self._session.identity, self._session
        first_step = identity.first_step(
            updates=0, is_exact=False, whole_epochs=epoch * int(self._params.get("steps") or 0)
        )
        self._step = max(self._step, first_step)
        environment = describe(self._model, self._params, {}, identity.config)
        sender.open(environment, first_step)
        layers = group_variables(self._model.trainable_variables, self._model).layers
        if not self._layout_id:
            text = (
                f"Keras runs on {self._backend}: gradients, loss scale and the first bad operation cannot be "
                "seen there. Loss and metrics are worked out from the means that Keras logs."
            )
            sender.sender.say(text)
            sender.sender.event("message", self._step, {"text": text})
        self._layout_id = sender.sender.layout(layers, environment)
        sender.sender.heartbeat(STARTUP_PROMISE_S, "training")

    def _read_rest(self) -> None:
        self._read(is_over=True)

    def _read(self, *, is_over: bool = False) -> None:
        """Send what was logged; of an epoch that goes on, all but the last, which may be of a short batch.

        Keras's threads tell of executions in any order: what is out of it waits for those before.
        """
        with self._lock:
            logged = sorted(self._logged, key=lambda one: one.batch)
            count = len(logged) if is_over else max(min(self._in_order(logged), len(logged) - 1), 0)
            logged, self._logged = logged[:count], logged[count:]
        self._next_read = time.perf_counter() + READ_EVERY_S
        if logged:
            self._send(logged, is_over=is_over)
            self._session.sender.heartbeat(PROMISE_S, "training")

    def _in_order(self, logged: Sequence[_Logged]) -> int:
        size, expected = int(self._model.steps_per_execution or 1), self._mean.steps
        for count, one in enumerate(logged):
            expected += size
            if one.batch + 1 != expected:
                return count
        return len(logged)

    def _send(self, logged: Sequence[_Logged], *, is_over: bool) -> None:
        losses, seconds, steps = [], [], []
        most = int(self._params.get("steps") or 0) or math.inf  # Keras counts a last execution as a whole one
        for place, one in enumerate(logged):
            is_last = is_over and place == len(logged) - 1
            before, after = self._mean.steps, int(min(one.batch + 1, most))
            losses.append(self._mean.take(after, one.logs.get("loss"), is_last=is_last))
            seconds.append(max(one.time - self._clock, 0.0) / max(after - before, 1))
            steps.append(self._step + after - 1)
            self._clock = max(one.time, self._clock)
        columns = {"step_time_s": (np.array(seconds), None), "loss": _cells(losses)}
        rows = [_numbers(one.logs) for one in logged]
        for name in dict.fromkeys(name for row in rows for name in row if name != "loss"):
            columns[f"{name}_running"] = _cells([row.get(name) for row in rows])
        kept = {name: cells for name, cells in columns.items() if cells[1] is None or cells[1].any()}
        times = np.array([one.time for one in logged])
        numbers = np.array(steps, dtype=np.int64)
        self._session.sender.rows(Rows(numbers, times, kept, {}, self._layout_id))
        self._session.last_step = steps[-1]


class RunningMean:
    """Works out single values from the means of all values so far."""

    def __init__(self) -> None:
        self.steps = 0
        self._mean = 0.0

    def take(self, steps: int, mean: object, *, is_last: bool) -> float | None:
        """Return the mean of the values since the last call, or None where it cannot be told.

        The last batch of an epoch may be a short one, which weighs less, nobody says how much. After a value
        that is not finite, the mean says no more of those that follow.
        """
        before, self.steps = self.steps, max(steps, self.steps)
        try:
            after = as_number(mean)
        except (TypeError, ValueError, OverflowError):
            return None
        last, self._mean = self._mean, after
        if not math.isfinite(last) or self.steps == before:
            return None
        if not math.isfinite(after) or not before:
            return after
        return None if is_last else (after * self.steps - last * before) / (self.steps - before)


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name, value in logs.items():
        try:
            found[str(name)] = as_number(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return found


def _cells(values: Sequence[float | None]) -> Cells:
    present = np.array([value is not None for value in values])
    numbers = np.array([0.0 if value is None else value for value in values])
    return numbers, None if present.all() else present
