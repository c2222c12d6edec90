"""HealthReporter: the Keras callback. It passes Keras's hooks on to a `Fit` and keeps our failures in."""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from trainvitals import wire
from trainvitals.backups import Backups
from trainvitals.budget import DEFAULT_SHARE, check_share
from trainvitals.frameworks import Training, Way, callback_class, keeps_no_update_out, training_for, way_of
from trainvitals.guard import Guard
from trainvitals.identity import identify
from trainvitals.intervals import check_interval
from trainvitals.notebook import as_html
from trainvitals.preflight import preflight
from trainvitals.preflight.report import PreflightReport
from trainvitals.probe.types import Model, Value
from trainvitals.response import Policy, Response
from trainvitals.session import Session

_log = logging.getLogger("trainvitals")
_P = ParamSpec("_P")


def _guarded(
    hook: Callable[Concatenate[HealthReporter, _P], None],
) -> functools._Wrapped[Concatenate[HealthReporter, _P], None, Concatenate[HealthReporter, _P], None]:
    """Keep a failure of ours out of the training: one log line, then the reporter is off."""

    @functools.wraps(hook)
    def run(self: HealthReporter, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not self._guard.is_off:
            with self._guard:
                hook(self, *args, **kwargs)

    return run


_Callback: Any = callback_class()


class HealthReporter(_Callback):
    """Streams the vital signs of `fit` to a trainvitals server.

    ```python
    model.fit(x, y, callbacks=[HealthReporter("http://localhost:8765", project="resnet", name="lr 3e-4")])
    ```

    It never slows down the training, and stops or changes it only on demand: a server that is away costs one
    log line.

    Args:
        url: The server; else `TRAINVITALS_URL`, else http://127.0.0.1:8765.
        project: The group of runs that this one belongs to.
        name: What the run is called on the page.
        run_id: Give the id of an earlier run to go on with it, at the step that its restored optimizer has
            reached, or the same to all processes that train one model; else `TRAINVITALS_RUN_ID`, or a new
            one.
        token: What the server asks for; else `TRAINVITALS_TOKEN`.
        tags: Words to find the run by.
        config: Settings of yours to show with the run.
        group: A name that several runs share, such as one search over learning rates.
        on_incident: Called with each `IncidentNotice`, in a thread of its own.
        spool_dir: Where to keep what the server has not taken yet.
        rank: The number of this process among those that train together; else what `TF_CONFIG` says.
        resume_step: The global step with which this process begins. Needed only where an earlier run is gone
            on with and the optimizer's `iterations` do not tell.
        console: Print where the run is, one line at the onset of an incident and one at its end, and a stop
            from the page.
        on_nonfinite: What happens in a step whose loss or gradients are not finite. "continue" changes
            nothing. "stop" ends the training before that step's update: weights, optimizer and BatchNorm's
            statistics are those from before it, and a backup of `BackupAndRestore` is kept. "skip" drops
            that update, as if its batch had not been in the data. What a `LossScaleOptimizer` skips is left
            to it.
        autopsy: When a step goes non-finite, replay it once and name the first bad operation. Needs no time
            while nothing fails.
        share_batch: Send the samples that made the step fail to the server, too.
        redact: Send no ranges of values, no paths and no source lines.
        overhead_budget: The share of the time that measuring weights and their updates may take. They are
            measured as often as it allows, often in a small model and seldom in a large one; 0: never.
        activations: Measure what each layer gives out: how many of its units never fire, how much of a tanh
            or sigmoid is at its limits, the largest absolute value, and what is not finite. True does it in
            every 10th step, a number in every so manyth, and either where the loss is not finite.
    """

    # Keras may call `on_train_batch_end` from a thread, as it does without us: turning that off would make
    # it wait for the device in every step. That hook only looks at one number.
    async_safe = True
    _supports_tf_logs = True  # the same for tf_keras: that nothing is read back for us

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
        overhead_budget: float = DEFAULT_SHARE,
        activations: bool | int = False,
    ) -> None:
        super().__init__()
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
        self._session = Session(identity, on_incident=on_incident, spool_dir=spool_dir, console=console)
        self._response = Response(on_nonfinite, autopsy, share_batch, redact)
        self._overhead_budget = check_share(overhead_budget)
        self._activations_every = check_interval(activations)
        self._backups = Backups()
        self._guard = Guard()
        self._fit: Training | None = None
        self._way: Way = "keras"
        self._was_finite = True
        self._thread = 0
        self._is_in_fit = False

    @staticmethod
    def preflight(model: Model, batch: Value) -> PreflightReport:
        """Look at a model and one batch before the first step, and say what will go wrong.

        ```python
        print(HealthReporter.preflight(model, (x[:32], y[:32])))
        ```

        It belongs to no run, needs no server and tells none: it is called before there is a reporter, or
        on one. The step is run once, without its update; weights, statistics, optimizer, seeds and metrics
        are afterwards what they were, bit for bit.

        Args:
            model: Compiled, best; else what needs no loss is looked at.
            batch: What one step of `fit` gets: `x`, `(x, y)` or `(x, y, sample_weight)`, of arrays or
                tensors, or an element of a data set.

        Returns:
            The findings, errors first, to print or to show in a notebook; true where there is no error.

        Raises:
            TypeError: if `model` is no Keras model, or `batch` no batch.
            ValueError: if the batch is empty, or has more parts than these.
        """
        return preflight(model, batch)

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
    def _running(self) -> Training | None:
        return None if self._fit is None or self._fit.is_displaced else self._fit

    def __getstate__(self) -> dict[str, object]:
        """Leave out the model and what is measured of it: a copy is a run of its own."""
        fresh = {
            "_fit": None,
            "_guard": Guard(),
            "_backups": Backups(),
            "_was_finite": True,
            "_is_in_fit": False,
            "_model": None,
            "params": None,
        }
        return {**self.__dict__, **fresh, "_session": copy.copy(self._session)}

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Put our train function in.

        Raises:
            ValueError: if updates are to be kept out of a model where that cannot be done.
        """
        obstacle = "" if self._response.policy == "continue" else keeps_no_update_out(self.model)
        if obstacle:
            raise ValueError(
                f"on_nonfinite={self._response.policy!r} is not possible {obstacle}: "
                'use on_nonfinite="continue" there'
            )
        if not self._guard.is_off:
            with self._guard:
                self._begin()

    def _begin(self) -> None:
        self._backups.restore()
        way = way_of(self.model)
        if self._fit is not None and way != self._way:
            self._fit.abandon()
            self._fit = None
        if self._fit is None:
            self._way = way
            on_stop = functools.partial(self._backups.keep, self)
            self._fit = training_for(
                way, self._session, self._response, on_stop, self._overhead_budget, self._activations_every
            )
        thread = threading.get_ident()
        if self._is_in_fit and thread != self._thread:
            _log.warning("one HealthReporter is in two fits at once; give each thread a reporter of its own")
        self._is_in_fit, self._thread, self._was_finite = True, thread, True
        self._fit.begin(self.model, self.params or {})

    @_guarded
    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Start the clock of the epoch's first step; begin to report with the first epoch."""
        self._was_finite = True
        if (fit := self._running) is not None:
            fit.begin_epoch(epoch)

    @_guarded
    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Let the coming call of the train function count."""
        if (fit := self._running) is not None:
            fit.arm()

    @_guarded
    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Ask for the rows at once when the running loss turns non-finite (it stays so all epoch)."""
        if self._way == "metrics" and (fit := self._running) is not None:
            fit.note(batch, logs or {})
        loss = (logs or {}).get("loss")
        if not isinstance(loss, float) or math.isfinite(loss) or not self._was_finite:
            return
        self._was_finite = False
        if (fit := self._running) is not None:
            fit.hurry(is_training_thread=threading.get_ident() == self._thread)

    @_guarded
    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Say that a validation may take long."""
        if (fit := self._running) is not None:
            fit.begin_validation()

    @_guarded
    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Say that training goes on."""
        if (fit := self._running) is not None:
            fit.end_validation()

    @_guarded
    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Send the epoch's rows and what Keras computed over it."""
        if (fit := self._running) is not None:
            fit.end_epoch(epoch, logs or {})

    @_guarded
    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Put the user's train function back and say goodbye."""
        self._is_in_fit = False
        if (fit := self._running) is not None:
            fit.end()

    # What tf_keras asks of a callback and Keras 3 does not.

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
