"""The rows of a loop on their way from the rings to the sender: when they are read, what is added to them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainvitals import wire
from trainvitals.odd import LeftOut, as_number
from trainvitals.probe.decode import Decoded
from trainvitals.probe.loop import LoopProbe, NoRoomError
from trainvitals.probe.observed import Observed
from trainvitals.probe.types import Tensor
from trainvitals.rows import Cells, Rows
from trainvitals.session import Session
from trainvitals.ticks import Metrics, Ticks

READ_EVERY_S = 0.1
READ_SHARE = 0.01
MAX_FAILED_STEPS = 20  # in a row: then it is no odd step, and each try costs time


class LoopRows:
    """Reads the rows of `Reporter.step` and those of functions that observe. Only the training thread may."""

    def __init__(self, session: Session, left_out: LeftOut) -> None:
        self.probe = LoopProbe()
        self.observed = Observed(self.probe.layout)
        self.is_one_a_call = True  # each call of `step` came after one row, as far as was read
        self.step_s = 0.0  # the fastest step of the last read; the first one compiles, and does not count
        self._first: int | None = None  # the first step that was noted
        self._has_ticked = False
        self._session = session
        self._left_out = left_out
        self._notes: dict[int, tuple[float, float, Metrics]] = {}  # by step: (end, seconds, metrics)
        self._ticks = Ticks()
        self._calls = 0  # since the last row
        self._rows_a_call = 1
        self._layout_id = 0
        self._next_read = 0.0
        self._failed_steps = 0  # in a row

    def write(self, step: int, loss: Tensor, *others: Any) -> bool:  # noqa: ANN401 - those of the probe
        """Have the probe write a step that `step` was told; return False where it is odd and left out."""
        try:
            self._write(step, loss, *others)
        except Exception as error:  # TensorFlow's are many; one bad step must not be the end
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise
            self._left_out.add("step", f"step {step}: {wire.clip(str(error))}")
            return False
        self._failed_steps = 0
        return True

    def _write(self, step: int, loss: Tensor, *others: Any) -> None:  # noqa: ANN401
        try:
            self.probe.write(step, loss, *others)
        except NoRoomError as error:
            self._left_out.add("gradients", f"step {step}: {error}")
            self.probe.write(step, loss, (), (), None, others[-1])

    def note(self, step: int, end: float, seconds: float, metrics: Metrics) -> None:
        """Note a step that was just written."""
        self._first = step if self._first is None else self._first
        self._notes[step] = end, seconds, metrics

    def tick(self, end: float, seconds: float, metrics: Metrics) -> int:
        """Note a call of `step` where the rows are written by a function that observes.

        Returns:
            The step that it came after, if each call comes after one.
        """
        self._ticks.add(end, seconds, metrics)
        self._calls += 1
        return self.observed.next_step + self._calls - 1

    @property
    def is_unread(self) -> bool:
        """Return whether there may be rows that were not read."""
        return bool(self._notes) or self.observed.is_used

    def is_due(self, now: float) -> bool:
        """Return whether it is time to read, or a ring is half full."""
        return (
            now >= self._next_read
            or len(self._notes) >= self.probe.capacity // 2
            or len(self._ticks) * self._rows_a_call >= self.observed.capacity // 2
        )

    def read(self) -> tuple[list[Decoded], list[Decoded]]:
        """Send what is new, and return it: what `step` was told, and what functions observed."""
        began = time.perf_counter()
        told = self.probe.read()
        observed = self.observed.read()
        self._send_layout()
        self._send_told(told, began)
        self._send_observed(observed, began)
        now = time.perf_counter()
        self._next_read = now + max(READ_EVERY_S, (now - began) / READ_SHARE)
        return told, observed

    def read_at_once(self) -> None:
        """Let the next step be read, whenever it comes."""
        self._next_read = 0.0

    def _send_layout(self) -> None:
        layout = self.probe.layout
        if layout.has_changed:
            layout.has_changed = False
            optimizer = next(iter(self.observed.optimizers), None)
            environment = self.probe.environment(
                optimizer, self._session.identity.config, self.observed.operations
            )
            self._layout_id = self._session.sender.layout(layout.groups.layers, environment)

    def _send_told(self, pieces: Sequence[Decoded], now: float) -> None:
        counted = (seconds for step, (_, seconds, _) in self._notes.items() if step != self._first)
        self.step_s = min(counted, default=0.0)
        notes, self._notes = self._notes, {}
        for piece in pieces:
            known = [notes.get(int(step), (now, 0.0, {})) for step in piece.steps]
            ends, seconds = (np.array([one[place] for one in known], dtype=np.float64) for place in (0, 1))
            self._send(piece, ends, seconds, [metrics for _, _, metrics in known], now)

    def _send_observed(self, pieces: Sequence[Decoded], now: float) -> None:
        for first, last in self.observed.lost:
            self._session.sender.lost("ring_overflow", first, last, last - first + 1)
        self.observed.lost.clear()
        rows = sum(len(piece.steps) for piece in pieces)
        if not rows:
            self._ticks.join()  # the next row is of all of them
            return
        self.is_one_a_call = rows == self._calls
        self._rows_a_call = -(-rows // max(self._calls, 1))
        self._calls = 0
        share, start = self._ticks.take(rows, now), 0
        if share.seconds is not None:
            counted = share.seconds[0 if self._has_ticked else self._rows_a_call :]
            self.step_s = float(counted.min(initial=np.inf)) if len(counted) else 0.0
            self._has_ticked = True
        for piece in pieces:
            part = slice(start, start + len(piece.steps))
            seconds = None if share.seconds is None else share.seconds[part]
            self._send(piece, share.ends[part], seconds, share.metrics[part], now)
            start = part.stop

    def _send(
        self,
        piece: Decoded,
        ends: np.ndarray[Any, Any],
        seconds: np.ndarray[Any, Any] | None,
        metrics: Sequence[Metrics],
        now: float,
    ) -> None:
        columns = {**self._metric_columns(metrics), **piece.columns}
        if seconds is not None:
            columns["step_time_s"] = (seconds, None)
        times = ends + (time.time() - now)
        self._session.sender.rows(Rows(piece.steps, times, columns, piece.layer_columns, self._layout_id))
        self._session.last_step = int(piece.steps[-1])

    def _metric_columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Cells]:
        columns: dict[str, Cells] = {}
        for name in dict.fromkeys(name for metrics in rows for name in metrics):
            cells = [self._left_out.sorted_out("metric", as_number, metrics.get(name)) for metrics in rows]
            present = np.array([cell is not None for cell in cells])
            if present.any():
                values = np.array([0.0 if cell is None else cell for cell in cells], dtype=np.float64)
                columns[str(name)] = (values, None if present.all() else present)
        return columns
