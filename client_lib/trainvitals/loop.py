"""Reporter: the same vital signs for a training loop of your own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainvitals import wire
from trainvitals.autopsy.loop_watch import LoopWatch
from trainvitals.guard import Guard
from trainvitals.identity import identify
from trainvitals.loop_rows import LoopRows
from trainvitals.notebook import as_html
from trainvitals.odd import LeftOut, as_mapping, as_number, as_step
from trainvitals.one_thread import OneThread
from trainvitals.probe.loop import as_tensor
from trainvitals.probe.observed import Given, as_single, as_value, flat
from trainvitals.probe.optimizers import updates_of
from trainvitals.probe.tracing import as_written, is_traced, outside
from trainvitals.probe.types import Optimizer, Tensor
from trainvitals.response import Policy, loop_response
from trainvitals.session import Session

PROMISE_S = 600.0  # your loop may validate, save and compile whenever it likes
PROMISE_AGAIN_S = 60.0


class Reporter:
    """Streams the vital signs of a loop to a trainvitals server.

    ```python
    reporter = Reporter("http://localhost:8765", project="gan")

    @tf.function
    def train_step(x, y):
        ...
        reporter.observe(loss=loss, gradients=gradients, variables=variables, optimizer=optimizer)
        optimizer.apply(gradients, variables)

    with reporter:
        for x, y in data:
            train_step(x, y)
            reporter.step()
    ```

    Where the step is no compiled function, give all of that to `step` instead.

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
        response = loop_response(on_nonfinite, autopsy, share_batch, redact)
        self._replay = replay  # a bundle is replayed with it in another process
        self._session = Session(identity, on_incident=on_incident, spool_dir=spool_dir, console=console)
        self._watch = LoopWatch(self._session, response, replay)
        self._left_out = LeftOut()
        self._rows = LoopRows(self._session, self._left_out)
        self._step = self._session.identity.resume_step or 0
        self._knows_first_step = False
        self._observed: Given | None = None  # eagerly, and not reported yet: its update comes after it
        self._is_observing = False  # the last steps were those of functions that observe
        self._is_told_twice = False
        self._clock = time.perf_counter()
        self._promised_until = 0.0
        self._guard = Guard()
        self._lacks_loss = False  # the last step's loss was odd
        self._lock = threading.RLock()
        self._one_thread = OneThread()
        self._session.when_left(self._read_rest)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._session.identity.run_id

    @property
    def dashboard_url(self) -> str:
        """The address of the run's page."""
        return self._session.identity.dashboard_url

    def _repr_html_(self) -> str:
        """Show the link in a notebook."""
        return as_html(self._session.identity)

    @property
    def stop_requested(self) -> bool:
        """True once somebody asked on the dashboard for the run to stop, or `on_nonfinite="stop"` does.

        Leave your loop when you like.
        """
        return self._session.stop_requested or self._watch.is_halted

    def __enter__(self) -> Self:
        self._clock = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say how it ended: finished, interrupted by Ctrl-C, or failed by the exception."""
        with self._guard:
            self._end(error)

    @as_written
    def observe(
        self,
        *,
        loss: Tensor = None,
        gradients: Sequence[Any] | Mapping[str, Any] | None = None,
        variables: Sequence[Any] | Mapping[str, Any] | None = None,
        optimizer: Optimizer = None,
        loss_scale: Tensor = None,
        metrics: Mapping[str, Tensor] | None = None,
        batch: Any = None,  # noqa: ANN401 - as `replay` takes it
    ) -> None:
        """Report the step of a compiled function; call it inside, just before the optimizer's `apply`.

        The function itself writes the row, and the device is not asked for anything in a step: call
        `reporter.step()` outside, after the function, which reads by time. With several optimizers call it
        once for each: what the first of them was given begins a row, the others add to it.

        Args:
            loss: The loss as optimised, unscaled.
            gradients: What you give to the optimizer's `apply`. With a `LossScaleOptimizer` these are the
                scaled ones, which it divides by its scale: the norms are divided in the same way.
            variables: The variables that the gradients are of, in the same order.
            optimizer: Gives learning rate, step and loss scale.
            loss_scale: For scaling of your own: what the loss was multiplied by. Norms are divided by it.
            metrics: Further numbers, one series each.
            batch: What the step is made with: counts samples and bad inputs, and is kept for `replay` if
                the step fails.
        """
        if self._guard.is_off:
            return
        with self._lock:
            try:
                if self._watch.is_examining:  # the step that is replayed calls us, too
                    return
                given = Given(
                    loss,
                    flat(gradients),
                    flat(variables),
                    optimizer,
                    loss_scale,
                    self._left_out.sorted_out("metrics", as_mapping, metrics) or {},
                    batch,
                )
                if is_traced():
                    self._trace(given)
                else:
                    self._observe_eagerly(given)
            except Exception as error:  # TensorFlow's are many, and a user's function must not get any
                self._left_out.add("observe", f"observe: {wire.clip(str(error))}")

    def _trace(self, given: Given) -> None:
        """Have the function that is being traced write rows."""
        observed, left_out = self._rows.observed, self._left_out
        observed.check_room()
        singles = {name: left_out.sorted_out("metric", as_single, one) for name, one in given.metrics.items()}
        given = replace(
            given,
            loss=left_out.sorted_out("loss", as_value, given.loss),
            loss_scale=left_out.sorted_out("loss scale", as_single, given.loss_scale),
            metrics={str(name): one for name, one in singles.items() if one is not None},
        )
        with outside():
            self._open(given.optimizer, self._first_step(None, given.optimizer, made=0))
            if not observed.is_used:
                observed.begin(self._step)
        observed.trace(given, *self._watch.watch(given))
        self._is_observing = True

    def _observe_eagerly(self, given: Given) -> None:
        """Report it as `step` would: after its update, and so with what comes next."""
        self._report_observed()
        loss = self._left_out.sorted_out("loss", as_value, given.loss)  # a variable may change until then
        self._observed = replace(given, loss=loss)

    def _report_observed(self, more: Given | None = None) -> None:
        given, self._observed = self._observed, None
        if given is not None and more is not None:
            batch = given.batch if more.batch is None else more.batch
            given = replace(given, metrics={**given.metrics, **more.metrics}, batch=batch)
        if given is not None:
            self._report(given, None)

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
        reported, such as a loss that is a text, is left out and said once in the log. Where a compiled
        function calls `observe`, call it after that one with nothing but metrics, and the batch if you like.

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
            self._one_thread.check()
            with self._guard:
                named = self._left_out.sorted_out("metrics", as_mapping, metrics) or {}
                given = Given(loss, gradients or (), variables or (), optimizer, loss_scale, named, batch)
                self._take(given, step)

    def _take(self, given: Given, step: int | None) -> None:
        if self._watch.is_examining:  # the step that is replayed calls us, too
            return
        if self._observed is not None:
            self._report_observed(given)
        elif self._rows.observed.is_used and self._is_by_functions(given):
            self._tick(given, step)
        else:
            self._report(given, step)

    def _is_by_functions(self, given: Given) -> bool:
        """Return whether functions that observe write the rows: a loss that is given here is one too many."""
        if given.loss is None and not given.gradients:
            return True
        if self._is_observing and not self._is_told_twice:
            self._is_observing = False
            self._read()
            if self._is_observing:  # there were rows of theirs
                self._is_told_twice = True
                self._left_out.add("loss", "step was given a loss that `observe` has reported")
        return self._is_told_twice

    def _tick(self, given: Given, step: int | None) -> None:
        """Take note that a function that observes has returned, and read if it is time."""
        if step is not None:
            self._left_out.add("step", "step was numbered, but `observe` counts by itself")
        observed = self._rows.observed
        if not self._session.is_open:
            self._open(next(iter(observed.optimizers), None))
        now = time.perf_counter()
        number = self._rows.tick(now, now - self._clock, given.metrics)
        if self._watch.replays and self._rows.is_one_a_call:
            self._watch.note(number, given.batch, observed.variables, observed.optimizers)
        self._clock, self._is_observing = now, True
        if self._rows.is_due(now):
            self._read()

    def _report(self, given: Given, step: int | None) -> None:
        number = self._left_out.sorted_out("step", as_step, step)
        if number is None and step is not None:
            return
        first_step = self._first_step(number, given.optimizer, made=1)
        self._align()
        if number is None:
            number = self._step
        if number < self._step:
            self._left_out.add("step", f"step {number} was reported after step {self._step - 1}")
            return
        self._open(given.optimizer, first_step)
        loss = self._left_out.sorted_out("loss", as_tensor, given.loss)
        self._keep_order(lacks_loss=loss is None and given.loss is not None)
        scale = self._left_out.sorted_out("loss scale", as_number, given.loss_scale)
        is_written = self._rows.write(number, loss, given.gradients, given.variables, given.optimizer, scale)
        optimizers = () if given.optimizer is None else (given.optimizer,)
        self._watch.note(number, given.batch, given.variables, optimizers)
        now = time.perf_counter()
        if is_written:
            self._rows.note(number, now, now - self._clock, given.metrics)
        self._clock, self._step = now, number + 1
        if self._rows.observed.is_used:
            self._rows.observed.begin(self._step)
        if self._rows.is_due(now):
            self._read()

    def _align(self) -> None:
        """Go on after the steps of functions that observe."""
        if self._is_observing:
            self._read()
            self._is_observing = False

    def _open(self, optimizer: Optimizer, first_step: int = 0) -> None:
        if not self._session.is_open:
            environment = self._rows.probe.environment(optimizer, self._session.identity.config)
            self._session.open(environment, first_step)
            self._promise()

    def _keep_order(self, *, lacks_loss: bool) -> None:
        """Read what there is before a step of another shape: each shape has a ring of its own."""
        if lacks_loss != self._lacks_loss:
            self._lacks_loss = lacks_loss
            self._read()

    def _first_step(self, step: int | None, optimizer: Optimizer, made: int) -> int:
        """Return the step with which an earlier run is gone on with, once; 0 when there is none.

        Of the updates that the optimizer counts, `made` are of this very step.
        """
        if self._knows_first_step:
            return 0
        self._knows_first_step = True
        identity = self._session.identity
        if identity.is_resumable and identity.resume_step is None:
            self._step = int(step) if step is not None else max(updates_of(optimizer) - made, 0)
        return self._step

    def _read_rest(self) -> None:
        if self._rows.is_unread:
            with self._guard:
                self._read(looks=False)

    def _read(self, *, looks: bool = True) -> None:
        told, observed = self._rows.read()
        if observed:
            self._is_observing = True
            self._step = max(self._step, self._rows.observed.next_step)
            if not self._rows.is_one_a_call:
                self._watch.forget()
        if looks and (told or observed) and self._watch.look([*told, *observed], self._rows.step_s):
            self._clock = time.perf_counter()
        if time.perf_counter() >= self._promised_until:
            self._promise()

    def _promise(self) -> None:
        self._promised_until = time.perf_counter() + PROMISE_AGAIN_S
        self._session.sender.heartbeat(PROMISE_S, "training")

    def _end(self, error: BaseException | None) -> None:
        self._report_observed()
        if not self._session.is_open:
            if error is not None:
                return
            self._open(None)
        if self._rows.is_unread:
            self._read(looks=error is None)
        if text := self._left_out.take():
            self._session.sender.event("message", max(self._step - 1, 0), {"text": text})
        self._is_told_twice = False
        if error is not None:
            self._session.leave(error)
        else:
            halted = "a step went non-finite" if self._watch.is_halted else ""
            self._session.bye("stopped" if self.stop_requested else "finished", halted)
