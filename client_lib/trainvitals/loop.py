"""Reporter: the same vital signs for a training loop of your own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from trainvitals import wire
from trainvitals.autopsy.loop_source import LoopSource
from trainvitals.autopsy.watch import failures
from trainvitals.autopsy.wiring import Autopsy
from trainvitals.guard import Guard
from trainvitals.identity import identify
from trainvitals.odd import LeftOut, as_number, as_step, shown
from trainvitals.probe.decode import Decoded
from trainvitals.probe.loop import LoopProbe, as_tensor
from trainvitals.probe.optimizers import updates_of
from trainvitals.probe.types import Optimizer, Tensor
from trainvitals.response import Policy, loop_response
from trainvitals.rows import Cells, Rows
from trainvitals.session import Session

READ_EVERY_S = 0.05
READ_SHARE = 0.01
PROMISE_S = 600.0  # your loop may validate, save and compile whenever it likes
PROMISE_AGAIN_S = 60.0
MAX_FAILED_STEPS = 20  # in a row: then it is no odd step, and each try costs time
ODD = (TypeError, ValueError, OverflowError)

T = TypeVar("T")
_log = logging.getLogger("trainvitals")


class Reporter:
    """Streams the vital signs of a loop to a trainvitals server.

    ```python
    with Reporter("http://localhost:8765", project="gan") as reporter:
        for x, y in data:
            loss, gradients = train_step(x, y)  # your tf.function, which calls optimizer.apply
            reporter.step(loss=loss, gradients=gradients, variables=variables, optimizer=optimizer)
    ```

    The arguments are those of `HealthReporter`, and

    Args:
        on_nonfinite: "continue", or "stop": then `stop_requested` becomes True. A loop tells of a step after
            its update, so that none can be kept out.
        replay: Your step as a function of the batch that `step` is given: run again, eagerly, when a step
            went non-finite. It returns the loss, or that first. What it changes is undone.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        project: str = "default",
        name: str | None = None,
        run_id: str | None = None,
        token: str | None = None,
        tags: Sequence[str] = (),
        config: Mapping[str, object] | None = None,
        group: str | None = None,
        on_incident: Callable[[wire.IncidentNotice], None] | None = None,
        spool_dir: str | Path | None = None,
        rank: int | None = None,
        resume_step: int | None = None,
        console: bool = True,
        on_nonfinite: Policy = "continue",
        autopsy: bool = True,
        share_batch: bool = False,
        redact: bool = False,
        replay: Callable[[Any], Any] | None = None,
    ) -> None:
        identity = identify(
            url,
            project=project,
            name=name,
            run_id=run_id,
            token=token,
            tags=tags,
            config=config,
            group=group,
            rank=rank,
            resume_step=resume_step,
        )
        self._response = loop_response(on_nonfinite, autopsy, share_batch, redact)
        self._session = Session(identity, on_incident=on_incident, spool_dir=spool_dir, console=console)
        self._autopsy = Autopsy(self._session, self._response)
        self._source = LoopSource(replay) if replay is not None and autopsy else None
        self._is_halted = False
        self._probe = LoopProbe()
        self._steps: list[tuple[int, float, float, Mapping[str, Any]]] = []  # (step, end, seconds, metrics)
        self._step = self._session.identity.resume_step or 0
        self._knows_first_step = False
        self._layout_id = 0
        self._clock = time.perf_counter()
        self._next_read = 0.0
        self._promised_until = 0.0
        self._guard = Guard()
        self._left_out = LeftOut()
        self._failed_steps = 0  # in a row
        self._lacks_loss = False  # the last step's loss was odd
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._session.when_left(self._read_rest)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._session.identity.run_id

    @property
    def dashboard_url(self) -> str:
        """The address of the run's page."""
        return self._session.identity.dashboard_url

    @property
    def stop_requested(self) -> bool:
        """True once somebody asked on the dashboard for the run to stop, or `on_nonfinite="stop"` does.

        Leave your loop when you like.
        """
        return self._session.stop_requested or self._is_halted

    def __enter__(self) -> Self:
        self._clock = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how it ended: finished, interrupted by Ctrl-C, or failed by the exception."""
        with self._guard:
            self._end(error)

    def step(
        self,
        *,
        loss: Tensor = None,
        gradients: Sequence[Any] | None = None,
        variables: Sequence[Any] | None = None,
        optimizer: Optimizer = None,
        loss_scale: float | None = None,
        metrics: Mapping[str, Any] | None = None,
        step: int | None = None,
        batch: Any = None,  # noqa: ANN401 - as `replay` takes it
    ) -> None:
        """Report one training step; call it outside `tf.function`, after the optimizer's `apply`.

        Nothing is read back from the device here. Tensors and numpy arrays will both do. What cannot be
        reported, such as a loss that is a text, is left out and said once in the log.

        Args:
            loss: The loss as optimised, unscaled.
            gradients: What you gave to the optimizer's `apply`. With a `LossScaleOptimizer` these are the
                scaled ones, which it divides by its scale: the norms are divided in the same way.
            variables: The variables that the gradients are of, in the same order.
            optimizer: Gives learning rate, step and loss scale.
            loss_scale: For scaling of your own: what the loss was multiplied by. Norms are divided by it.
            metrics: Further numbers, one series each.
            step: The number of the step, if you count yourself; it must rise.
            batch: What the step was made with, for `replay`; it is held by reference, for some steps.
        """
        if self._guard.is_off:
            return
        with self._lock:
            self._watch_thread()
            with self._guard:
                self._report(loss, gradients, variables, optimizer, loss_scale, metrics, step, batch)

    def _watch_thread(self) -> None:
        thread = threading.get_ident()
        if self._thread not in (None, thread):
            _log.warning("one Reporter is used by two threads, as one run; give each a Reporter of its own")
            self._thread = None
        elif self._thread is None and not self._knows_first_step:
            self._thread = thread

    def _report(
        self,
        loss: Tensor,
        gradients: Sequence[Any] | None,
        variables: Sequence[Any] | None,
        optimizer: Optimizer,
        loss_scale: float | None,
        metrics: Mapping[str, Any] | None,
        step: int | None,
        batch: Any,  # noqa: ANN401
    ) -> None:
        given = self._checked("step", as_step, step)
        if given is None and step is not None:
            return
        first_step = self._first_step(given, optimizer)
        number = self._step if given is None else given
        if number < self._step:
            self._left_out.add("step", f"step {number} was reported after step {self._step - 1}")
            return
        if not self._session.is_open:
            self._session.open(self._probe.environment(optimizer, self._session.identity.config), first_step)
            self._promise()
        tensor = self._checked("loss", as_tensor, loss)
        self._keep_order(lacks_loss=tensor is None and loss is not None)
        scale = self._checked("loss scale", as_number, loss_scale)
        is_written = self._write(number, tensor, gradients or (), variables or (), optimizer, scale)
        if self._source is not None:
            self._source.note(number, batch, variables or (), optimizer)
        now = time.perf_counter()
        if is_written:
            self._steps.append((number, now, now - self._clock, self._named(metrics)))
        self._clock, self._step = now, number + 1
        if now >= self._next_read or len(self._steps) >= self._probe.capacity // 2:
            self._read()

    def _checked(self, label: str, convert: Callable[[Any], T], value: object) -> T | None:
        if value is None:
            return None
        try:
            return convert(value)
        except ODD as error:
            self._left_out.add(label, f"{label} {shown(value)}: {wire.clip(str(error))}")
            return None

    def _named(self, metrics: object) -> Mapping[str, Any]:
        if metrics is None or isinstance(metrics, Mapping):
            return metrics or {}
        self._left_out.add("metrics", f"metrics must be a dict, not {shown(metrics)}")
        return {}

    def _keep_order(self, *, lacks_loss: bool) -> None:
        """Read what there is before a step of another shape: each shape has a ring of its own."""
        if lacks_loss != self._lacks_loss:
            self._lacks_loss = lacks_loss
            self._read()

    def _write(self, number: int, *arguments: Any) -> bool:  # noqa: ANN401 - those of the probe
        try:
            self._probe.write(number, *arguments)
        except Exception as error:  # TensorFlow's are many; one bad step must not be the end
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise
            self._left_out.add("step", f"step {number}: {wire.clip(str(error))}")
            return False
        self._failed_steps = 0
        return True

    def _first_step(self, step: int | None, optimizer: Optimizer) -> int:
        """Return the step with which an earlier run is gone on with, once; 0 when there is none."""
        if self._knows_first_step:
            return 0
        self._knows_first_step = True
        identity = self._session.identity
        if identity.is_resumable and identity.resume_step is None:  # the first update was made by now
            self._step = int(step) if step is not None else max(updates_of(optimizer) - 1, 0)
        return self._step

    def _read_rest(self) -> None:
        if self._steps:
            with self._guard:
                self._read(looks=False)

    def _read(self, *, looks: bool = True) -> None:
        began = time.perf_counter()
        pieces = self._probe.read()
        sender = self._session.sender
        if self._probe.layout_changed:
            self._probe.layout_changed = False
            environment = self._probe.environment(None, self._session.identity.config)
            self._layout_id = sender.layout(self._probe.groups.layers, environment)
        fastest_s = min((seconds for _, _, seconds, _ in self._steps), default=0.0)
        notes, self._steps = {step: rest for step, *rest in self._steps}, []
        for piece in pieces:
            known: list[Any] = [notes.get(int(step), (began, 0.0, {})) for step in piece.steps]
            columns = {**self._metric_columns([metrics for _, _, metrics in known]), **piece.columns}
            columns["step_time_s"] = (np.array([seconds for _, seconds, _ in known], dtype=np.float64), None)
            times = np.array([end for end, _, _ in known], dtype=np.float64) + (time.time() - began)
            sender.rows(Rows(piece.steps, times, columns, piece.layer_columns, self._layout_id))
            self._session.last_step = int(piece.steps[-1])
        took = time.perf_counter() - began
        if pieces and looks:
            self._look(pieces, fastest_s)
        now = time.perf_counter()
        self._next_read = now + max(READ_EVERY_S, took / READ_SHARE)
        if now >= self._promised_until:
            self._promise()

    def _look(self, pieces: list[Decoded], step_s: float) -> None:
        """Have a step that failed examined, and end the loop if that is asked for."""
        if self._source is not None and self._autopsy.look(pieces, self._source, step_s):
            self._clock = time.perf_counter()
        failed = [step for piece in pieces for step in piece.steps[failures(piece)]]
        if not failed:
            if self._source is not None:
                self._source.confirm(int(pieces[-1].steps[-1]))
        elif self._response.policy == "stop" and not self._is_halted:
            self._is_halted = True
            self._session.sender.say(f"step {failed[0]} went non-finite: stop_requested is True now")

    def _promise(self) -> None:
        self._promised_until = time.perf_counter() + PROMISE_AGAIN_S
        self._session.sender.heartbeat(PROMISE_S, "training")

    def _end(self, error: BaseException | None) -> None:
        if not self._session.is_open:
            if error is not None:
                return
            self._session.open(self._probe.environment(None, self._session.identity.config))
        if self._steps:
            self._read(looks=error is None)
        if text := self._left_out.take():
            self._session.sender.event("message", max(self._step - 1, 0), {"text": text})
        if error is not None:
            self._session.leave(error)
        else:
            halted = "a step went non-finite" if self._is_halted else ""
            self._session.bye("stopped" if self.stop_requested else "finished", halted)

    def _metric_columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Cells]:
        columns: dict[str, Cells] = {}
        for name in dict.fromkeys(name for metrics in rows for name in metrics):
            cells = [self._checked("metric", as_number, metrics.get(name)) for metrics in rows]
            present = np.array([cell is not None for cell in cells])
            if present.any():
                values = np.array([0.0 if cell is None else cell for cell in cells], dtype=np.float64)
                columns[str(name)] = (values, None if present.all() else present)
        return columns
