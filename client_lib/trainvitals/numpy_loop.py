"""Reporter where there is no TensorFlow: the same `step`, measured by numpy as it comes.

JAX, PyTorch and plain numpy loops end up here. Each call of `step` waits for its loss and gradients; nothing
is replayed, for the step is not TensorFlow's.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from trainvitals import wire
from trainvitals.guard import Guard
from trainvitals.identity import base_versions, identify, program_facts
from trainvitals.notebook import as_html
from trainvitals.odd import LeftOut, as_number, as_step, refuse_masked, shown
from trainvitals.response import Policy, loop_response
from trainvitals.rows import Cells, Rows
from trainvitals.session import Session
from trainvitals.wire import FloatArray

PROMISE_S = 600.0  # your loop may validate, save and compile whenever it likes
PROMISE_AGAIN_S = 60.0
ODD = (TypeError, ValueError, OverflowError, RuntimeError)

_log = logging.getLogger("trainvitals")


class Reporter:
    """Streams the vital signs of a loop to a trainvitals server.

    The arguments are those of `trainvitals.Reporter` with TensorFlow. `replay`, `autopsy`, `share_batch` and
    `redact` are of no effect, since no step is run again.
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
        self._step = identity.resume_step or 0
        self._layers: tuple[str, ...] | None = None
        self._layout_id = 0
        self._is_halted = False
        self._clock = time.perf_counter()
        self._promised_until = 0.0
        self._guard = Guard()
        self._left_out = LeftOut()
        self._lock = threading.Lock()

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
        """True once somebody asked on the dashboard for the run to stop, or `on_nonfinite="stop"` does."""
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
        loss: Any = None,  # noqa: ANN401 - whatever numpy takes
        gradients: Sequence[Any] | None = None,
        variables: Sequence[Any] | None = None,
        optimizer: Any = None,  # noqa: ANN401 - as with TensorFlow; nothing is asked of it here
        loss_scale: float | None = None,
        metrics: Mapping[str, Any] | None = None,
        step: int | None = None,
        batch: Any = None,  # noqa: ANN401 - the same
    ) -> None:
        """Report one training step, after its update.

        What cannot be reported, such as a loss that is a text, is left out and said once in the log.

        Args:
            loss: The loss as optimised, unscaled.
            gradients: What the update was made of.
            variables: The variables that the gradients are of, in the same order.
            optimizer: Not used.
            loss_scale: What the loss was multiplied by. Norms are divided by it.
            metrics: Further numbers, one series each.
            step: The number of the step, if you count yourself; it must rise.
            batch: Not used.
        """
        if self._guard.is_off:
            return
        with self._lock, self._guard:
            self._report(loss, gradients or (), variables or (), loss_scale, metrics, step)

    def _report(
        self,
        loss: object,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        loss_scale: object,
        metrics: Mapping[str, Any] | None,
        step: object,
    ) -> None:
        number = self._step if step is None else self._checked("step", as_step, step)
        if number is None:
            return
        if number < self._step:
            self._left_out.add("step", f"step {number} was reported after step {self._step - 1}")
            return
        self._open(gradients, variables)
        scale = self._checked("loss scale", as_number, loss_scale)
        columns, layer_columns = self._columns(loss, gradients, scale)
        for name, value in (metrics or {}).items():
            if (found := self._checked("metric", as_number, value)) is not None:
                columns[str(name)] = (np.array([found]), None)
        now = time.perf_counter()
        columns["step_time_s"] = (np.array([now - self._clock]), None)
        self._clock, self._step = now, number + 1
        steps, times = np.array([number], dtype=np.int64), np.array([time.time()])
        self._session.sender.rows(Rows(steps, times, columns, layer_columns, self._layout_id))
        self._session.last_step = number
        self._halt(number, columns)
        if now >= self._promised_until:
            self._promised_until = now + PROMISE_AGAIN_S
            self._session.sender.heartbeat(PROMISE_S, "training")

    def _open(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        environment = wire.Environment(
            versions=base_versions(), config=self._session.identity.config, **program_facts()
        )
        if not self._session.is_open:
            self._session.open(environment, self._step if self._layers is None else 0)
            self._promised_until = 0.0
        names = tuple(
            str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"variable_{place}")
            for place, variable in enumerate(variables[: len(gradients)])
        )
        if gradients and names != self._layers:
            self._layers = names
            layers = [
                wire.Layer(name=wire.clip(name), parameters=int(np.prod(getattr(one, "shape", ()) or (1,))))
                for name, one in zip(names[: wire.MAX_LAYERS], variables, strict=False)
            ]
            self._layout_id = self._session.sender.layout(layers, environment)

    def _columns(
        self, loss: object, gradients: Sequence[Any], scale: float | None
    ) -> tuple[dict[str, Cells], dict[str, Cells]]:
        columns: dict[str, Cells] = {}
        value = self._checked("loss", _summed, loss)
        if value is not None:
            columns["loss"] = (np.array([value]), None)
        if scale is not None:
            columns["loss_scale"] = (np.array([scale]), None)
        arrays = [self._checked("gradient", as_array, gradient) for gradient in gradients]
        if not any(one is not None for one in arrays):
            return columns, {}
        norms = np.array([0.0 if one is None else _norm(one) for one in arrays]) / (scale or 1.0)
        counts = np.array([0 if one is None else int(np.sum(~np.isfinite(one))) for one in arrays])
        columns["grad_norm"] = (np.array([_norm(norms)]), None)
        columns["grad_nonfinite"] = (np.array([counts.sum()]), None)
        known = min(len(self._layers or ()), wire.MAX_LAYERS, len(arrays))
        if known != min(len(self._layers or ()), wire.MAX_LAYERS) or not known:
            return columns, {}
        present = np.array([[one is not None for one in arrays[:known]]])
        return columns, {
            "layer_grad_norm": (norms[np.newaxis, :known], present),
            "layer_grad_nonfinite": (counts[np.newaxis, :known], present),
        }

    def _checked(self, label: str, convert: Callable[[Any], Any], value: object) -> Any:  # noqa: ANN401
        if value is None:
            return None
        try:
            return convert(value)
        except ODD as error:
            self._left_out.add(label, f"{label} {shown(value)}: {wire.clip(str(error))}")
            return None

    def _halt(self, step: int, columns: Mapping[str, Cells]) -> None:
        loss = columns["loss"][0][0] if "loss" in columns else 0.0
        is_bad = not math.isfinite(loss) or ("grad_nonfinite" in columns and columns["grad_nonfinite"][0][0])
        if is_bad and self._response.policy == "stop" and not self._is_halted:
            self._is_halted = True
            self._session.sender.say(f"step {step} went non-finite: stop_requested is True now")

    def _end(self, error: BaseException | None) -> None:
        if not self._session.is_open:
            if error is not None:
                return
            self._open((), ())
        if text := self._left_out.take():
            self._session.sender.event("message", max(self._step - 1, 0), {"text": text})
        if error is not None:
            self._session.leave(error)
        else:
            halted = "a step went non-finite" if self._is_halted else ""
            self._session.bye("stopped" if self.stop_requested else "finished", halted)


def as_array(value: Any) -> FloatArray:  # noqa: ANN401 - whatever numpy takes
    """Return float64 numbers; a tensor of PyTorch is taken off its graph and its device first."""
    for name in ("detach", "cpu"):
        value = getattr(value, name, lambda value=value: value)()
    refuse_masked(value)
    try:
        return np.asarray(value, dtype=np.float64)
    except TypeError:
        if not hasattr(value, "float"):
            raise
        return np.asarray(value.float(), dtype=np.float64)  # bfloat16, which numpy does not know


def _summed(loss: object) -> float:
    """Return the loss as one number: one for each sample is optimised as their sum."""
    if isinstance(loss, str | bytes):
        raise TypeError(f"{shown(loss)} is no number")
    return float(as_array(loss).sum())


def _norm(array: FloatArray) -> float:
    """Return the root of the sum of squares, by way of the largest: no square leaves the range."""
    largest = float(np.max(np.abs(array), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.sum(np.square(array / largest))))
