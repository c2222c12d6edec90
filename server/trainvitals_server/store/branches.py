"""Branches: which session of a stream holds which steps of the run's main line, and which are a ghost.

A session that resumes at step 500 continues the main line from there; what an earlier session had beyond is
its ghost. Earlier means a lower ordinal, whatever arrived first.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

from trainvitals_server.series import NEVER
from trainvitals_server.store.blocks import SeriesKey
from trainvitals_server.store.payload import decode_points
from trainvitals_server.store.runs import StreamKey
from trainvitals_server.store.tail import TIME


@dataclass(frozen=True, slots=True)
class Branch:
    """The rows of one session: steps `first_step .. last_step`, on the main line below `main_stop`.

    `tail_from` is the lowest step that is not compacted yet.
    """

    key: StreamKey
    ordinal: int
    is_late: bool
    first_step: int
    last_step: int
    tail_from: int = NEVER
    main_stop: int = NEVER

    def main(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of start .. stop - 1 that this session has on the main line; it may be empty."""
        return max(start, self.first_step), min(stop, self.last_step + 1, self.main_stop)

    def all(self, start: int, stop: int) -> tuple[int, int]:
        """Return the part of start .. stop - 1 that this session has, ghost or not; it may be empty."""
        return max(start, self.first_step), min(stop, self.last_step + 1)

    def told(self) -> dict[str, Any]:
        """Return what the REST interface says of it."""
        low, high = self.main(0, NEVER)
        ghost_from = max(self.main_stop, self.first_step)
        return {
            "session_id": self.key.session_id,
            "ordinal": self.ordinal,
            "late": self.is_late,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "main": {"first_step": low, "last_step": high - 1} if low < high else None,
            "ghost": {"first_step": ghost_from, "last_step": self.last_step}
            if ghost_from <= self.last_step
            else None,
        }


def load_branches(connection: sqlite3.Connection, run_id: str, rank: int) -> list[Branch]:
    """Return the branches of a stream that have rows, those of the main line in order of step."""
    sessions = connection.execute(
        "SELECT session_id, ordinal, late, resume_step, last_step FROM session"
        " WHERE run_id = ? AND rank = ? ORDER BY ordinal, started_at, session_id",
        (run_id, rank),
    ).fetchall()
    found: list[Branch] = []
    for session_id, ordinal, late, resume_step, last_step in sessions:
        key = StreamKey(run_id, rank, session_id)
        extent = _extent(connection, key, last_step)
        if extent is None:
            continue
        first_step, last_step, tail_from = extent
        begin = first_step if resume_step is None else min(first_step, resume_step)
        found = [replace(branch, main_stop=min(branch.main_stop, begin)) for branch in found]
        found.append(Branch(key, ordinal, bool(late), first_step, last_step, tail_from))
    return found


def _extent(
    connection: sqlite3.Connection, key: StreamKey, last_step: int | None
) -> tuple[int, int, int] | None:
    tail_from, tail_last = connection.execute(
        "SELECT min(first_step), max(first_step + count - 1) FROM frame"
        " WHERE run_id = ? AND rank = ? AND session_id = ? AND kind = 'steps'",
        key,
    ).fetchone()
    clock = "run_id = ? AND rank = ? AND series = ? AND session_id = ? AND layout_id = ? AND level = 0"
    columns = SeriesKey(key, TIME).columns
    begin = connection.execute(
        f"SELECT payload FROM block WHERE {clock} ORDER BY first_step LIMIT 1", columns
    ).fetchone()
    end = connection.execute(
        f"SELECT last_step FROM block WHERE {clock} ORDER BY first_step DESC LIMIT 1", columns
    ).fetchone()
    if tail_from is None and begin is None:
        return None
    tail_start = NEVER if tail_from is None else int(tail_from)
    first = tail_start if begin is None else min(tail_start, int(decode_points(begin[0]).steps[0]))
    last = max(last_step or first, tail_last or first, int(end[0]) if end else first)
    return first, last, tail_start
