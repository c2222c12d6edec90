"""Gate: which series go out when there are too many, as with a metric that is named by its step.

A server takes a bounded number of series for a run and rejects a frame that brings one more. The frame's
other columns must not be lost with it, nor must every later frame be rejected first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace as replace_fields

from msgspec.structs import replace

from trainvitals import wire
from trainvitals.rows import Rows

MAX_SERIES = 1000  # beyond what servers take; bounds what an unreachable one is kept for
ALWAYS = frozenset({
    "loss", "grad_norm", "grad_nonfinite", "loss_scale", "skipped", "learning_rate", "optimizer_step",
    "step_time_s", "batch_size", "weight_nonfinite", "layer_grad_norm", "layer_grad_nonfinite",
})  # fmt: skip


class Gate:
    """Open until a server says that it takes no more series; then only what it had taken passes."""

    def __init__(self, acked_seq: Callable[[], int]) -> None:
        self._acked_seq = acked_seq
        self._first_seq: dict[str, int] = {}
        self._allowed: frozenset[str] | None = None
        self._latest: tuple[str, ...] = ()

    def admit(self, rows: Rows, seq: int) -> Rows:
        """Return `rows` with the series that may go out in frame `seq`."""
        names = (*rows.columns, *rows.layer_columns)
        if self._allowed is None and names == self._latest:
            return rows  # the usual case: the same series as before
        if self._allowed is None:
            for name in names[: wire.MAX_COLUMNS]:
                self._first_seq.setdefault(name, seq)
            if len(self._first_seq) > MAX_SERIES:
                self._allowed = ALWAYS | frozenset(list(self._first_seq)[:MAX_SERIES])
        passing = self._passing(names)
        if len(passing) == len(names):
            self._latest = names
            return rows
        return replace_fields(
            rows,
            columns={name: cells for name, cells in rows.columns.items() if name in passing},
            layer_columns={name: cells for name, cells in rows.layer_columns.items() if name in passing},
        )

    def salvage(self, frame: wire.Steps) -> wire.Steps | None:
        """Return what can be kept of a frame that had a series too many; None when that is nothing new."""
        acked = self._acked_seq()
        taken = {wire.clip(name) for name, seq in self._first_seq.items() if seq <= acked}
        self._allowed = ALWAYS | taken
        passing = self._passing([*frame.columns, *frame.layer_columns])
        if not passing or len(passing) == len(frame.columns) + len(frame.layer_columns):
            return None
        return replace(
            frame,
            columns={name: column for name, column in frame.columns.items() if name in passing},
            layer_columns={name: one for name, one in frame.layer_columns.items() if name in passing},
        )

    def _passing(self, names: Iterable[str]) -> set[str]:
        allowed = self._allowed
        passing = [name for name in names if allowed is None or name in allowed]
        return set(passing[: wire.MAX_COLUMNS])
