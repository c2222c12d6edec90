"""Messages, frames and rows in one line each, for the tests of the client."""

from __future__ import annotations

import numpy as np

from trainvitals import wire
from trainvitals.rows import Rows


def hello(run_id: str = "run", session_id: str = "s1") -> wire.Hello:
    """Return the Hello of a session."""
    return wire.Hello(run_id=run_id, session_id=session_id)


def steps(seq: int, first_step: int | None = None, count: int = 1) -> wire.Steps:
    """Return rows whose loss is half their step; the step is the seq unless given."""
    first = seq if first_step is None else first_step
    loss = wire.Column.pack(np.arange(first, first + count) * 0.5)
    return wire.Steps(seq=seq, first_step=first, count=count, columns={"loss": loss})


def rows(first: int, last: int) -> Rows:
    """Return rows first .. last - 1 whose loss is half their step."""
    numbers = np.arange(first, last)
    return Rows(numbers, numbers.astype(np.float64), {"loss": (numbers * 0.5, None)})


def told(frames: list[wire.Sequenced]) -> list[int]:
    """Return the steps that frames bring, after checking that each value is the one of its step."""
    found: list[int] = []
    for frame in frames:
        if isinstance(frame, wire.Steps):
            numbers = frame.step_numbers()
            np.testing.assert_array_equal(frame.columns["loss"].unpack(frame.count)[0], numbers * 0.5)
            found += numbers.tolist()
    return found


def lost(frames: list[wire.Sequenced]) -> dict[str, int]:
    """Return how many rows frames declare lost, by reason."""
    counts: dict[str, int] = {}
    for frame in frames:
        if isinstance(frame, wire.Gap):
            counts[frame.reason] = counts.get(frame.reason, 0) + frame.steps_lost
    return counts
