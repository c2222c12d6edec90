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
    "layer_weight_norm", "layer_update_ratio", "overhead_share", "layer_activation_absmax",
    "layer_activation_nonfinite", "layer_dead_share", "layer_saturated_share",
})  # fmt: skip


class Gate:
    """Open until a server says that it takes no more series; then only what it had taken passes."""

    def __init__(self, acked_seq: Callable[[], int]) -> None:
        self._acked_seq = acked_seq
        self._known: dict[str, None] = {}  # what was let through, in order
        self._first_seq: dict[str, int] = {}  # the frame that brought a series
        self._allowed: frozenset[str] | None = None
        self._latest: tuple[str, ...] = ()
        self._noted: tuple[str, ...] = ()

    def admit(self, rows: Rows) -> Rows:
        """Return `rows` with the series that may go out."""
        names = (*rows.columns, *rows.layer_columns)
        if self._allowed is None and names == self._latest:
            return rows  # the usual case: the same series as before
        if self._allowed is None:
            self._known.update(dict.fromkeys(names[: wire.MAX_COLUMNS]))
            if len(self._known) > MAX_SERIES:
                self._allowed = ALWAYS | frozenset(list(self._known)[:MAX_SERIES])
        passing = self._passing(names)
        if len(passing) == len(names):
            self._latest = names
            return rows
        return replace_fields(
            rows,
            columns={name: cells for name, cells in rows.columns.items() if name in passing},
            layer_columns={name: cells for name, cells in rows.layer_columns.items() if name in passing},
        )

    def note(self, columns: Iterable[str], layer_columns: Iterable[str], seq: int) -> None:
        """Remember that frame `seq` brings these series: once it is acknowledged, the server has them."""
        names = (*columns, *layer_columns)
        if names != self._noted:
            self._noted = names
            for name in names:
                self._first_seq.setdefault(wire.clip(name), seq)

    def salvage(self, frame: wire.Steps) -> wire.Steps | None:
        """Return what can be kept of a frame that had a series too many; None when that is nothing new."""
        acked = self._acked_seq()
        self._allowed = ALWAYS | {name for name, seq in self._first_seq.items() if seq <= acked}
        names = [*frame.columns, *frame.layer_columns]
        passing = self._passing(names)
        if not passing or len(passing) == len(names):
            return None
        for name in names:
            if name not in passing:
                self._first_seq.pop(name, None)  # its frame will be acknowledged, but without it
        return replace(
            frame,
            columns={name: column for name, column in frame.columns.items() if name in passing},
            layer_columns={name: one for name, one in frame.layer_columns.items() if name in passing},
        )

    def _passing(self, names: Iterable[str]) -> set[str]:
        allowed = self._allowed
        if allowed is None:
            return set(list(names)[: wire.MAX_COLUMNS])
        passing = [name for name in names if name in allowed or wire.clip(name) in allowed]
        return set(passing[: wire.MAX_COLUMNS])
