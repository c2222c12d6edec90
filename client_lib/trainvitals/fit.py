"""Fit: what happens between the begin and the end of training: when rows are read, what is promised and told.

Everything here runs in the training thread, between two executions of the train function.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from trainvitals.autopsy.sources import ModelSource
from trainvitals.autopsy.wiring import Autopsy
from trainvitals.budget import DEFAULT_SHARE
from trainvitals.effort import Effort
from trainvitals.guard import Guard
from trainvitals.halt import Halt
from trainvitals.odd import as_number
from trainvitals.probe.decode import Decoded
from trainvitals.probe.environment import describe
from trainvitals.probe.keras3 import Probe
from trainvitals.probe.kinds import steps_per_execution_of
from trainvitals.probe.optimizers import scaling_of, updates_of
from trainvitals.probe.types import Model, Value
from trainvitals.response import Response
from trainvitals.rows import Cells, Rows
from trainvitals.session import Session

READ_EVERY_S = 0.1  # a person at the page sees no difference to less
READ_SHARE = 0.01  # reading may take one hundredth of the time; slower reads come less often
STARTUP_PROMISE_S = 600.0  # the first step compiles
VALIDATION_PROMISE_S = 600.0
CHECKPOINT_PROMISE_S = 600.0
RESUME_PROMISE_S = 120.0  # between epochs: other callbacks work, a shuffle buffer fills again
ABANDON_MARK = "_trainvitals_abandon"  # on our train function: ends the `fit` that it was made for
SMALLEST_PROMISE_S = 15.0
PROMISE_STEPS = 20  # so many times the last step's time may pass before a step is late

_log = logging.getLogger("trainvitals")


class Fit:
    """The reporter's side of one model in training; kept over several calls of `fit`."""

    def __init__(
        self,
        session: Session,
        response: Response,
        on_stop: Callable[[], None] = lambda: None,
        probe: type[Probe] = Probe,
        overhead_budget: float = DEFAULT_SHARE,
        activations_every: int = 0,
    ) -> None:
        self._session = session
        self._probe = probe(
            captures=response.autopsy, policy=response.policy, activations_every=activations_every
        )
        self._effort = Effort(overhead_budget)
        self._halt = Halt(session)
        self._on_stop = on_stop
        self._autopsy = Autopsy(session, response)
        self._source: ModelSource | None = None  # of failing steps
        self._fastest_s: float | None = None  # step; the first execution, which compiles, does not count
        self._model: Value = None
        self._params: Mapping[str, Any] = {}
        self._step = 0  # of the next row
        self._layout_id = 0
        self._executions: list[tuple[float, float]] = []  # (end, seconds)
        self._logs: Mapping[str, Any] = {}
        self._clock = 0.0
        self._next_read = 0.0
        self._limit = self._size = 1
        self._guard = Guard()
        self._is_armed = False  # Keras is about to call the train function in a `fit` of ours
        self._is_waiting = False  # for the first epoch of this `fit`
        self.is_displaced = False  # another reporter has our place in this `fit`
        self._epoch_data: Callable[[], object] = _nothing  # the iterator that this epoch's batches come from
        self._knows_first_step = False
        self._thread = 0
        self._promise_ends = 0.0
        session.when_left(self._read_rest)

    def begin(self, model: Model, params: Mapping[str, Any]) -> None:
        """Install the probe."""
        abandon = getattr(model.train_function, ABANDON_MARK, self.abandon)
        self._displace(getattr(abandon, "__self__", None))
        abandon()
        self.abandon()
        self._model, self._params = model, params
        self._probe.install(model, self._around, self._watch_save)
        self._effort.begin(model)
        capture = self._probe.capture
        self._source = None if capture is None else ModelSource(model, capture)
        self._size = steps_per_execution_of(model)
        self._limit = max(1, self._probe.capacity // 2 // self._size)
        self._executions, self._logs, self._fastest_s = [], {}, None
        self._halt.begin()
        self._autopsy.begin()
        self._is_waiting, self._thread = True, threading.get_ident()
        self.is_displaced = False

    def _displace(self, other: object) -> None:
        """Take the place of another reporter that began with this very `fit`: one model has one probe."""
        if isinstance(other, Fit) and other is not self and other._is_waiting:
            other._is_waiting, other.is_displaced = False, True
            ours, theirs = self._session.identity.run_id, other._session.identity.run_id
            _log.warning("two reporters in one fit: run %s gets the rows, run %s gets none", ours, theirs)

    def abandon(self) -> None:
        """End what an exception left behind: Keras tells nobody."""
        self._session.read_rest()
        self._session.leave()
        self._probe.remove()

    def begin_epoch(self, epoch: int) -> None:
        """Let the next execution's time begin now."""
        if self._is_waiting:
            self._open(epoch)
        self._epoch_data = _nothing
        self._clock = time.perf_counter()

    def arm(self) -> None:
        """Expect one call of the train function: outside a `fit` of ours it reports nothing."""
        if self._is_waiting:
            self._open(0)
        self._is_armed = True

    def note(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Do nothing: the graph tells all of it."""

    def hurry(self, *, is_training_thread: bool) -> None:
        """Read now, or after the next execution if another thread asks."""
        if is_training_thread:
            self.read()
        else:
            self._next_read = 0.0

    def begin_validation(self) -> None:
        """Send what there is and promise to be back after the validation."""
        self.read()
        self._promise(VALIDATION_PROMISE_S, "validation")

    def end_validation(self) -> None:
        """Promise steps again."""
        self._promise(RESUME_PROMISE_S)

    def end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Send the epoch's last rows and its metrics."""
        self.read()
        step = max(self._step - 1, 0)
        numbers = {str(name): float(value) for name, value in logs.items() if _is_number(value)}
        running = {f"{name}_running": value for name, value in numbers.items() if not name.startswith("val_")}
        self._session.sender.event("epoch", step, {"epoch": epoch, **running})
        validation = {name: value for name, value in numbers.items() if name.startswith("val_")}
        if validation:
            self._session.sender.event("validation", step, {"epoch": epoch, **validation})
        self._promise(RESUME_PROMISE_S)

    def end(self) -> None:
        """Send the last rows, restore the model, say goodbye."""
        if self._is_waiting:
            self._open(0)
        self.read()
        self._probe.remove()
        is_stopped = self._session.stop_requested or self._halt.stopped
        self._session.bye("stopped" if is_stopped else "finished", self._halt.stopped)

    def read(self, *, looks: bool = True) -> None:
        """Take the new rows out of the ring, hand them to the sender, and look at a step that failed."""
        began = time.perf_counter()
        pieces = self._probe.read()
        self._send_layout(pieces)
        executions, self._executions = self._executions, []
        brake = self._probe.brake
        for piece in pieces:
            kept = piece if brake is None else self._halt.marked(piece, brake)
            if kept is not None:
                self._send(kept, executions, began)
        if self._halt.stopped and not self._model.stop_training:
            self._model.stop_training = True
            self._on_stop()
        for note in self._probe.notes:
            self._session.sender.event("message", max(self._step - 1, 0), {"text": note})
        self._probe.notes.clear()
        took = time.perf_counter() - began
        self._effort.note(took)
        self._judge(pieces)
        if looks:
            self._look(pieces, [seconds for _, seconds in executions])
        now = time.perf_counter()
        self._next_read = now + max(READ_EVERY_S, took / READ_SHARE)
        if executions:
            self._promise_steps(max(seconds for _, seconds in executions), now)

    def _judge(self, pieces: list[Decoded]) -> None:
        """Decide how much is measured from now on; only the training thread may tell the graph."""
        if threading.get_ident() == self._thread:
            has_incident, self._session.trouble_told = self._session.trouble_told, False
            self._effort.look(pieces, self._probe, self._step, has_incident=has_incident)

    def _look(self, pieces: list[Decoded], seconds: list[float]) -> None:
        """Have a step that failed examined; its time is none of the next step's."""
        if self._source is None or not pieces or threading.get_ident() != self._thread:
            return
        counted = seconds[1:] if self._fastest_s is None else seconds
        self._fastest_s = min([self._fastest_s or math.inf, *counted])
        size = steps_per_execution_of(self._model)
        step_s = 0.0 if math.isinf(self._fastest_s) else self._fastest_s / size
        if self._autopsy.look(pieces, self._source, step_s):
            self._clock = time.perf_counter()

    def _open(self, epoch: int) -> None:
        """Open the session: by the first epoch every callback has restored what it restores."""
        self._is_waiting = False
        model, identity = self._model, self._session.identity
        first_step = 0
        if not self._knows_first_step:
            self._knows_first_step = True
            self._step = first_step = identity.first_step(
                updates=updates_of(model.optimizer),
                is_exact=scaling_of(model.optimizer) != "dynamic",
                whole_epochs=epoch * int(self._params.get("steps") or 0),
            )
        self._session.open(describe(model, self._params, {}, identity.config), first_step)
        self._probe.begin(self._step)
        self._promise(STARTUP_PROMISE_S)

    def _read_rest(self) -> None:
        if self._executions:
            with self._guard:
                self.read(looks=False)

    @contextmanager
    def _watch_save(self, path: str) -> Iterator[None]:
        """Tell of a checkpoint once it is written, with the last step that is in it."""
        is_seen = threading.get_ident() == self._thread and self._session.is_open
        if is_seen:
            with self._guard:
                self.read()
            self._promise(CHECKPOINT_PROMISE_S, "checkpoint")
        step = self._session.last_step
        yield
        if is_seen:
            if step is not None:
                self._session.sender.event("checkpoint", step, {"path": path})
            self._promise(RESUME_PROMISE_S)

    def _around(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def train_function(iterator: Value) -> Value:
            if not self._takes(iterator):
                self._read_rest()
                return function(iterator)
            with self._guard:
                self._before()
            try:
                logs = function(iterator)
            except BaseException as error:
                with self._guard:
                    self._effort.drop()
                self._leave(error)
                raise
            self._after(logs)
            return logs

        setattr(train_function, ABANDON_MARK, self.abandon)
        return train_function

    def _before(self) -> None:
        """Measure what is to be measured of the model before the coming execution."""
        coming = self._step + len(self._executions) * self._size
        # Every execution but the last of an epoch, after which rows are read, takes the same steps.
        if not self._guard.is_off and (not self._executions or self._effort.is_near_trouble(coming)):
            self._effort.before(coming, self._probe)

    def _takes(self, iterator: Value) -> bool:
        """Return whether this call is Keras's next step in a `fit` of ours.

        After an exception between two batches we may still be armed: then the data is not that of our epoch.
        """
        is_armed, self._is_armed = self._is_armed, False
        epoch_data = self._epoch_data()
        if is_armed and epoch_data is None:
            with suppress(TypeError):  # an iterator of another make: then we are as sure as we can be
                self._epoch_data = weakref.ref(iterator)
        return is_armed and (epoch_data is None or epoch_data is iterator)

    def _after(self, logs: Value) -> None:
        """Note one execution; the only thing that happens on the host in every step."""
        now = time.perf_counter()
        self._executions.append((now, now - self._clock))
        with self._guard:
            self._effort.after(now - self._clock, self._probe)
        self._clock, self._logs = time.perf_counter(), logs  # the next step's time begins after it
        if self._guard.is_off:
            self._executions.clear()
        elif now >= self._next_read or len(self._executions) >= self._limit:
            with self._guard:
                self.read()
        if self._session.stop_requested:
            self._model.stop_training = True

    def _leave(self, error: BaseException) -> None:
        """Tell that an exception leaves the train function. The end of the data comes as one, too."""
        if isinstance(error, StopIteration) or type(error).__name__ == "OutOfRangeError":
            return
        with self._guard:
            self.read(looks=False)
        with self._guard:
            self._session.leave(error)

    def _promise_steps(self, step_s: float, now: float) -> None:
        """Promise the next steps soon: when a third of it is over, or where a long promise still stands."""
        seconds = max(SMALLEST_PROMISE_S, PROMISE_STEPS * step_s)
        if not seconds * 2 / 3 <= self._promise_ends - now <= 2 * seconds:
            self._promise(seconds)

    def _promise(self, seconds: float, activity: str = "training") -> None:
        self._promise_ends = time.perf_counter() + seconds
        self._session.sender.heartbeat(seconds, activity)

    def _send_layout(self, pieces: list[Decoded]) -> None:
        if not self._probe.layout_changed:
            return
        self._probe.layout_changed = False
        config = self._session.identity.config
        environment = describe(self._model, self._params, self._probe.operations, config, _batch_size(pieces))
        self._layout_id = self._session.sender.layout(self._probe.groups.layers, environment)

    def _send(self, piece: Decoded, executions: list[tuple[float, float]], now: float) -> None:
        first, last = int(piece.steps[0]), int(piece.steps[-1])
        if first > self._step:
            self._session.sender.lost("ring_overflow", self._step, first - 1, first - self._step)
        self._step = last + 1
        self._session.last_step = last
        ends, seconds = self._clock_of(len(piece.steps), executions, now)
        columns = {**piece.columns, **dict(self._running(len(piece.steps)))}
        if executions:
            columns["step_time_s"] = (seconds, None)
        share = self._effort.share(now)
        if share is not None:
            columns["overhead_share"] = _last_of(share, len(piece.steps))
        layer_columns = self._effort.weights.add_to(columns, piece, self._probe.groups)
        rows = Rows(piece.steps, ends + (time.time() - now), columns, layer_columns, self._layout_id)
        self._session.sender.rows(rows)

    def _clock_of(
        self, count: int, executions: list[tuple[float, float]], now: float
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return when each row's execution ended and how long a step took; only the last may be short."""
        if not executions:
            return np.full(count, now), np.zeros(count)
        size = steps_per_execution_of(self._model)
        table = np.array(executions)
        place = np.minimum(np.arange(count) // size, len(table) - 1)
        steps = np.bincount(place, minlength=len(table))
        return table[place, 0], table[place, 1] / steps[place]

    def _running(self, count: int) -> Iterator[tuple[str, Cells]]:
        """Yield the running metrics as the last execution returned them: one cell, in the last row."""
        if not isinstance(self._logs, Mapping):
            return
        for name, value in self._logs.items():
            if name != "loss" and _is_number(value):
                yield f"{name}_running", _last_of(float(value), count)


def _last_of(value: float, count: int) -> Cells:
    """Return a column of `count` rows of which only the last has a value."""
    return np.full(count, value), np.arange(count) == count - 1


def _nothing() -> None:
    return None


def _batch_size(pieces: list[Decoded]) -> int | None:
    cells = pieces[0].columns.get("batch_size") if pieces else None
    return int(cells[0].max()) if cells is not None else None


def _is_number(value: Value) -> bool:
    try:
        as_number(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
