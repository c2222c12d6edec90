"""Halt: tells of updates that were kept out of the model, and ends the training after the first one.

The graph does the keeping out (`probe/brake.py`); this is the host's half, in the training thread.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from trainvitals.autopsy.watch import failures
from trainvitals.probe.brake import Brake
from trainvitals.probe.decode import Decoded
from trainvitals.rows import Cells
from trainvitals.session import Session

SAY_EVERY_S = 60.0


class Halt:
    """Reads what a brake did. `stopped` is the line about a stop, once there was one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.stopped = ""
        self._dropped = 0
        self._next_word = 0.0

    def begin(self) -> None:
        """Forget an earlier fit."""
        self.stopped = ""

    def marked(self, piece: Decoded, brake: Brake) -> Decoded | None:
        """Return the rows with the updates that were kept out among the skipped ones; tell of them.

        What comes after a stop was no training and is left out: None if that is all.
        """
        dropped = failures(piece)
        if not dropped.any() and not self.stopped:
            return piece
        stopped_at = brake.stopped_at
        if stopped_at is not None:
            self._tell_stop(stopped_at)
            piece = _first_rows(piece, int(np.searchsorted(piece.steps, stopped_at, "right")))
            dropped = piece.steps == stopped_at
        elif not brake.stops:  # else the row's loss was not known when the update was made
            self._tell_skips(int(piece.steps[np.flatnonzero(dropped)[-1]]), int(dropped.sum()))
        if not dropped.any():
            return piece if len(piece.steps) else None
        skipped, present = piece.columns.get("skipped", (np.zeros(len(dropped), np.uint8), None))
        known = skipped if present is None else np.where(present, skipped, 0)
        cells = ((known > 0) | dropped).astype(np.uint8), None
        return replace(piece, columns={**piece.columns, "skipped": cells})

    def _tell_stop(self, step: int) -> None:
        if not self.stopped:
            self.stopped = (
                f"step {step} went non-finite: training stops before its update; weights, optimizer and "
                "batch statistics are those from before that step"
            )
            self._say(step, self.stopped)

    def _tell_skips(self, step: int, count: int) -> None:
        self._dropped += count
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + SAY_EVERY_S
            self._say(step, f"the update of step {step} was dropped, non-finite; {self._dropped} so far")

    def _say(self, step: int, text: str) -> None:
        self._session.sender.event("message", step, {"text": text})
        self._session.sender.say(text)


def _first_rows(piece: Decoded, count: int) -> Decoded:
    def cut(cells: Cells) -> Cells:
        return cells[0][:count], None if cells[1] is None else cells[1][:count]

    columns = {name: cut(cells) for name, cells in piece.columns.items()}
    layer_columns = {name: cut(cells) for name, cells in piece.layer_columns.items()}
    return Decoded(piece.steps[:count], columns, layer_columns)
